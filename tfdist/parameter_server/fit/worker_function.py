"""Traces Keras steps into functions that workers run."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.fit import message


def trace_steps(
    strategy: tf.distribute.Strategy,
    step: Callable[[Any], Any],
    structure: BatchStructure,
    steps: int,
) -> Any:
    """Traces a function that runs up to `steps` steps in sequence, each on one batch.

    Args:
        strategy: The strategy whose replica runs the steps.
        step: Takes a batch. If `steps` is more than 1, it returns a vector.
        structure: The structure of each batch.
        steps: The maximum number of batches per call.

    Returns:
        A `ConcreteFunction` of the batches' rows. It returns the result of the last
        step.
    """

    def run(rows: tf.Tensor) -> Any:
        def run_one(i: Any) -> Any:
            return strategy.run(step, args=(message.from_row(structure, rows[i]),))

        return _unless_empty(
            run_one(0) if steps == 1 else _repeat(run_one, tf.shape(rows)[0])
        )

    rows = tf.TensorSpec(
        [1 if steps == 1 else None, len(message.tensor_specs(structure))], tf.string
    )
    return _trace(strategy, run, rows)


def trace_steps_reading(
    strategy: tf.distribute.Strategy,
    step: Callable[[Any], Any],
    structure: BatchStructure,
    iterator_spec: tf.TypeSpec,
    steps: int,
) -> Any:
    """Traces a function that runs `steps` steps on batches that the worker reads.

    Args:
        strategy: The strategy whose replica runs the steps.
        step: Takes a batch. If `steps` is more than 1, it returns a vector.
        structure: The structure of each batch.
        iterator_spec: The type spec of a worker's iterator over the batches.
        steps: The number of steps.

    Returns:
        A `ConcreteFunction` of a worker's iterator. It returns the result of the last
        step.
    """

    def run(iterator: Any) -> Any:
        def run_one(_: Any) -> Any:
            tensors = message.tensors_of(structure, next(iterator))
            batch = message.pack(structure, tensors)
            return strategy.run(step, args=(batch,))

        return _unless_empty(
            run_one(0) if steps == 1 else _repeat(run_one, tf.constant(steps))
        )

    return _trace(strategy, run, iterator_spec)


def _repeat(run_one: Callable[[tf.Tensor], tf.Tensor], count: tf.Tensor) -> tf.Tensor:
    # The vector's length is known only once `body` has been traced, after the loop
    # needs an initial value. So the loop starts from an empty vector of unknown length.
    shape = None

    def body(i: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        nonlocal shape
        vector = run_one(i)
        shape = vector.shape
        return i + 1, vector

    _, last = tf.while_loop(
        lambda i, _: i < count,
        body,
        (tf.constant(0), tf.zeros([0], tf.float64)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
        parallel_iterations=1,
    )
    last.set_shape(shape)
    return last


def _unless_empty(result: Any) -> Any:
    # Each result costs a message, even if it is empty.
    is_empty = isinstance(result, tf.Tensor) and result.shape.num_elements() == 0
    return None if is_empty else result


def _trace(
    strategy: tf.distribute.Strategy, run: Callable[[Any], Any], spec: Any
) -> Any:
    with strategy.scope():
        return tf.function(run, autograph=False).get_concrete_function(spec)
