"""What the layers of a Keras model are estimated to cost, where a pipeline is cut."""

import keras
import pytest

from tfdist import _tf
from tfdist.research.model_parallel.estimated import estimate_layers
from tfdist.research.model_parallel.pipeline.assign import assign, graph_of_calls
from tfdist.research.model_parallel.pipeline.nominal import CPU, ROWS
from tfdist.research.model_parallel.pipeline.step_time import Execution
from tfdist.research.model_parallel.schedule import make_schedule

layers = keras.layers


def graph_of(model):
    return graph_of_calls(model, list(_tf.nodes_of(model)), CPU)


def cnn_with_skip():
    image = keras.Input((8, 8, 3))
    x = first = layers.Conv2D(4, 3, padding="same", name="first")(image)
    x = layers.Activation("relu", name="relu")(x)
    x = layers.Conv2D(4, 3, padding="same", name="second")(x)
    x = layers.add([x, first], name="add")
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(image, layers.Dense(3, name="out")(x))


def test_costs_are_those_of_estimate_layers():
    model = cnn_with_skip()
    ours = graph_of(model)
    theirs = estimate_layers(
        model, batch_size=ROWS, flops=CPU.flops, bandwidth=CPU.bandwidth
    )
    expected = {each.name: each for each in theirs.nodes}
    for node in ours.nodes[:-1]:
        other = expected[node.name.split()[1]]
        assert node.forward == pytest.approx(other.forward)
        assert node.backward == pytest.approx(other.backward)
        assert (node.weights, node.activations) == (other.weights, other.activations)

    def edges(graph):
        return {
            (e.source.split()[-1], e.target.split()[-1], e.size, e.has_gradient)
            for e in graph.edges
            if not e.source.startswith("keras_tensor")
        }

    outputs = ("out", "outputs", 3 * 4 * ROWS, True)
    assert edges(ours) == edges(theirs) - edges_of_inputs(theirs) | {outputs}


def edges_of_inputs(graph):
    return {
        (e.source.split()[-1], e.target, e.size, e.has_gradient)
        for e in graph.edges
        if not e.has_gradient
    }


def test_what_is_not_trained_has_no_gradient():
    model = cnn_with_skip()
    for name in "first", "second":
        model.get_layer(name).trainable = False
    graph = graph_of(model)
    trained = {"out", "outputs"}
    for node in graph.nodes:
        assert bool(node.backward) == (node.name.split()[-1] == "out"), node
    for edge in graph.edges:
        assert edge.has_gradient == (edge.source.split()[-1] in trained), edge


def test_a_model_within_the_model_counts_as_one():
    inner = cnn_with_skip()
    image = keras.Input((8, 8, 3))
    outer = keras.Model(image, layers.Dense(2)(inner(image)))
    whole = graph_of(outer).nodes[0]
    parts = graph_of(inner).nodes
    assert whole.forward == pytest.approx(sum(each.forward for each in parts))
    assert whole.weights == sum(each.weights for each in parts)


def test_lengths_may_be_unknown_and_weights_shared():
    words = keras.Input((None,), dtype="int32")
    dense = layers.Dense(8, name="dense")
    x = layers.Embedding(11, 8)(words)
    x = layers.LSTM(8, return_sequences=True)(dense(x) + dense(x))
    model = keras.Model(words, layers.Dense(3, name="out")(x))
    graph = graph_of(model)
    first, second = [each for each in graph.nodes if each.name.endswith(" dense")]
    assert first.unit == second.unit
    assert first.weights == second.weights == 4 * (8 * 8 + 8)
    assert sorted(set(assigned(model))) == [0, 1]


def assigned(model, tasks=(0, 1)):
    devices = [f"/task:{task}/device:CPU:{at}" for at, task in enumerate(tasks)]
    execution = Execution(make_schedule("gpipe", 2, 4))
    return assign(model, list(_tf.nodes_of(model)), "auto", devices, execution)


def test_calls_of_a_layer_stay_together():
    given = keras.Input((64,))
    shared = layers.Dense(64)
    x = shared(layers.Dense(64)(layers.Dense(64)(shared(given))))
    model = keras.Model(given, layers.Dense(64)(x))
    assert assigned(model) == [0, 0, 0, 0, 1]


def test_the_outputs_of_a_model_go_to_its_last_stage():
    x = keras.Input((4,))
    hidden = layers.Dense(64, name="hidden")(x)
    model = keras.Model(x, [hidden, layers.Dense(3, name="out")(hidden)])
    graph = graph_of(model)
    to_the_end = {e.source.split()[-1] for e in graph.edges if e.target == "outputs"}
    assert to_the_end == {"hidden", "out"}


def wide(widths):
    model = keras.Sequential([keras.Input((256,))])
    for at, width in enumerate(widths):
        model.add(layers.Dense(width, name=f"d{at}"))
    return _tf.functional_of(model)


@pytest.mark.parametrize(("tasks", "first"), [((0, 0), 4), ((0, 1), 3)])
def test_workers_are_cut_where_less_crosses(tasks, first):
    """Equal stages are cut at 4,096 numbers a row, others at 128."""
    model = wide([256, 256, 128, 4096, 64, 128, 256])
    assert assigned(model, tasks).count(0) == first
