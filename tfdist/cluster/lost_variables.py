"""Variables that were made before their process connected to a cluster."""

import gc
import logging
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_log = logging.getLogger("tfdist")


def tell_of_lost_variables(strategy: str) -> None:
    """Warns if this process has variables. Call it before TensorFlow connects.

    TensorFlow then makes its eager context anew, in which they no longer exist. The first
    read says "Client for target /job:localhost/replica:0/task:0 not found".
    """
    if next(_variables(), None) is None:
        return
    gc.collect()  # Those of models that were deleted are no loss.
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


def _variables() -> Iterator[tf.Variable]:
    # By their types: `isinstance` takes a second for all objects of a process.
    kinds = set(_kinds(tf.Variable))
    return (each for each in gc.get_objects() if type(each) in kinds)


def _kinds(kind: Any) -> Iterator[type]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)
