"""The functions that workers run: one or more steps on the batches of a message."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.fit import message
from tfdist.parameter_server.step_graph.step_graph import StepGraph

_LONGEST_CHUNK = 10
_LARGEST_CHUNK = 20_000


class WorkerFunction:
    """Makes functions of a step, which is traced once.

    Steps follow each other without a loop, since TensorFlow sends six messages per
    iteration of a loop that spans tasks. Many steps are a loop over chunks of them.

    Args:
        strategy: The strategy whose replica runs the steps.
        step: Takes a batch. If more than one step is to run, it returns a vector.
        structure: The structure of each batch.
    """

    def __init__(
        self,
        strategy: Any,
        step: Callable[[Any], Any],
        structure: BatchStructure,
    ) -> None:
        self._strategy = strategy
        self._structure = structure

        def run(*tensors: tf.Tensor) -> Any:
            batch = message.pack(structure, list(tensors))
            return strategy.run(step, args=(batch,))

        self.step = StepGraph(strategy, run, message.tensor_specs(structure))

    @property
    def chunk(self) -> int:
        """The most steps that follow each other without a loop."""
        return max(1, min(_LONGEST_CHUNK, _LARGEST_CHUNK // self.step.size))

    def on_rows(self, steps: int) -> Any:
        """Returns a function of `steps` batches, as rows; of any number if it is 0."""
        spec = tf.TensorSpec(
            [steps or None, len(message.tensor_specs(self._structure))], tf.string
        )
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

    def _steps(self, batch: Callable[[Any], list[tf.Tensor]], steps: int) -> Any:
        """Adds steps; returns the result of the last one."""
        chunks, rest = divmod(steps, self.chunk)
        if chunks > 1:
            result = self._loop(batch, chunks)
            first = chunks * self.chunk
        else:
            first = 0
        for i in range(first, steps):
            result = self.step.add(batch(i), f"step_{i - first}")
        return _unless_empty(result)

    def _loop(self, batch: Callable[[Any], list[tf.Tensor]], chunks: int) -> tf.Tensor:
        # The vector's length is known only once `body` has been traced, after the loop
        # needs an initial value. So the loop starts from an empty vector.
        shape = None

        def body(i: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            nonlocal shape
            for step in range(self.chunk):
                vector = self.step.add(batch(i + step), f"step_{step}")
            shape = vector.shape
            return i + self.chunk, vector

        _, last = tf.while_loop(
            lambda i, _: i < chunks * self.chunk,
            body,
            (tf.constant(0), tf.zeros([0], tf.float64)),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
            parallel_iterations=1,
        )
        last.set_shape(shape)
        return last

    def _trace(self, run: Callable[[Any], Any], spec: Any) -> Any:
        with self._strategy.scope():
            return tf.function(run, autograph=False).get_concrete_function(spec)


def _unless_empty(result: Any) -> Any:
    # Each result costs a message, even if it is empty.
    is_empty = isinstance(result, tf.Tensor) and result.shape.num_elements() == 0
    return None if is_empty else result
