"""Updates a weight on a ps and its slots in one operation, next to them."""

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import setting
from tfdist.variables import narrowing
from tfdist.variables.fused_kernels import Kernel, kernel_for
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.variable import ParameterServerVariable

# Methods that Keras's update steps call; replaced on an instance, they decide.
_METHODS = frozenset({"update_step", "assign", "assign_add", "assign_sub"})
# True if updates are left to Keras, operation by operation.
_left_to_keras: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "left_to_keras", default=False
)


def without_fused_updates(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps what traces a step whose updates are to be computed on copies of variables.

    A fused kernel cannot be: it wants the variable itself.
    """

    @functools.wraps(step)
    def traced(*args: object, **kwargs: object) -> Any:
        with setting(_left_to_keras, True):
            return step(*args, **kwargs)

    return traced


def update(
    optimizer: keras.Optimizer, gradient: Any, weight: Any, learning_rate: Any
) -> bool:
    """Does what `optimizer.update_step` does, by one operation where there is one.

    It locks the weight and its slots, in the same order in every step: no update is
    lost, and slots move along with the weight that they belong to. `gradient` is of the
    weight, or of the shard that the update is narrowed to. Returns whether it did: if
    not, nothing has happened.
    """
    if tf.executing_eagerly() or _left_to_keras.get():
        return False
    if _METHODS & vars(optimizer).keys():
        return False
    on_ps = _on_ps(weight)
    if on_ps is None or not _is_dense(gradient, on_ps):
        return False
    kernel = kernel_for(optimizer, on_ps.dtype.name)
    if kernel is None:
        return False
    wholes = {
        name: _whole(slots[optimizer._get_variable_index(weight)])
        for name, slots in kernel.slots.items()
    }
    slots = {name: _slot_of(on_ps, whole) for name, whole in wholes.items()}
    handles = {name: slot.handle for name, slot in slots.items() if slot is not None}
    if len(handles) < len(slots):
        return False
    getattr(tf.raw_ops, kernel.op)(
        var=on_ps.handle,
        **handles,
        **_numbers(kernel, optimizer.iterations, learning_rate, on_ps),
        **{kernel.gradient: tf.cast(gradient, on_ps.dtype)},
        **kernel.flags,
        use_locking=True,
    )
    # The operation went past the variables' methods, which do this when they write.
    for written in (weight, *wholes.values()):
        written.invalidate_read()
    return True


def _whole(slot: Any) -> Any:
    return _tf.value_of(slot) if isinstance(slot, keras.Variable) else slot


def _on_ps(variable: Any) -> ParameterServerVariable | None:
    """Returns the holder of a variable, or the shard that the update is narrowed to."""
    if isinstance(variable, PartitionedVariable):
        shard = narrowing.shard_seen()
        return None if shard is None else variable.shards[shard]
    return variable if isinstance(variable, ParameterServerVariable) else None


def _is_dense(gradient: Any, weight: ParameterServerVariable) -> bool:
    """Returns True for a gradient of all elements: a kernel needs the exact shape."""
    return (
        tf.is_tensor(gradient)
        and not isinstance(gradient, tf.IndexedSlices)
        and narrowing.rows_seen(weight, None) is None
        and gradient.shape.is_fully_defined()
        and gradient.shape == weight.shape
    )


def _slot_of(weight: ParameterServerVariable, whole: Any) -> Any:
    """Returns the holder of a slot next to the weight, or None if it is elsewhere."""
    slot = _on_ps(whole)
    if slot is None or (slot.shape, slot.dtype) != (weight.shape, weight.dtype):
        return None
    return slot if slot.device == weight.device else None


def _numbers(
    kernel: Kernel, iterations: Any, learning_rate: Any, weight: ParameterServerVariable
) -> dict[str, tf.Tensor]:
    """Returns the kernel's scalars, computed on the ps, once for all of its weights."""
    rate = tf.convert_to_tensor(learning_rate)
    counts = [tf.convert_to_tensor(iterations)] if kernel.powers else []
    dtype = weight.dtype
    # A later step in the same graph reads the count again, as another tensor.
    key = (
        *(kernel.op, *kernel.numbers.items(), *kernel.powers.items()),
        *(weight.device, dtype, *(read.name for read in [rate, *counts])),
    )
    computed = _computed_in_this_graph()
    if key not in computed:
        numbers = {name: tf.constant(n, dtype) for name, n in kernel.numbers.items()}
        numbers[kernel.learning_rate] = tf.cast(rate, dtype)
        for name, base in kernel.powers.items():
            # Not a constant of the dtype: Keras makes a number a float32 first.
            step = tf.cast(counts[0] + 1, dtype)
            numbers[name] = tf.pow(keras.ops.cast(base, dtype), step)
        computed[key] = numbers
    return computed[key]


def _computed_in_this_graph() -> dict[Any, dict[str, tf.Tensor]]:
    # Kept by the graph, since a tensor keeps its graph alive.
    kept = tf.compat.v1.get_default_graph().get_collection_ref(__name__)
    if not kept:
        kept.append({})
    computed: dict[Any, dict[str, tf.Tensor]] = kept[0]
    return computed
