"""The functions that workers run: one or more steps on the batches of a message."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.fit import message
from tfdist.parameter_server.gate.gate import Gate
from tfdist.parameter_server.rounds.rounds import TICKET, Rounds
from tfdist.parameter_server.step_graph.local import LocalSteps
from tfdist.parameter_server.step_graph.step_graph import StepGraph
from tfdist.variables.fused_update import leaving_updates_to_keras

LONGEST_CHUNK = 20
"""The most steps that follow each other without a loop: more gain little."""

LARGEST_CHUNK = 5_000
"""The most operations that follow each other without a loop.

Each worker prepares all of them before its first step, in a time that grows faster than
their number. A larger model computes long enough that six more messages per step do not
matter.
"""

Batch = Callable[[Any], list[tf.Tensor]]
"""Returns the tensors of the batch of this number."""


class WorkerFunction:
    """Makes functions of a step, which is traced once.

    Steps follow each other without a loop, since TensorFlow sends six messages per
    iteration of a loop that spans tasks. Many steps are a loop over chunks of them.

    Args:
        strategy: The strategy whose replica runs the steps.
        step: Takes a batch. If more than one step is to run, it returns a vector.
        structure: The structure of each batch.
        gate: Where each step takes its turn, if it does.
        rounds: The rounds that the step is part of; each batch comes with a ticket then.

    Attributes:
        step: The step.
    """

    def __init__(
        self,
        strategy: Any,
        step: Callable[[Any], Any],
        structure: BatchStructure,
        gate: Gate | None = None,
        rounds: Rounds | None = None,
    ) -> None:
        self._strategy = strategy
        self._structure = structure
        self._specs = message.tensor_specs(structure)
        self._tickets = [] if rounds is None else [TICKET]

        def run(*tensors: tf.Tensor) -> Any:
            of_batch = list(tensors[: len(self._specs)])
            batch = message.pack(structure, of_batch)
            if rounds is None:
                return strategy.run(step, args=(batch,))
            return strategy.run(rounds.in_round(step), args=(batch, tensors[-1]))

        # Steps with local copies write together, and take one turn.
        alone = strategy.exchange.steps == 1
        if not alone:
            run = leaving_updates_to_keras(run)

        entered = dict if rounds is None else rounds.entered
        specs = [*self._specs, *self._tickets]
        self._gate = gate
        self.step = StepGraph(
            strategy, run, specs, gate if alone else None, entered=entered
        )
        # By the number of steps between two exchanges.
        self._exchanges = {1: self.step} if alone else {}

    def on_rows(self, steps: int) -> Any:
        """Returns a function of `steps` batches, given as rows."""
        width = len(self._specs) + len(self._tickets)

        def tensors(row: tf.Tensor) -> list[tf.Tensor]:
            of_batch = message.tensors_from_row(self._structure, row)
            return of_batch + [
                tf.ensure_shape(tf.io.parse_tensor(row[-1], spec.dtype), spec.shape)
                for spec in self._tickets
            ]

        return self._trace(
            lambda rows: self._steps(lambda i: tensors(rows[i]), steps),
            tf.TensorSpec([steps, width], tf.string),
        )

    def on_iterator(self, iterator_spec: tf.TypeSpec, steps: int) -> Any:
        """Returns a function of a worker's iterator, which takes `steps` batches."""
        return self._trace(
            lambda iterator: self._steps(
                lambda _: message.tensors_of(self._structure, next(iterator)), steps
            ),
            iterator_spec,
        )

    def _steps(self, batch: Batch, steps: int) -> Any:
        """Adds steps; returns the result of the last one."""
        most = min(self._strategy.exchange.steps, steps)
        size = self._exchange(most).size
        per_chunk = max(1, min(LONGEST_CHUNK // most, LARGEST_CHUNK // size)) * most
        # Captured here, and not within a loop, whose body gets no values at each call.
        slot = [] if self._gate is None else self._gate.slot()
        first, result = 0, None
        if steps // per_chunk > 1:
            first = steps - steps % per_chunk
            result = self._loop(batch, slot, first, per_chunk, most)
        while first < steps:
            result = self._add(batch, slot, first, min(most, steps - first))
            first += most
        return _unless_empty(result)

    def _loop(
        self,
        batch: Batch,
        slot: list[tf.Tensor],
        steps: int,
        per_chunk: int,
        most: int,
    ) -> tf.Tensor:
        # The vector's length is known only once `body` has been traced, after the loop
        # needs an initial value. So the loop starts from an empty vector.
        shape = None

        def body(i: tf.Tensor, vector: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            nonlocal shape
            for first in range(0, per_chunk, most):
                vector = self._add(batch, slot, i + first, most)
            shape = vector.shape
            return i + per_chunk, vector

        _, last = tf.while_loop(
            lambda i, _: i < steps,
            body,
            (tf.constant(0), tf.zeros([0], tf.float64)),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
            parallel_iterations=1,
        )
        last.set_shape(shape)
        return last

    def _add(self, batch: Batch, slot: list[tf.Tensor], first: Any, steps: int) -> Any:
        """Adds steps with one exchange."""
        tensors = [each for i in range(steps) for each in batch(first + i)]
        # The default graph may be that of a loop's body.
        here = map(tf.compat.v1.get_default_graph().capture, slot)
        return self._exchange(steps).add([*tensors, *here], "step_0")

    @functools.cached_property
    def _local_steps(self) -> LocalSteps:
        return LocalSteps(self.step, self._strategy.extended.is_weight)

    def _exchange(self, steps: int) -> StepGraph:
        """Returns a graph of steps of which only the first pulls, and the last pushes."""
        if steps not in self._exchanges:
            local = self._local_steps
            width = len(self._specs)

            def run(*tensors: tf.Tensor) -> Any:
                return local.run(
                    [tensors[i : i + width] for i in range(0, len(tensors), width)]
                )

            specs = self._specs * steps
            self._exchanges[steps] = StepGraph(
                self._strategy, run, specs, self._gate, steps
            )
        return self._exchanges[steps]

    def _trace(self, run: Callable[[Any], Any], spec: Any) -> Any:
        with self._strategy.scope():
            return tf.function(run, autograph=False).get_concrete_function(spec)


def _unless_empty(result: Any) -> Any:
    # Each result costs a message, even if it is empty.
    is_empty = isinstance(result, tf.Tensor) and result.shape.num_elements() == 0
    return None if is_empty else result
