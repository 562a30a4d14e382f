"""Conversion of plain Python values to JSON and arrays, and back.

Pickle would execute code that a file contains, and a checkpoint may come from anyone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

_KIND = "__kind__"


class NotPlainError(TypeError):
    """A value that is not made of numbers, strings, lists, tuples, dicts and arrays."""


def to_json(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns a value in a form that JSON can hold, with its arrays in `arrays`.

    >>> arrays = {}
    >>> to_json({"best": np.float32(0.5), "at": (1, 2)}, arrays)
    {'best': 0.5, 'at': {'__kind__': 'tuple', 'value': [1, 2]}}

    Raises:
        NotPlainError: If the value contains anything else.
    """
    # Exact types only: a subclass, such as an enum, would come back as its base class.
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
        # JSON has only string keys, and `_KIND` as a key would look like an encoded
        # value. Other dicts are encoded as pairs.
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: to_json(each, arrays) for key, each in value.items()}
        pairs = [[to_json(k, arrays), to_json(v, arrays)] for k, v in value.items()]
        return {_KIND: "dict", "value": pairs}
    raise NotPlainError(f"{type(value).__name__} is not a plain value")


def from_json(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Inverts `to_json`; NumPy scalars come back as Python numbers."""
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
