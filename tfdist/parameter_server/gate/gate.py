"""Gates, at which steps take their turns, and the operations of a turn."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.parameter_server.gate.meter import Meter


@dataclass(frozen=True)
class Turn:
    """The operations of one step's turn.

    Attributes:
        may_start: Ends once the step may read variables.
        has_computed: Runs once the gradients exist; None if no gate asks.
        may_write: Ends once it may write; None if it always may.
        has_written: Is to wait for the writes.
        scope: How the names of all operations of the turn begin.
        pulled: Is to tell, on the worker, when it has what it reads; None if nobody asks.
        pushed: Is to tell, on the worker, when it has the gradients; None if nobody asks.
    """

    may_start: tf.Operation
    has_computed: tf.Operation | None
    may_write: tf.Operation | None
    has_written: tf.Operation
    scope: str
    pulled: tf.Tensor | None = None
    pushed: tf.Tensor | None = None

    def has(self, op: tf.Operation) -> bool:
        """Returns True if an operation is one of the turn's own."""
        return op.name.startswith(self.scope)


class Gate(abc.ABC):
    """A gate to which each step reports, and at which it may have to wait.

    Args:
        meter: Counts, on the ps where the gate is.

    Attributes:
        device: The device of that ps.
        slot_specs: The specs of the tensors of `slot`.
    """

    slot_specs: ClassVar[Sequence[tf.TensorSpec]] = (tf.TensorSpec([], tf.resource),)

    def __init__(self, meter: Meter) -> None:
        self.device = meter.device
        self._meter = meter

    def slot(self) -> list[tf.Tensor]:
        """Returns the tensors that tell a function which worker runs it, by number.

        Each worker gets its own when it is called. Call it where a function is traced.
        """
        return self._meter.slot()

    @abc.abstractmethod
    def around(
        self, step: Callable[[], Nest], slot: Sequence[tf.Tensor], size: int
    ) -> tuple[Nest, Turn]:
        """Runs a step with the operations of its turn, which are not connected to it.

        Args:
            step: Takes no arguments.
            slot: The tensors of `slot`.
            size: How many steps it is, if they write at once.

        Returns:
            Its result, and the operations.
        """

    def reset(self) -> None:  # noqa: B027 - not where nobody waits
        """Forgets all steps, where any wait. Call it while none is in flight."""

    def leave(self, worker: int) -> None:  # noqa: B027 - not where nobody waits
        """Takes a lost worker's step out, so that nobody waits for it."""
