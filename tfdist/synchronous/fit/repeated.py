"""Several steps of a replica in one call, as long as there is data.

TensorFlow's collectives keep one number for all steps of a loop, and refuse a second shape
under the same number. So steps are in a loop only if what they exchange has a fixed shape,
as the gradients of dense weights have. Others, such as those of an embedding, have as many
rows as the batch, and the last batch is often smaller.
"""

from typing import Any

import tensorflow as tf

from tfdist.synchronous.fit.run import ShareFunction

_as_written = tf.autograph.experimental.do_not_convert


class VaryingShapesError(Exception):
    """The steps of a loop exchange tensors whose shapes may differ between the steps."""


class _UnexpectedLogsError(Exception):
    """A step returns logs, for which the loop that is being traced has no place."""

    def __init__(self, logs: Any) -> None:
        self.logs = logs


def repeated(
    attempt: ShareFunction, values: Any, steps: tf.Tensor | int
) -> tuple[tf.Tensor, Any]:
    """Runs steps on the next shares until the data ends.

    Args:
        attempt: Runs one step.
        values: The iterator over the shares.
        steps: How many steps to run at most.

    Returns:
        How many steps had data, and the results of the last one.

    Raises:
        VaryingShapesError: If the steps have to be called one by one.
    """
    if tf.executing_eagerly():
        return _one_by_one(attempt, values, int(steps))
    # A loop needs the structure of a step's results before it traces the step. Most steps
    # return nothing but metrics, so that is tried first. A step before the loop would
    # tell, but every step would be traced, and prepared by each worker, twice.
    try:
        return _loop(attempt, values, steps, {})
    except _UnexpectedLogsError as error:
        flat = tf.nest.flatten(error.logs, expand_composites=True)
        zeros = [tf.zeros(each.shape, each.dtype) for each in flat]
        first = tf.nest.pack_sequence_as(error.logs, zeros, expand_composites=True)
        return _loop(attempt, values, steps, first)


def _loop(
    attempt: ShareFunction, values: Any, steps: tf.Tensor | int, outputs: Any
) -> tuple[tf.Tensor, Any]:
    def proceed(step: tf.Tensor, goes_on: tf.Tensor, _: Any) -> tf.Tensor:
        return (step < steps) & goes_on

    def run(step: tf.Tensor, _: Any, before: Any) -> tuple[Any, ...]:
        goes_on, logs = attempt(values, before or None)
        if logs and not before:
            raise _UnexpectedLogsError(logs)
        return step + tf.cast(goes_on, tf.int32), goes_on, logs

    start = tf.constant(0), tf.constant(True), outputs
    ran, _, outputs = tf.while_loop(proceed, _as_written(run), start)
    if not all(attempt.shapes):
        # Here, where no code of the user's can catch it.
        raise VaryingShapesError
    return ran, outputs


def _one_by_one(attempt: ShareFunction, values: Any, steps: int) -> tuple[Any, Any]:
    ran, outputs = 0, None
    for _ in range(steps):
        goes_on, outputs = attempt(values, outputs)
        if not goes_on:
            break
        ran += 1
    return ran, outputs
