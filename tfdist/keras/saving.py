"""A save within `fit` on parameter servers: of the steps so far, all and no more.

Steps are in flight when a callback saves at the end of a batch. So each way to save a
model, or variables, waits for them first.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.cluster.membership import MEMBERSHIP
from tfdist.parameter_server.strategy import ParameterServerStrategy


def join_before_saving() -> None:
    """Makes Keras and `tf.train.Checkpoint` wait for the steps under way.

    Whatever Keras saves by, `model.save`, `keras.saving.save_weights` or a callback,
    ends in one of three functions.
    """
    for owner, name in (
        (_tf.saving_lib, "save_model"),
        (_tf.saving_lib, "save_weights_only"),
        (_tf.legacy_h5_format, "save_model_to_hdf5"),
        (tf.train.Checkpoint, "save"),
        (tf.train.Checkpoint, "write"),
        (tf.train.CheckpointManager, "save"),
    ):
        setattr(owner, name, _after_the_steps(getattr(owner, name)))


def _after_the_steps(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def saving(*args: Any, **kwargs: Any) -> Any:
        strategy = MEMBERSHIP.strategy
        # What is traced saves later.
        if isinstance(strategy, ParameterServerStrategy) and tf.executing_eagerly():
            strategy.in_flight.join_own()
        return save(*args, **kwargs)

    return saving
