"""Placement of the variables of a graph, decided op by op."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.placement.placement import Placement, ps_for
from tfdist.placement.report import PlacedVariable
from tfdist.placement.variable_spec import spec_of_operation


class Placing:
    """Asks a placement for the ps of each variable of a graph, and records the answers.

    Every task builds the same graph and must get the same answers. So each graph starts
    with a fresh copy of the placement, even if the process has built another graph before
    that other tasks have not. Copies of a strategy, of which TensorFlow makes many, share
    one `Placing`.
    """

    def __init__(self, placement: Placement) -> None:
        self._fresh = placement
        self._graph: weakref.ref[tf.Graph] | None = None
        self._placement = placement
        self._variables: list[PlacedVariable] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Placing":
        return self

    @property
    def variables(self) -> tuple[PlacedVariable, ...]:
        """The variables of the most recent graph, in creation order."""
        return tuple(self._variables)

    def ps_strategy(self, num_ps: int) -> Callable[[tf.Operation], int]:
        """Returns the `ps_strategy` for `tf.compat.v1.train.replica_device_setter`."""

        def place(op: tf.Operation) -> int:
            self._begin(op.graph)
            return ps_for(self._placement, spec_of_operation(op), num_ps)

        return place

    def record(self, variable: Any) -> None:
        """Records a variable that has been created, slots included."""
        self._begin(variable.graph)
        device = tf.DeviceSpec.from_string(variable.device)
        if device.job == "ps":
            self._variables.append(
                PlacedVariable(spec_of_operation(variable.op), device.task or 0)
            )

    def _begin(self, graph: tf.Graph) -> None:
        # Weak, so that the strategy does not keep a finished graph in memory.
        if self._graph is None or self._graph() is not graph:
            self._graph = weakref.ref(graph)
            self._placement = copy.deepcopy(self._fresh)
            self._variables = []
