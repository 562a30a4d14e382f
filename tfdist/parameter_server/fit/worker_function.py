"""The functions that workers run: one or more steps on the batches of a message."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.fit import message
from tfdist.parameter_server.step_graph.local import LocalSteps
from tfdist.parameter_server.step_graph.step_graph import StepGraph
from tfdist.variables.fused_update import leaving_updates_to_keras

LONGEST_CHUNK = 10
"""The most steps that follow each other without a loop: more gain little."""

LARGEST_CHUNK = 2_500
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

    Attributes:
        step: The step.
    """

    def __init__(
        self,
        strategy: Any,
        step: Callable[[Any], Any],
        structure: BatchStructure,
    ) -> None:
        self._strategy = strategy
        self._structure = structure
        self._specs = message.tensor_specs(structure)

        def run(*tensors: tf.Tensor) -> Any:
            batch = message.pack(structure, list(tensors))
            return strategy.run(step, args=(batch,))

        if strategy.exchange.steps > 1:
            run = leaving_updates_to_keras(run)

        self.step = StepGraph(strategy, run, self._specs)
        # By the number of steps between two exchanges.
        self._exchanges = {1: self.step}

    def on_rows(self, steps: int) -> Any:
        """Returns a function of `steps` batches, given as rows."""
        spec = tf.TensorSpec([steps, len(self._specs)], tf.string)
        return self._trace(
            lambda rows: self._steps(
                lambda i: message.tensors_from_row(self._structure, rows[i]), steps
            ),
            spec,
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
        first, result = 0, None
        if steps // per_chunk > 1:
            first = steps - steps % per_chunk
            result = self._loop(batch, first, per_chunk, most)
        while first < steps:
            result = self._add(batch, first, min(most, steps - first))
            first += most
        return _unless_empty(result)

    def _loop(self, batch: Batch, steps: int, per_chunk: int, most: int) -> tf.Tensor:
        # The vector's length is known only once `body` has been traced, after the loop
        # needs an initial value. So the loop starts from an empty vector.
        shape = None

        def body(i: tf.Tensor, vector: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            nonlocal shape
            for first in range(0, per_chunk, most):
                vector = self._add(batch, i + first, most)
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

    def _add(self, batch: Batch, first: Any, steps: int) -> Any:
        """Adds steps with one exchange."""
        tensors = [each for i in range(steps) for each in batch(first + i)]
        return self._exchange(steps).add(tensors, "step_0")

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
            self._exchanges[steps] = StepGraph(self._strategy, run, specs)
        return self._exchanges[steps]

    def _trace(self, run: Callable[[Any], Any], spec: Any) -> Any:
        with self._strategy.scope():
            return tf.function(run, autograph=False).get_concrete_function(spec)


def _unless_empty(result: Any) -> Any:
    # Each result costs a message, even if it is empty.
    is_empty = isinstance(result, tf.Tensor) and result.shape.num_elements() == 0
    return None if is_empty else result
