"""The graph of a Keras model's layers, as it is measured."""

import keras
import numpy as np
import pytest

from tfdist.research import (
    Device,
    UnknownGraphError,
    measure_layers,
    place_layers,
)
from tfdist.research.model_parallel.estimated import estimate_layers

from ..support.raising import raises


def two_towers():
    """One tower for both inputs, then a sum of two layers."""
    inside = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="relu", name="hidden")(inside)
    tower = keras.Model(
        inside, keras.layers.Dense(4, name="code")(hidden), name="tower"
    )
    user, item = keras.Input((8,), name="user"), keras.Input((8,), name="item")
    score = keras.layers.Dot(1, name="score")([tower(user), tower(item)])
    bias = keras.layers.Dense(1, name="bias")(user)
    return keras.Model([user, item], keras.layers.Add(name="sum")([score, bias]))


def edges_of(graph):
    return {(edge.source, edge.target): edge for edge in graph.edges}


@pytest.fixture(scope="module", params=["measured", "estimated"])
def graph(request):
    model = two_towers()
    model.compile("adam", "mse")
    if request.param == "measured":
        return measure_layers(model, batch_size=2, repeats=1)
    return estimate_layers(model, batch_size=2, flops=1e9)


def test_models_within_the_model_count_as_their_layers(graph):
    assert {node.name for node in graph.nodes} == {
        *("user", "item", "bias", "score", "sum"),
        *("tower/hidden", "tower/hidden#2", "tower/code", "tower/code#2"),
    }
    assert set(edges_of(graph)) == {
        ("user", "tower/hidden"),
        ("user", "bias"),
        ("item", "tower/hidden#2"),
        ("tower/hidden", "tower/code"),
        ("tower/hidden#2", "tower/code#2"),
        ("tower/code", "score"),
        ("tower/code#2", "score"),
        ("score", "sum"),
        ("bias", "sum"),
    }


def test_a_shared_layer_is_one(graph):
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["tower/hidden"].unit == nodes["tower/hidden#2"].unit
    assert nodes["tower/hidden"].unit != nodes["tower/code"].unit
    # Adam keeps two slots of each weight.
    assert nodes["tower/hidden"].weights == 3 * 4 * (8 * 16 + 16)
    assert nodes["score"].weights == 0


def test_bytes_of_tensors_are_those_of_a_batch(graph):
    edges = edges_of(graph)
    assert edges["tower/hidden", "tower/code"].size == 2 * 16 * 4
    assert edges["tower/hidden", "tower/code"].has_gradient
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["tower/hidden"].activations == 2 * 16 * 4


def test_nothing_flows_back_to_the_inputs(graph):
    assert edges_of(graph)["user", "bias"].has_gradient is False
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["user"].backward == 0


def test_a_layer_takes_time():
    # So much to compute that no other program on the machine can hide it.
    inputs = keras.Input((256,))
    model = keras.Model(inputs, keras.layers.Dense(1024, name="wide")(inputs))
    graph = measure_layers(model, batch_size=1024)
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["wide"].forward > 0
    assert nodes["wide"].weights == 4 * (256 * 1024 + 1024)


def test_layers_alike_are_measured_once(monkeypatch):
    from tfdist.research.model_parallel import measured

    seen = []
    whole = measured._Measuring._measure

    def counted(self, operation, args, kwargs):
        seen.append(operation.name)
        return whole(self, operation, args, kwargs)

    monkeypatch.setattr(measured._Measuring, "_measure", counted)
    layers = [keras.layers.Dense(8, name=f"d{i}") for i in range(4)]
    measure_layers(keras.Sequential([keras.Input((8,)), *layers]), repeats=1)
    assert seen == ["d0"]


def test_measuring_changes_no_weight_and_no_state():
    kinds = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), *kinds])
    variables = [v for layer in model.layers for v in layer.variables]
    before = [np.array(v) for v in variables]
    measure_layers(model, repeats=1)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_integers_have_no_gradient():
    ids = keras.Input((3,), dtype="int32", name="ids")
    rows = keras.layers.Embedding(10, 4, name="rows")(ids)
    model = keras.Model(ids, keras.layers.Dense(2, name="head")(rows))
    edges = edges_of(measure_layers(model, batch_size=2, repeats=1))
    assert edges["ids", "rows"].size == 2 * 3 * 4
    assert not edges["ids", "rows"].has_gradient
    assert edges["rows", "head"].has_gradient


def test_what_is_not_trained_has_no_backward_computation():
    inputs = keras.Input((4,))
    scaled = keras.layers.Rescaling(2.0, name="scale")(inputs)
    frozen = keras.layers.Dense(4, name="frozen", trainable=False)(scaled)
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(frozen))
    graph = measure_layers(model, repeats=1)
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["scale"].backward == nodes["frozen"].backward == 0
    assert edges_of(graph)["frozen", "head"].has_gradient is False


def test_operations_on_tensors_are_nodes_too():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4, name="hidden")(inputs)
    model = keras.Model(inputs, keras.ops.relu(hidden + 1.0) * hidden)
    graph = measure_layers(model, repeats=1)
    assert len(graph.nodes) == 5
    assert sum(edge.source == "hidden" for edge in graph.edges) == 2


def test_an_estimate_follows_the_shapes():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, padding="same", name="conv"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(10, name="head"),
        ]
    )
    graph = estimate_layers(model, batch_size=2, flops=1e9)
    nodes = {node.name: node for node in graph.nodes}
    conv = 2 * (2 * 8 * 8) * (3 * 3 * 3 * 4) / 1e9
    assert nodes["conv"].forward == pytest.approx(conv)
    assert nodes["conv"].backward == pytest.approx(2 * conv)
    assert nodes["head"].forward == pytest.approx(2 * 2 * (8 * 8 * 4 * 10) / 1e9)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


def sequential(*first):
    return keras.Sequential([*first, keras.layers.Dense(1)])


def called():
    model = Subclassed()
    model(np.ones((1, 2), "float32"))
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Subclassed, "every subclass of keras.Model. Build it from"),
        (called, "or state its layers and costs in a tfdist.research.LayerGraph"),
        (lambda: sequential(), "begin it with keras.Input"),
        (lambda: sequential(keras.Input((None, 2))), "known but for the batch"),
    ],
)
def test_a_model_whose_graph_is_not_known_is_refused(make, message):
    with pytest.raises(UnknownGraphError, match=message):
        place_layers(make(), [Device("a")])


def test_what_is_no_model_is_refused():
    with raises(TypeError, "keras.Model", "LayerGraph"):
        place_layers("model", [Device("a")])
    with raises(ValueError, "repeats", "1"):
        measure_layers(two_towers(), repeats=0)
