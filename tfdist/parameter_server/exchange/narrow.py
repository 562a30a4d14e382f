"""Values that workers send in bfloat16, with feedback of the rounding error.

The upper half of a float32 has its range and 8 significant bits. The worker keeps the
rounding error of a gradient, and adds it to the gradient of its next step. So the sum of
all sent gradients is the exact sum, less one rounding. Sources: Seide et al., "1-Bit
Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes
SignSGD and other Gradient Compression Schemes", ICML 2019. A weight has no feedback: each
step reads it anew, and the ps keep all of its bits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras.computation import Computation
from tfdist.parameter_server.exchange.kept import Kept
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.variable import ParameterServerVariable

WIRE_DTYPES = ("bfloat16",)
"""The values of `wire_dtype` besides None."""

LEAST_BYTES = 2**14
"""The least size to narrow: below it, a message costs more than its bytes."""


def is_narrowed(dtype: tf.DType, shape: tf.TensorShape) -> bool:
    """Returns True if a weight or gradient is worth it: a large one of float32."""
    elements = shape.num_elements()
    return bool(
        dtype == tf.float32 and elements is not None and elements * 4 >= LEAST_BYTES
    )


class NarrowComputation(Computation):
    """A step of one worker, whose optimizer sends large gradients in bfloat16.

    A gradient of rows is left as it is: the feedback of a table would be a table.
    """

    def to_apply(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Returns the gradients as the worker sends them, with their variables."""
        return [
            (_sent(gradient, each) if _can_be_sent(gradient, each) else gradient, each)
            for gradient, each in pairs
        ]


def _can_be_sent(gradient: Any, holder: Any) -> bool:
    return (
        isinstance(holder, ParameterServerVariable | PartitionedVariable)
        and isinstance(gradient, tf.Tensor)
        and is_narrowed(gradient.dtype, tf.TensorShape(holder.shape))
    )


def _sent(gradient: tf.Tensor, holder: Any) -> tf.Tensor:
    # TensorFlow does not know the shape of some gradients.
    gradient = tf.ensure_shape(gradient, holder.shape)
    spec = tf.TensorSpec(gradient.shape, gradient.dtype)
    if holder.lost is None:
        holder.lost = Kept([spec])
    lost = holder.lost
    handles = lost.handles()
    # The gradient of a step depends on weights that its worker has read after its own
    # update of them, and so on what the step before has kept.
    with tf.control_dependencies([gradient]):
        (before,) = lost.read(handles, lambda: [tf.zeros(spec.shape, spec.dtype)])
    meant = gradient + before
    sent = tf.cast(meant, tf.bfloat16)
    left = meant - tf.cast(sent, meant.dtype)
    # Drop a value that is not finite, which would stay so forever.
    left = tf.where(tf.math.is_finite(left), left, tf.zeros_like(left))
    (handle,) = handles
    kept = tf.raw_ops.AssignVariableOp(resource=handle, value=left)
    # Before it is sent: the next step reads it once it has seen this one's update.
    with tf.control_dependencies([kept]):
        return tf.identity(sent)


def widened_update(update: Callable[..., Any], dtype: tf.DType) -> Callable[..., Any]:
    """Returns an update whose gradient has travelled in fewer bits than it has."""

    def widened(var: Any, gradient: Any, *rest: Any, **kwargs: Any) -> Any:
        return update(var, tf.cast(gradient, dtype), *rest, **kwargs)

    return widened
