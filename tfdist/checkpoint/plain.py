"""Plain Python values as JSON and arrays, and back.

Not pickle, which runs what it reads: a checkpoint may come from anybody.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

_KIND = "__kind__"


class NotPlainError(TypeError):
    """A value that is more than numbers, text, lists, tuples, dicts and arrays."""


def to_json(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns what JSON can hold of a value, and puts its arrays into `arrays`.

    >>> arrays = {}
    >>> to_json({"best": np.float32(0.5), "at": (1, 2)}, arrays)
    {'best': 0.5, 'at': {'__kind__': 'tuple', 'value': [1, 2]}}

    Raises:
        NotPlainError: If the value has anything else in it.
    """
    # Of a subclass, an enumeration for example, only the value would come back.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if type(value) is np.ndarray and value.dtype.kind in "biuf":
        name = str(len(arrays))
        arrays[name] = value
        return {_KIND: "array", "value": name}
    if type(value) is list:
        return [to_json(each, arrays) for each in value]
    if type(value) is tuple:
        return {_KIND: "tuple", "value": [to_json(each, arrays) for each in value]}
    if type(value) is dict:
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: to_json(each, arrays) for key, each in value.items()}
        pairs = [[to_json(k, arrays), to_json(v, arrays)] for k, v in value.items()]
        return {_KIND: "dict", "value": pairs}
    raise NotPlainError(f"{type(value).__name__} is no plain value")


def from_json(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the value that `to_json` was given, with Python's numbers for NumPy's.

    Args:
        value: What `to_json` returned.
        arrays: What it put there.
    """
    if isinstance(value, list):
        return [from_json(each, arrays) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    inner: Any = value.get("value")
    if kind == "array":
        return arrays[inner]
    if kind == "tuple":
        return tuple(from_json(each, arrays) for each in inner)
    if kind == "dict":
        return {from_json(k, arrays): from_json(v, arrays) for k, v in inner}
    return {key: from_json(each, arrays) for key, each in value.items()}
