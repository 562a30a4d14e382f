"""A Keras step as a function that a worker runs, traced once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.keras.feed import BatchLayout


class PackedLogs:
    """The logs of a step as one vector, so that they cross the network at once."""

    def __init__(self) -> None:
        self._structure: Any = None
        self._shapes: list[tuple[int, ...]] = []

    def pack(self, logs: Any) -> tf.Tensor:
        """Returns a float64 vector of all the values in the logs.

        Raises:
            ValueError: If a value has no fixed shape, or is not a number.
        """
        values = [tf.convert_to_tensor(value) for value in tf.nest.flatten(logs)]
        for value in values:
            is_number = value.dtype.is_floating or value.dtype.is_integer
            if not (is_number or value.dtype.is_bool):
                raise ValueError(
                    "train_step and test_step return numbers, whose latest values "
                    f"the chief shows; received {value.dtype.name} in {logs}"
                )
            if not value.shape.is_fully_defined():
                raise ValueError(
                    "train_step and test_step return values of a fixed shape; "
                    f"received the shape {value.shape} in {logs}. Reduce it over the "
                    "batch first, for example with tf.reduce_mean"
                )
        self._structure = tf.nest.map_structure(lambda _: None, logs)
        self._shapes = [tuple(value.shape) for value in values]
        flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in values]
        return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.float64)

    def unpack(self, vector: np.ndarray) -> Any:
        """Returns the logs that `pack` made the vector of."""
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        parts = np.split(vector, np.cumsum(sizes)[:-1]) if sizes else []
        values = [
            part.reshape(shape)[()]
            for part, shape in zip(parts, self._shapes, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._structure, values)


def trace_step(
    strategy: tf.distribute.Strategy, step: Callable[[Any], Any], layout: BatchLayout
) -> Any:
    """Traces one step on one batch.

    Args:
        strategy: Whose replica runs the step.
        step: Takes a batch and returns a structure of tensors.
        layout: Of the batch.

    Returns:
        A `ConcreteFunction` of the flat batch.
    """

    def run(*tensors: tf.Tensor) -> Any:
        return strategy.run(step, args=(layout.pack(tensors),))

    return _trace(strategy, run, layout.tensor_specs)


def trace_steps(
    strategy: tf.distribute.Strategy,
    step: Callable[[Any], tf.Tensor],
    layout: BatchLayout,
    steps: int,
) -> Any:
    """Traces a loop of up to `steps` steps, each on a batch of its own.

    Args:
        strategy: Whose replica runs the steps.
        step: Takes a batch and returns a vector.
        layout: Of each batch.
        steps: The number of batches that the function takes.

    Returns:
        A `ConcreteFunction` of the number of steps to run, an int32 scalar, and
        then every flat batch. It returns the vector of the last step that it ran.
    """
    specs = layout.tensor_specs

    def run(count: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
        batches = [
            _as_array(tensors[i :: len(specs)], spec) for i, spec in enumerate(specs)
        ]

        def run_one(i: tf.Tensor) -> tf.Tensor:
            batch = [
                tf.ensure_shape(array.read(i), spec.shape)
                for array, spec in zip(batches, specs, strict=True)
            ]
            return strategy.run(step, args=(layout.pack(batch),))

        return _repeat(run_one, count)

    return _trace(strategy, run, [tf.TensorSpec([], tf.int32), *specs * steps])


def trace_steps_reading(
    strategy: tf.distribute.Strategy,
    step: Callable[[Any], tf.Tensor],
    layout: BatchLayout,
    iterators: Any,
    steps: int,
) -> Any:
    """Traces steps whose batches the worker reads itself.

    Args:
        strategy: Whose replica runs the steps.
        step: Takes a batch and returns a vector.
        layout: Of each batch.
        iterators: One a worker.
        steps: The number of steps.

    Returns:
        A `ConcreteFunction` of a worker's iterator. It returns the vector of the last
        step.
    """

    def run(iterator: Any) -> tf.Tensor:
        def run_one(_: tf.Tensor) -> tf.Tensor:
            batch = layout.pack(layout.flatten(next(iterator)))
            return strategy.run(step, args=(batch,))

        if steps == 1:
            return run_one(tf.constant(0))
        return _repeat(run_one, tf.constant(steps))

    return _trace(strategy, run, [_tf.iterator_spec(iterators)])


def _repeat(run_one: Callable[[tf.Tensor], tf.Tensor], count: tf.Tensor) -> tf.Tensor:
    """The vector of the last of `count` runs, one after the other."""
    _, result = tf.while_loop(
        lambda i, _: i < count,
        lambda i, _: (i + 1, run_one(i)),
        (tf.constant(0), tf.zeros([0], tf.float64)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
        parallel_iterations=1,
    )
    return result


def _as_array(tensors: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.TensorArray:
    array = tf.TensorArray(
        spec.dtype,
        size=len(tensors),
        infer_shape=False,
        element_shape=spec.shape,
        clear_after_read=False,
    )
    for i, tensor in enumerate(tensors):
        array = array.write(i, tensor)
    return array


def _trace(
    strategy: tf.distribute.Strategy, run: Callable[..., Any], specs: Sequence[Any]
) -> Any:
    with strategy.scope():
        return tf.function(run, autograph=False).get_concrete_function(*specs)
