"""A variable on a ps whose writes inside a step do not undo another worker's.

Keras writes most state as `variable.assign(f(variable))`: a read, then a write.
On a parameter server the two are apart in time, and between them other workers
write too; a plain assignment would undo what they wrote. Here such a write becomes
an increment, `assign_add(f(view) - view)`, which TensorFlow applies under the
variable's lock. The view is the value that this step read.

Which writes become increments:

- a trainable variable: every value computed from its view (an optimizer's update,
  a constraint's projection);
- any other variable: a sum or difference computed from its view (a counter, a
  metric's total, a moving average, an optimizer's slot);
- all else (a constant, a minimum or maximum, a choice) stays an assignment: the
  last writer wins, and an increment could leave a value that nobody wrote.

One step on one worker sees exactly what it would see without this.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import _tf

_SUMS = frozenset({"Add", "AddV2", "AddN", "Sub"})
_SAME_VALUE = frozenset({"Identity", "StopGradient"})


class ParameterServerVariable(_tf.CachingVariable):
    """Wraps the resource variable that lives on a ps.

    Cost: a step reads a variable that is not trainable once however often Keras
    asks for it between two writes. The step counter that Adam reads for every one
    of its variables crosses the network once.
    """

    def __init__(self, variable: tf.Variable) -> None:
        super().__init__(variable)
        self._view: tf.Tensor | None = None

    def _current_view(self) -> tf.Tensor | None:
        """The value read last in the graph being traced, if not written since."""
        view = self._view
        if view is None or tf.executing_eagerly():
            return None
        return view if view.graph is tf.compat.v1.get_default_graph() else None

    def read_value(self) -> tf.Tensor:
        """Reads the value; a step that has read it already gets the same view."""
        # A gradient flows to a trainable variable from reads under the tape alone,
        # and this one may not be under the tape of the last.
        view = None if self.trainable else self._current_view()
        if view is not None:
            return view
        value = super().read_value()
        if not tf.executing_eagerly():
            self._view = value
        return value

    def value(self) -> tf.Tensor:
        """Reads the value, as `read_value` does."""
        return self.read_value()

    def _dense_var_to_tensor(
        self, dtype: Any = None, name: str | None = None, as_ref: bool = False
    ) -> Any:
        if dtype is not None and not tf.as_dtype(dtype).is_compatible_with(self.dtype):
            return NotImplemented
        return self.read_value()

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Sets the value, or adds what it changes: see the module."""
        view = self._current_view()
        self._view = None
        if view is not None:
            value = tf.convert_to_tensor(value, dtype=self.dtype)
            increment = _increment(value, view, any_value=self.trainable)
            if increment is not None:
                return self._v.assign_add(increment, name=name, read_value=read_value)
        return self._v.assign(value, name=name, read_value=read_value)

    def assign_add(self, *args: Any, **kwargs: Any) -> Any:
        """Adds to the value under the variable's lock."""
        self._view = None
        return self._v.assign_add(*args, **kwargs)

    def assign_sub(self, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from the value under the variable's lock."""
        self._view = None
        return self._v.assign_sub(*args, **kwargs)


def _forgetting_view(method: str) -> Callable[..., Any]:
    def write(self: ParameterServerVariable, *args: Any, **kwargs: Any) -> Any:
        self._view = None
        return getattr(self._v, method)(*args, **kwargs)

    write.__name__ = method
    write.__doc__ = f"As `tf.Variable.{method}`, on the ps."
    return write


for _method in (
    "batch_scatter_update",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_max",
    "scatter_nd_min",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
):
    setattr(ParameterServerVariable, _method, _forgetting_view(_method))


def _increment(value: tf.Tensor, view: tf.Tensor, any_value: bool) -> tf.Tensor | None:
    """What to add to `view` to get `value`, or None if it is to be assigned."""
    if not (value.dtype.is_floating or value.dtype.is_integer):
        return None
    if value.graph is not view.graph:
        return None
    source = value.op
    while source.type in _SAME_VALUE:
        source = source.inputs[0].op
    summands = source.inputs
    if source.type in _SUMS and len(summands) == 2:
        # `view + d` needs no view: d alone goes to the ps.
        added = [s for s in summands if s.name != view.name]
        if len(added) == 1 and added[0].shape == view.shape:
            if source.type != "Sub":
                return added[0]
            if summands[0].name == view.name:
                return -added[0]
    if (any_value or source.type in _SUMS) and _depends_on(value, view):
        return value - view
    return None


def _depends_on(value: tf.Tensor, view: tf.Tensor) -> bool:
    pending, seen = [value], set()
    for tensor in pending:
        if tensor.name == view.name:
            return True
        if tensor.op.name not in seen:
            seen.add(tensor.op.name)
            pending.extend(tensor.op.inputs)
    return False
