"""Variables and tables that were made before their process connected to a cluster."""

import contextlib
import functools
import gc
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist._refusal import RefusalError

_log = logging.getLogger("tfdist")
_TABLES = (
    tf.lookup.StaticHashTable,
    tf.lookup.experimental.MutableHashTable,
    tf.lookup.experimental.DenseHashTable,
)


class LostVariablesError(RefusalError):
    """A variable or a table was lost when its process connected to a cluster."""


class _Lost:
    """A variable or a table that was lost, of which each use raises an error.

    Attributes:
        lost: The message of that error. The handle has it too, for `check_not_lost`.
    """

    lost: str

    @property
    def handle(self) -> Any:
        """No handle. TensorFlow would say that a client or a device is not found."""
        raise LostVariablesError(self.lost)

    resource_handle = handle


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
    tables of before no longer exist. Warns if this process has any.
    """
    if not _kept():
        yield
        return
    gc.collect()  # Variables of deleted models are no loss.
    kept = _kept()
    if kept:
        _log.warning(
            "%d variables and tables that were made before %s, such as %s, are lost: "
            "TensorFlow forgets them as this process connects to its cluster. Construct "
            "the strategy first. Or call get_weights(), or save to a file, before, and "
            "set_weights() or load in a model that is built afterwards",
            len(kept),
            strategy,
            next(iter(kept.values()))[1],
        )
    yield
    for each, name in kept.values():
        each.lost = _handle(each).lost = (
            f"{name} was made before {strategy}(), and is lost: TensorFlow forgot it as "
            "this process connected to its cluster. Construct the strategy first, then the "
            "layer, metric or model that it belongs to, and the dataset that uses it. "
            "Make a model inside `with strategy.scope():`"
        )
        kind: Any = type(each)
        each.__class__ = _lost(kind)


@functools.cache
def _lost(kind: type) -> type:
    return type(kind)(kind.__name__, (_Lost, kind), {})


def _kept() -> dict[int, tuple[Any, str]]:
    """Returns the variables and tables of this process, by identity, with their names."""
    # By their types: `isinstance` takes a second for all objects of a process.
    kinds = {each for kind in (tf.Variable, *_TABLES) for each in _kinds(kind)}
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


def _name(variable_or_table: Any) -> str:
    if isinstance(variable_or_table, _TABLES):
        return f"a {type(variable_or_table).__name__}"
    return str(variable_or_table.name).removesuffix(":0")


def _handle(variable_or_table: Any) -> Any:
    """Returns the handle, or None unless it is eager."""
    is_table = isinstance(variable_or_table, _TABLES)
    try:
        handle = getattr(variable_or_table, "resource_handle" if is_table else "handle")
    # Several copies have none in common.
    except (AttributeError, NotImplementedError, ValueError):
        return None
    return handle if hasattr(handle, "numpy") else None


def _kinds(kind: Any) -> Iterator[type]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
