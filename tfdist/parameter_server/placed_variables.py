"""Placement of a strategy's variables: decided before they exist, then recorded."""

import dataclasses
import weakref
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass
from typing import Any

import tensorflow as tf

from tfdist.placement.greedy import BestFit
from tfdist.placement.large_weights import may_be_split, partitioner_for
from tfdist.placement.partition import Partition, PartitionError
from tfdist.placement.partitioners import partition_of
from tfdist.placement.placement import PartitioningPlacement, Placement, ps_for
from tfdist.placement.report import PlacedVariable
from tfdist.placement.variable_spec import VariableSpec
from tfdist.variables.creation import being_created, spec_of
from tfdist.variables.shard_layout import DIV, ShardLayout, layout_of
from tfdist.variables.variable import ParameterServerVariable


@dataclass(eq=False)
class PlacedVariables:
    """Decides on which ps a variable lives and how it is split, and finds it again.

    Large weights are split by default if the worker's link is the bottleneck;
    `seconds_per_byte` returns 0 if it is not.

    Attributes:
        placement: Says where variables live.
    """

    given: InitVar[Placement | None]
    partitioner: Callable[..., Any] | None
    num_ps: int
    seconds_per_byte: Callable[[], float]

    def __post_init__(self, given: Placement | None) -> None:
        self.placement: Placement = BestFit() if given is None else given
        self._splits_large = given is None and self.partitioner is None
        # Weak references: the report must not keep the variables of a deleted model alive
        # on the ps.
        self._placed: list[tuple[weakref.ref[Any], PlacedVariable]] = []

    @property
    def is_planned(self) -> bool:
        """True if a plan has all variables, and hears of each that is created."""
        return isinstance(self.placement, PartitioningPlacement)

    def ps_of(self, spec: VariableSpec) -> int:
        """Returns the ps on which a variable in one piece is to live."""
        return ps_for(self.placement, spec, self.num_ps)

    def layout(self, spec: VariableSpec) -> ShardLayout | None:
        """Returns how to split a Keras variable, or None to leave it unsplit."""
        request = being_created().request
        if request.on_every_ps:
            # `GrowingLayer` asks for a multiple of the number of ps.
            rows = [spec.shape[0] // self.num_ps] * self.num_ps
            return layout_of(Partition.of_sizes(0, rows, range(self.num_ps)), DIV)
        if isinstance(self.placement, PartitioningPlacement):
            partition = self.placement.partition(spec, self.num_ps)
        else:
            partitioner = request.partitioner or self.partitioner
            if partitioner is None:
                return None
            partition = partition_of(partitioner, spec, self.num_ps, self.placement)
        if partition is None or len(partition.bounds) == 1:
            return None
        # A partitioner and a plan may be the user's own.
        partition.check(spec, self.num_ps)
        if request.rows_only and partition.axis:
            raise PartitionError(
                f"{spec.name} of shape {spec.shape} can be split by rows only, because "
                "it is looked up by row or uses the 'mod' layout; the partitioner "
                f"splits axis {partition.axis}. Use a partitioner that splits axis 0"
            )
        return layout_of(partition, request.partition_strategy, spec.name)

    def layout_of_large(self, spec: VariableSpec) -> ShardLayout | None:
        """Returns how to split a weight that the user gave no setting for, or None."""
        if not self._splits_large or being_created().request.partitioner is not None:
            return None
        # Measure the link only if the answer matters.
        if not may_be_split(spec):
            return None
        partitioner = partitioner_for(spec, self.num_ps, self.seconds_per_byte())
        if partitioner is None:
            return None
        partition = partition_of(partitioner, spec, self.num_ps, self.placement)
        return None if partition is None else layout_of(partition, DIV, spec.name)

    def check_slot(self, spec: VariableSpec, weight: Any) -> None:
        """Checks an optimizer slot before it is created next to its weight."""
        if isinstance(self.placement, PartitioningPlacement):
            self.placement.check_slot(spec, weight)

    def created(self, spec: VariableSpec, variable: Any) -> None:
        """Tells the placement that a variable was created where it was to be."""
        if isinstance(self.placement, PartitioningPlacement):
            self.placement.created(spec, variable)

    def check_complete(self, weights: Iterable[Any]) -> None:
        """Checks before a model's first step that all variables were created."""
        if isinstance(self.placement, PartitioningPlacement):
            self.placement.check_complete(weights)

    def record(self, variable: ParameterServerVariable) -> None:
        """Notes a variable, or a shard of one, that was created."""
        name = being_created().path or variable.name.removesuffix(":0")
        spec = spec_of(name, variable.shape, variable.dtype)
        device = tf.DeviceSpec.from_string(variable.device)
        placed = PlacedVariable(spec, device.task)
        self._placed.append((weakref.ref(variable), placed))

    def report(self) -> tuple[PlacedVariable, ...]:
        """Returns the variables that still exist, in creation order.

        A table that grows has the rows that ids have: what is reserved takes no memory.
        """
        return tuple(
            _in_use(variable, placed)
            for reference, placed in self._placed
            if (variable := reference()) is not None
        )

    def existing(self) -> list[tuple[ParameterServerVariable, str]]:
        """Returns the variables that still exist, with their names."""
        return [
            (variable, placed.spec.name)
            for reference, placed in self._placed
            if (variable := reference()) is not None
        ]

    def of_handles(
        self, handles: Iterable[tf.Tensor]
    ) -> list[tuple[ParameterServerVariable, str]]:
        """Returns the variables of these handles, with their names.

        A handle of another object, such as a lookup table, is left out.
        """
        # Keyed by identity, because tensors such as handles compare by element.
        known = {
            id(variable.handle): (variable, name) for variable, name in self.existing()
        }
        return [known[id(each)] for each in handles if id(each) in known]


def _in_use(
    variable: ParameterServerVariable, placed: PlacedVariable
) -> PlacedVariable:
    if variable.rows_in_use is None:
        return placed
    shape = (variable.rows_in_use(), *placed.spec.shape[1:])
    return dataclasses.replace(
        placed, spec=dataclasses.replace(placed.spec, shape=shape)
    )
