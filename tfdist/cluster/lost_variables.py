"""Variables that were made before their process connected to a cluster."""

import gc
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

_log = logging.getLogger("tfdist")
# By identity, since variables cannot be hashed, with the strategy that lost them.
_lost: dict[int, tuple[weakref.ref[tf.Variable], str]] = {}


class LostVariablesError(RuntimeError):
    """Variables of a model were lost when its process connected to a cluster."""


def tell_of_lost_variables(strategy: str) -> None:
    """Warns if this process has variables. Call it before TensorFlow connects.

    TensorFlow then makes its eager context anew, in which they no longer exist. The first
    read says "Client for target /job:localhost/replica:0/task:0 not found".
    """
    if next(_variables(), None) is None:
        return
    gc.collect()  # Those of models that were deleted are no loss.
    _lost.update({id(each): (weakref.ref(each), strategy) for each in _variables()})
    if lost := [each.name.removesuffix(":0") for each in _variables()]:
        _log.warning(
            "%d variables that were made before %s, such as %s, are lost: TensorFlow "
            "forgets them as this process connects to its cluster. Construct the strategy "
            "first. Or call get_weights(), or save to a file, before, and set_weights() or "
            "load in a model that is built afterwards",
            len(lost),
            strategy,
            lost[0],
        )


def check_not_lost(model: str, variables: Callable[[], Iterable[Any]]) -> None:
    """Checks that the variables of a model were not lost. Models that nobody uses may be.

    `variables` is called only if there are lost ones, since this runs at each call.

    Raises:
        LostVariablesError: If one was.
    """
    for each in variables() if _lost else ():
        known, strategy = _lost.get(id(each), (None, ""))
        # Another variable may have its identity by now.
        is_known = known is not None and known() is each
        if is_known and not _can_be_read(each):
            raise LostVariablesError(
                f"the model {model!r} was built before {strategy}(), and its variables, "
                f"such as {each.name.removesuffix(':0')}, are lost: TensorFlow forgot them "
                "as this process connected to its cluster. Construct the strategy first, "
                "then build the model inside `with strategy.scope():`"
            )


def _can_be_read(variable: tf.Variable) -> bool:
    try:
        variable.numpy()
    except tf.errors.OpError:
        return False
    return True  # The strategy could not connect.


def _variables() -> Iterator[tf.Variable]:
    # By their types: `isinstance` takes a second for all objects of a process.
    kinds = set(_kinds(tf.Variable))
    return (each for each in gc.get_objects() if type(each) in kinds)


def _kinds(kind: Any) -> Iterator[type]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
