"""What a step does to take its turn, and where it does that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import tensorflow as tf


@dataclass(frozen=True)
class Turn:
    """The operations by which one step takes its turn.

    Attributes:
        may_start: Ends once the step may read variables.
        has_computed: Is to wait for the gradients; None if nobody asks.
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
        """Whether an operation is one of the turn's own."""
        return op.name.startswith(self.scope)


class Gate(Protocol):
    """Where each step reports, and may have to wait.

    Attributes:
        device: The device of the ps where it is.
        slot_specs: The specs of the tensors of `slot`.
    """

    device: str
    slot_specs: ClassVar[Sequence[tf.TensorSpec]]

    def slot(self) -> list[tf.Tensor]:
        """Returns what a function needs to know of the worker that runs it.

        Each worker gets its own when it is called. Call it where a function is traced.
        """
        ...

    def around(
        self, step: Callable[[], Any], slot: Sequence[tf.Tensor], size: int
    ) -> tuple[Any, Turn]:
        """Runs a step with the operations of its turn, which are not connected to it.

        Args:
            step: Takes no arguments.
            slot: The tensors of `slot`.
            size: How many steps it is, if they write at once.

        Returns:
            Its result, and the operations.
        """
        ...

    def reset(self) -> None:
        """Forgets all steps. Call it while none is in flight."""
        ...

    def leave(self, worker: int) -> None:
        """Takes a lost worker's step out, so that nobody waits for it."""
        ...
