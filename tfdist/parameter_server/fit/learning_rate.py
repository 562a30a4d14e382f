"""The learning rate of a step, for an exchange whose bound shrinks with it."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.parameter_server.fit.refusals import (
    AsynchronousTrainingError,
    optimizers_of,
)


def learning_rate_of(model: Any, captured: Iterable[Any]) -> Callable[[], tf.Tensor]:
    """Returns what reads the learning rate where a step is traced.

    If several optimizers learn in a step, it is the smallest rate: the values of all
    weights move as often as those that need it most.

    Raises:
        AsynchronousTrainingError: If the step uses none of the model's optimizers.
    """
    handles = {id(each) for each in captured}
    used = [
        each
        for each in optimizers_of(model)
        if id(_tf.value_of(each.iterations).handle) in handles
    ]
    if not used:
        raise AsynchronousTrainingError(
            "exchange=WhenChanged(...) asks the learning rate how large a change is, and "
            "the train_step uses no optimizer that is an attribute of the model. Make its "
            "optimizer one, or use tfdist.Every(k)"
        )

    def rate() -> tf.Tensor:
        rates = [tf.cast(each.learning_rate, tf.float64) for each in used]
        return tf.reduce_min(tf.stack(rates))

    return rate
