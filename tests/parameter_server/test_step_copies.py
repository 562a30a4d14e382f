"""Copies of the operations of a step."""

from typing import Any

import pytest
import tensorflow as tf

from tfdist import _tf
from tfdist.graph.functions import all_nodes
from tfdist.parameter_server.step_graph import copies


def graph_of(step: Any) -> Any:
    return tf.function(step).get_concrete_function(tf.TensorSpec([3])).graph


def looped(x: tf.Tensor) -> tf.Tensor:
    array = tf.TensorArray(tf.float32, 3)
    for i in tf.range(3):
        array = array.write(i, x[i] + tf.random.normal([]))
    return array.stack()


def checked(x: tf.Tensor) -> tf.Tensor:
    tf.debugging.assert_positive(x)
    tf.print(x)
    return tf.debugging.check_numerics(x, "no number")


@tf.function
def seeded_inside(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.normal([3], seed=1)


@pytest.fixture(autouse=True)
def no_seed_of_the_program() -> None:
    tf.random.set_seed(None)


@pytest.mark.parametrize(
    "step",
    [
        looped,
        checked,
        lambda x: tf.random.shuffle(x, seed=1),
        lambda x: tf.nn.dropout(x, 0.5, seed=1),
        lambda x: tf.random.stateless_normal([3], seed=[1, 2]) + x,
        lambda x: tf.cond(x[0] > 0, lambda: x, lambda: tf.random.uniform([3])),
    ],
    ids=["loop", "checks", "shuffle", "dropout", "stateless", "branch"],
)
def test_may_be_copied(step: Any) -> None:
    assert copies.kept_and_seeded(graph_of(step))[0] == set()


def test_state_in_a_variable_is_shared() -> None:
    generator = tf.random.Generator.from_seed(1)
    total = tf.Variable(0.0)

    def step(x: tf.Tensor) -> tf.Tensor:
        total.assign_add(x[0])
        return x + generator.normal([3])

    assert copies.kept_and_seeded(graph_of(step))[0] == set()


def test_may_not_be_copied() -> None:
    def learns(x: tf.Tensor) -> tf.Tensor:
        sampled = tf.raw_ops.ThreadUnsafeUnigramCandidateSampler(
            true_classes=tf.zeros([3, 1], tf.int64),
            num_true=1,
            num_sampled=1,
            unique=False,
            range_max=3,
        )
        return sampled.sampled_expected_count + x

    kept, _ = copies.kept_and_seeded(graph_of(learns))
    assert kept == {"ThreadUnsafeUnigramCandidateSampler"}


def seeded_in_a_loop(x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(3):
        x += seeded_inside(x)
    return x


@pytest.mark.parametrize(
    "step",
    [
        lambda x: tf.random.normal([3], seed=1) + x,
        lambda x: seeded_inside(x),
        lambda x: tf.cond(x[0] > 0, lambda: x, lambda: seeded_inside(x)),
        seeded_in_a_loop,
    ],
    ids=["itself", "function", "branch", "loop"],
)
def test_copies_draw_without_their_seed(step: Any) -> None:
    graph = graph_of(step)
    assert copies.kept_and_seeded(graph) == (set(), {"RandomStandardNormal"})
    definition = graph.as_graph_def()
    _tf.add_functions(copies.without_seeds(definition))

    def run(x: tf.Tensor) -> Any:
        (result,) = tf.graph_util.import_graph_def(
            definition, {graph.inputs[0].name: x}, [graph.outputs[0].name]
        )
        return result

    assert copies.kept_and_seeded(graph_of(run)) == (set(), set())
    assert {node.op for node in all_nodes(graph_of(run).as_graph_def())} >= {
        "RandomStandardNormal"
    }
    assert copies.kept_and_seeded(graph_of(step))[1], "the step itself keeps its seed"
    # Two functions are two streams. With the seed, both would begin it anew.
    drawn = [tf.function(run)(-tf.ones(3)).numpy() for _ in range(2)]
    assert (drawn[0] != drawn[1]).all()
