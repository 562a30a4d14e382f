"""How the variables of a Keras model are split over several ps."""

from collections.abc import Callable
from typing import Any

from tfdist.placement.large_weights import may_be_split, partitioner_for
from tfdist.placement.partition import PartitionError
from tfdist.placement.partitioners import partition_of
from tfdist.placement.placement import PartitioningPlacement, Placement, VariableSpec
from tfdist.variables.creation import requested
from tfdist.variables.layout import DIV, Layout, layout_of


class Sharding:
    """Decides which variables are split, and how.

    Large weights of which nobody has said anything are split if `splits_large`, where the link
    of a worker is what binds: `seconds_per_byte` returns 0 where it is not.
    """

    def __init__(
        self,
        placement: Placement,
        partitioner: Callable[..., Any] | None,
        num_ps: int,
        splits_large: bool,
        seconds_per_byte: Callable[[], float],
    ) -> None:
        self._placement = placement
        self._partitioner = partitioner
        self._num_ps = num_ps
        self._splits_large = splits_large
        self._seconds_per_byte = seconds_per_byte

    def layout(self, spec: VariableSpec) -> Layout | None:
        """Returns how to split a Keras variable, or None to leave it unsplit."""
        request = requested()
        if isinstance(self._placement, PartitioningPlacement):
            partition = self._placement.partition(spec, self._num_ps)
        else:
            partitioner = request.partitioner or self._partitioner
            if partitioner is None:
                return None
            partition = partition_of(partitioner, spec, self._num_ps, self._placement)
        if partition is None or len(partition.bounds) == 1:
            return None
        # A partitioner and a plan may be the user's own.
        partition.check(spec, self._num_ps)
        if request.rows_only and partition.axis:
            raise PartitionError(
                f"{spec.name} of shape {spec.shape} can be split by rows only, because "
                "it is looked up by row or uses the 'mod' layout; the partitioner "
                f"splits axis {partition.axis}. Use a partitioner that splits axis 0"
            )
        return layout_of(partition, request.partition_strategy, spec.name)

    def layout_of_large(self, spec: VariableSpec) -> Layout | None:
        """Returns how to split a weight for which nobody has said anything, or None."""
        if not self._splits_large or requested().partitioner is not None:
            return None
        # Not to measure the link for nothing.
        if not may_be_split(spec):
            return None
        partitioner = partitioner_for(spec, self._num_ps, self._seconds_per_byte())
        if partitioner is None:
            return None
        partition = partition_of(partitioner, spec, self._num_ps, self._placement)
        return None if partition is None else layout_of(partition, DIV, spec.name)
