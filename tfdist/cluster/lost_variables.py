"""Variables, tables and the like, made before their process connected to a cluster."""

import contextlib
import functools
import gc
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.errors import RefusalError

_log = logging.getLogger("tfdist")
_SHOWN = 5
_TABLES = (
    tf.lookup.StaticHashTable,
    tf.lookup.experimental.MutableHashTable,
    tf.lookup.experimental.DenseHashTable,
)
_OTHERS = {
    tf.data.Iterator: "an iterator of a dataset",
    tf.summary.SummaryWriter: "a summary writer",
}
# Of those, which have no public handle, the methods that use it.
_USES = ("__next__", "get_next", "get_next_as_optional", "as_default", "set_as_default")


class LostVariablesError(RefusalError):
    """A variable, or the like, was lost when its process connected to a cluster."""


def check_not_lost(used: Iterable[Any]) -> None:
    """Checks that none of some variables, or of the handles of some, was lost.

    Raises:
        LostVariablesError: If one was.
    """
    for each in used:
        if message := getattr(each, "lost", ""):
            raise LostVariablesError(message)


@contextlib.contextmanager
def losing_variables(strategy: str) -> Iterator[None]:
    """Has every later use of what is lost within this context raise an error.

    TensorFlow connects within it, and makes its eager context anew, in which variables and
    the like of before no longer exist. Warns if this process has any.
    """
    if not _kept():
        yield
        return
    gc.collect()  # Variables of deleted models are no loss.
    kept = _kept()
    if kept:
        _log.warning(
            "%d variables, tables or the like, made before %s, such as %s, are lost: "
            "TensorFlow forgets them as this process connects to its cluster. Construct "
            "the strategy first. Or call get_weights(), or save to a file, before, and "
            "set_weights() or load in a model that is built afterwards",
            len(kept),
            strategy,
            next(iter(kept.values()))[1],
        )
    yield
    for each, name in kept.values():
        handle: tf.Tensor = _handle(each)
        each.lost = handle.lost = (
            f"{name} was made before {strategy}(), and is lost: TensorFlow forgot it as "
            "this process connected to its cluster. Construct the strategy first, then the "
            "layer, metric or model that it belongs to, and the dataset that uses it. "
            "Make a model inside `with strategy.scope():`"
        )
        kind: Any = type(each)
        each.__class__ = _lost(kind)


def made_before() -> str:
    """Returns the names of the variables, and the like, of this process, or ""."""
    names = sorted({name for _, name in _kept().values()})
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _raise(lost: Any, *_: Any) -> Any:
    # TensorFlow would say that a client, a device or a resource is not found.
    raise LostVariablesError(lost.lost)


@functools.cache
def _lost(kind: type) -> type:
    """Returns the kind of what was lost, of which each use raises an error.

    Its objects have the error's message, as their handles have it for `check_not_lost`.
    """
    methods = {name: _raise for name in _USES if hasattr(kind, name)}
    handles = dict.fromkeys(("handle", "resource_handle"), property(_raise))
    # An object keeps its layout.
    return type(kind)(kind.__name__, (kind,), {"__slots__": (), **methods, **handles})


def _kept() -> dict[int, tuple[Any, str]]:
    """Returns the variables, and the like, of this process, by identity, with names."""
    # By their types: `isinstance` takes a second for all objects of a process.
    of = (tf.Variable, *_TABLES, *_OTHERS)
    kinds = {each for kind in of for each in _kinds(kind)}
    layers = set(_kinds(keras.Layer))
    objects = gc.get_objects()
    found = [
        each for each in objects if type(each) in kinds and _handle(each) is not None
    ]
    kept = {id(each): (each, _name(each)) for each in found}
    # The name of a table is a number, or none.
    for layer in (each for each in objects if type(each) in layers):
        for name, value in vars(layer).items():
            if isinstance(value, _TABLES):
                kept[id(value)] = value, f"{layer.path or layer.name}.{name}"
    return kept


def _name(kept: Any) -> str:
    if isinstance(kept, _TABLES):
        return f"a {type(kept).__name__}"
    other = next((name for kind, name in _OTHERS.items() if isinstance(kept, kind)), "")
    return other or str(kept.name).removesuffix(":0")


def _handle(kept: Any) -> Any:
    """Returns the handle, or None unless it is eager. A summary writer is its own."""
    if hasattr(kept, "lost"):
        return None
    if isinstance(kept, tf.summary.SummaryWriter):
        return kept
    if isinstance(kept, tf.data.Iterator):
        (handle,) = tf.nest.flatten(kept, expand_composites=True)
        return handle if hasattr(handle, "numpy") else None
    is_table = isinstance(kept, _TABLES)
    try:
        handle = getattr(kept, "resource_handle" if is_table else "handle")
    # Several copies have none in common.
    except (AttributeError, NotImplementedError, ValueError):
        return None
    return handle if hasattr(handle, "numpy") else None


def _kinds(kind: Any) -> Iterator[type]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
