"""Conversion of plain Python values to JSON and arrays, and back.

Pickle would execute code that a file contains, and a checkpoint may come from anyone.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np

_KIND = "__kind__"
_EXTENSION = 2  # `isbuiltin` of the dtypes of ml_dtypes
_FACTORIES = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset)
_FACTORY_OF = {each.__name__: each for each in _FACTORIES} | {"None": None}
_SEQUENCES = {each.__name__: each for each in (tuple, set, frozenset)}
_DICTS = {each.__name__: each for each in (dict, OrderedDict, Counter)}
_CONTAINERS = (list, dict, set, frozenset, deque)


class NotPlainError(TypeError):
    """A value that is not made of numbers, strings, Python's containers and arrays."""


class UnkeptError(NotPlainError):
    """An array, a NumPy scalar or a container that needs pickle to be written."""


def to_json(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Returns a value in a form that JSON can hold, with its arrays in `arrays`.

    Arrays and NumPy scalars keep their dtypes and shapes.

    >>> arrays = {}
    >>> to_json({"best": np.ones(3), "at": (1, 2)}, arrays)["at"]
    {'__kind__': 'tuple', 'value': [1, 2]}
    >>> arrays
    {'0': array([1., 1., 1.])}
    >>> to_json(np.float32(0.5), {})
    {'__kind__': 'scalar', 'value': '0000003f', 'dtype': '<f4'}

    Raises:
        NotPlainError: If the value contains anything else; an UnkeptError if that
            is an array, a NumPy scalar or a container of another class.
    """
    # Exact types only: a subclass, such as an enum, would come back as its base class.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is bytes:
        return {_KIND: "bytes", "value": value.decode("latin-1")}
    if isinstance(value, np.generic):
        return _scalar_to_json(value)
    if isinstance(value, np.ndarray):
        return _array_to_json(value, arrays)
    if type(value) is list:
        return [to_json(each, arrays) for each in value]
    # JSON has only string keys, and `_KIND` as a key would look like an encoded value.
    # Other dicts are encoded as pairs.
    if type(value) is dict and _KIND not in value and _has_text_keys(value):
        return {key: to_json(each, arrays) for key, each in value.items()}
    return _container_to_json(value, arrays)


def _has_text_keys(value: dict[Any, Any]) -> bool:
    return all(type(key) is str for key in value)


def _container_to_json(value: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    name = type(value).__name__
    more: dict[str, Any] = {}
    if type(value) is deque:
        more = {"maxlen": value.maxlen}
    elif type(value) is defaultdict:
        factory = getattr(value.default_factory, "__name__", "None")
        if _FACTORY_OF.get(factory) is not value.default_factory:
            raise UnkeptError(f"a defaultdict whose factory is {factory}")
        more = {"factory": factory}
    elif type(value) not in (*_SEQUENCES.values(), *_DICTS.values()):
        if isinstance(value, _CONTAINERS):
            raise UnkeptError(f"a container {name}, a class of its own")
        raise NotPlainError(f"{name} is not a plain value")
    if isinstance(value, dict):
        inner = [[to_json(k, arrays), to_json(v, arrays)] for k, v in value.items()]
    else:
        inner = [to_json(each, arrays) for each in value]
    return {_KIND: name, "value": inner, **more}


def _scalar_to_json(value: np.generic) -> dict[str, Any]:
    dtype = value.dtype
    if type(value) in (np.str_, np.bytes_):  # `tobytes` would add or drop null bytes.
        return {_KIND: "text", "value": to_json(value.item(), {})}
    if (
        type(value) is not dtype.type
        or dtype.hasobject
        or dtype.names
        or not dtype.itemsize
    ):
        raise UnkeptError(f"a scalar {type(value).__name__} of dtype {dtype}")
    # Within the JSON: scalars that are equal must look equal to `Changes`.
    name = dtype.name if dtype.isbuiltin == _EXTENSION else dtype.str
    return {_KIND: "scalar", "value": value.tobytes().hex(), "dtype": name}


def _array_to_json(value: np.ndarray, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    kind = f"an array {type(value).__name__} of dtype {value.dtype}"
    if type(value) is not np.ndarray:
        raise UnkeptError(kind)
    if value.dtype == object:
        try:
            inner = [to_json(each, arrays) for each in value.ravel()]
        except NotPlainError as error:
            raise UnkeptError(f"{kind}: {error}") from None
        return {_KIND: "objects", "value": inner, "shape": list(value.shape)}
    extension = None
    if value.dtype.isbuiltin == _EXTENSION:
        # NumPy's files know bfloat16 and the like only as bytes.
        extension = value.dtype.name
        value = value.view(f"u{value.dtype.itemsize}")
    elif value.dtype.hasobject or not _is_in_files(value.dtype):
        raise UnkeptError(kind)
    name = str(len(arrays))
    arrays[name] = value
    return {_KIND: "array", "value": name, "dtype": extension}


def _is_in_files(dtype: np.dtype) -> bool:
    """Returns True if a file of NumPy gives the dtype back."""
    return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype


def from_json(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Inverts `to_json`."""
    if isinstance(value, list):
        restored = [from_json(each, arrays) for each in value]
        return _with_scalars(restored) if any(map(_is_older, value)) else restored
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    inner: Any = value.get("value")
    if kind == "array":
        extension = value.get("dtype")
        return arrays[inner].view(extension) if extension else arrays[inner]
    if kind == "scalar":
        return np.frombuffer(bytes.fromhex(inner), value["dtype"])[0]
    if kind == "bytes":
        return inner.encode("latin-1")
    if kind == "text":
        text = from_json(inner, arrays)
        return np.str_(text) if isinstance(text, str) else np.bytes_(text)
    if kind == "objects":
        array = np.empty(len(inner), object)
        for i, each in enumerate(inner):
            array[i] = from_json(each, arrays)
        return array.reshape(value["shape"])
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](from_json(each, arrays) for each in inner)
    if kind == "deque":
        return deque((from_json(each, arrays) for each in inner), value["maxlen"])
    if kind in _DICTS or kind == "defaultdict":
        items = {from_json(k, arrays): from_json(v, arrays) for k, v in inner}
        if kind == "defaultdict":
            return defaultdict(_FACTORY_OF[value["factory"]], items)
        return _DICTS[kind](items)
    return {key: from_json(each, arrays) for key, each in value.items()}


def _is_older(value: Any) -> bool:
    """Returns True for an array in a checkpoint that tfdist 0.2.0 or older has written."""
    return (
        isinstance(value, dict) and value.get(_KIND) == "array" and "dtype" not in value
    )


def _with_scalars(values: list[Any]) -> list[Any]:
    """Returns the weights of an older checkpoint, whose scalars are Python numbers."""
    numbers = (bool, int, float)
    return [np.asarray(v)[()] if type(v) in numbers else v for v in values]
