"""Layers that are split train as in one piece, each part on a device of its own."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.research import Split, split_layers
from tfdist.research.model_parallel.estimated import estimate_layers
from tfdist.research.model_parallel.pipeline import steps
from tfdist.research.model_parallel.splitting.nodes import pieces_of

from ..pipeline.pipeline_cases import (
    OPTIMIZERS,
    assert_alike,
    assert_close,
    batch_of,
    graph_of_step,
    logical_devices,  # noqa: F401
    train,
    weights_of,
)
from ..support.raising import raises

pytestmark = pytest.mark.own_process

layers = keras.layers


def mlp():
    """Whose middle is Megatron's pair, with weights and activities regularized."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu", name="first"),
            layers.Dense(12, "gelu", kernel_regularizer="l2", name="wide"),
            layers.Dense(8, "tanh", bias_regularizer="l1", name="narrow"),
            layers.Dense(5, "softmax", activity_regularizer="l2", name="scores"),
            layers.Dense(3, use_bias=False, name="last"),
        ]
    )


def words(rows=11):
    """A table whose ids are masked, some from its end, and a sequence of matrices."""
    ids = keras.Input((5,), dtype="int32")
    x = layers.Embedding(rows, 8, mask_zero=True, name="table")(ids)
    y = layers.Dense(16, "relu", name="wide")(x)
    x = layers.Dense(8, name="narrow")(y) + x
    x = layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.Model(ids, layers.Dense(3, name="last")(x))


COLUMNS, ROWS_OF = {"wide": 3}, {"narrow": Split(3, "rows")}
PAIR = {"wide": 2, "narrow": 2}


@pytest.mark.in_gate("words-split6-2-2-1f1b-sgd-False")
@pytest.mark.parametrize(
    ("make", "split", "stages", "microbatches", "schedule", "optimizer", "recompute"),
    [
        (mlp, COLUMNS, 2, 4, "gpipe", "adam", False),
        (mlp, ROWS_OF, 2, 1, "1f1b", "momentum", False),
        (mlp, PAIR, 1, 4, "gpipe", "sgd", False),
        (mlp, PAIR, 3, 2, "1f1b", "adam", True),
        (mlp, {"scores": 5, "last": 2, "first": 6}, 1, 2, "gpipe", "momentum", False),
        pytest.param(
            *(words, {"table": 2}, 1, 4, "gpipe", "adam", False), marks=pytest.mark.slow
        ),
        pytest.param(
            *(words, {"table": Split(4, "rows")}, 2, 2, "1f1b", "sgd", False),
            marks=pytest.mark.slow,
        ),
        (words, {"table": Split(3, "rows"), **PAIR}, 2, 4, "gpipe", "momentum", True),
    ],
)
def test_equals_the_plain_layers(
    make, split, stages, microbatches, schedule, optimizer, recompute
):
    strategy = tfdist.research.PipelineStrategy(
        stages, microbatches, schedule, recompute
    )
    ours = train(make, strategy, optimizer, split)
    assert_alike(ours, train(make, None, optimizer), tolerance=1e-5)
    assert {k: len(v) for k, v in strategy.parts_of(ours[0]).items()} == {
        name: getattr(each, "parts", each) for name, each in split.items()
    }
    assert sum(strategy.stages_of(ours[0]), []) == [
        e.name for e in ours[0].layers if not isinstance(e, layers.InputLayer)
    ]


@pytest.mark.parametrize("make", [mlp, words])
def test_equals_the_plain_layers_in_one_place(make):
    split = PAIR if make is mlp else {"table": Split(3, "rows"), **PAIR}
    ours, theirs = train(make, None, "adam", split), train(make, None, "adam")
    assert_alike(ours, theirs, tolerance=1e-5)


def test_without_waiting_it_trains_as_stages_that_do_not_wait():
    strategy = tfdist.research.PipelineStrategy(2, 2, max_staleness=1)
    _, history = train(mlp, strategy, split=PAIR)
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize("split", [COLUMNS, ROWS_OF, PAIR])
def test_each_part_computes_on_its_device_both_ways(split, monkeypatch):
    strategy = tfdist.research.PipelineStrategy(1, 1)
    model, graph = graph_of_step(monkeypatch, mlp, strategy, split=split)
    parts = strategy.parts_of(model)
    for name, devices in parts.items():
        assert len(set(devices)) == len(devices)
        for at, device in enumerate(devices):
            part = pieces_of(model.get_layer(name)).parts[at]
            matmuls = [
                op
                for op in graph.get_operations()
                if op.type == "MatMul"
                and re.search(rf"\b{name}_part_{at}(_\d+)?/", op.name)
            ]
            # Forward, and the gradients by the weights and by the input.
            assert len(matmuls) == 3
            assert {op.device for op in matmuls} == {device}
            for weight in part.weights:
                assert weight.value.device == device
            slots = [
                each
                for each in model.optimizer.variables
                if f"{name}_part_{at}" in each.path
            ]
            assert {each.value.device for each in slots} <= {device}


@pytest.mark.parametrize(
    ("split", "numbers"),
    [
        # Of an input of x numbers and an output of y, as the docstring says.
        (COLUMNS, 2 * 8 + 2 / 3 * 12),
        (ROWS_OF, 2 / 3 * 12 + 2 * 8),
        (PAIR, 1 * 8 + 1 * 8),
        ({"wide": 2, "narrow": 4}, (8 + 1 / 2 * 12) + (3 / 4 * 12 + 3 * 8)),
    ],
)
def test_sends_the_bytes_that_the_formula_says(split, numbers, monkeypatch):
    strategy = tfdist.research.PipelineStrategy(1, 1)
    model, graph = graph_of_step(monkeypatch, mlp, strategy, split=split)
    devices = set(sum(strategy.parts_of(model).values(), []))
    sent = {
        (each.name, op.device): each
        for op in graph.get_operations()
        for each in op.inputs
        if each.dtype == tf.float32 and each.shape.rank != 0
        if {op.device, each.op.device} <= devices and op.device != each.op.device
    }
    assert all(each.shape.rank == 2 for each in sent.values())
    # Their rows are those of the batch.
    assert {each.shape[0] for each in sent.values()} == {None}
    total = sum(each.shape[1] for each in sent.values())
    assert total == pytest.approx(2 * numbers)


def test_the_gradient_of_each_part_of_a_table_has_some_rows_only(monkeypatch):
    seen = []
    update = steps.update

    def noted(model, pipeline, gradients):
        for stage, found in gradients.items():
            names = [each.path for each in pipeline.stages[stage].weights]
            seen.extend(zip(names, found, strict=True))
        return update(model, pipeline, gradients)

    monkeypatch.setattr(steps, "update", noted)
    train(
        words, tfdist.research.PipelineStrategy(1, 2), split={"table": Split(3, "rows")}
    )
    of_table = [found for path, found in seen if "table_part" in path]
    assert len(of_table) >= 3
    assert all(isinstance(each, tf.IndexedSlices) for each in of_table)


def test_an_id_that_the_table_lacks_is_an_error_as_in_one_piece():
    model = split_layers(words(), {"table": Split(3, "rows")})
    for ids in ([[11] * 5], [[-12] * 5]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            model(np.array(ids))


def test_is_saved_in_one_piece(tmp_path):
    strategy = tfdist.research.PipelineStrategy(2, 2)
    split = {"table": Split(3, "rows"), "wide": 2, "narrow": 4}
    model, _ = train(words, strategy, "adam", split)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(pieces_of(loaded.get_layer("table")).parts) == 3
    x, _ = batch_of(model)
    np.testing.assert_allclose(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5
    )
    slots = zip(loaded.optimizer.variables, model.optimizer.variables, strict=True)
    for one, other in slots:
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6)
    model.save_weights(tmp_path / "model.weights.h5")
    plain, otherwise = words(), split_layers(words(), {"table": 4, "wide": 3})
    for each in (plain, otherwise):
        for name in ("model.weights.h5", "model.keras"):
            each.set_weights([np.zeros_like(w) for w in each.get_weights()])
            each.load_weights(tmp_path / name)
            assert_close(weights_of(each), weights_of(model), rtol=0)
    # And back from a plain model.
    plain.save_weights(tmp_path / "plain.weights.h5")
    with strategy.scope():
        model.set_weights([np.zeros_like(w) for w in model.get_weights()])
        model.load_weights(tmp_path / "plain.weights.h5")
    assert_close(weights_of(plain), weights_of(model), rtol=0)
    with raises(ValueError, "another model"):
        split_layers(words(7), {"table": 2}).load_weights(tmp_path / "plain.weights.h5")
    # By part, for a model with the same parts.
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    same = split_layers(words(), split)
    tf.train.Checkpoint(model=same).read(path).assert_existing_objects_matched()
    assert_close(weights_of(same), weights_of(model), rtol=0)
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(served.serve(x), loaded(x), atol=1e-5)


def test_a_plan_splits_a_table_that_fits_no_device_and_trains_it():
    def large():
        return words(500)

    graph = estimate_layers(large(), batch_size=16, flops=1e9)
    devices = [tfdist.research.Device(name, memory=500 * 8 * 4) for name in "abc"]
    links = tfdist.research.Links(1e9, 1e-6)
    with raises(tfdist.research.DoesNotFitError, "'table' alone"):
        tfdist.research.place_layers(graph, devices, links)
    plan = tfdist.research.place_layers(graph, devices, links, split=2)
    assert "table" in plan.split
    plan = tfdist.research.LayerPlan.from_json(plan.to_json())
    strategy = tfdist.research.PipelineStrategy(plan, 2)
    ours = train(large, strategy, "adam", plan)
    assert_alike(ours, train(large, None, "adam"), tolerance=1e-5)
    # The devices of the plan are a, b and c; those here, in their order.
    for name, on in strategy.parts_of(ours[0]).items():
        assert ["abc"[int(each[-1])] for each in on] == [
            plan.placed[f"{name}_part_{at}"] for at in range(len(on))
        ]


def test_a_plan_of_a_model_that_is_split_already():
    model = split_layers(words(), {"table": 3, **PAIR})
    graph = estimate_layers(model, batch_size=16, flops=1e9)
    assert {"table_part_2", "wide_part_1", "narrow_part_0"} <= set(graph.units)
    # Megatron's pair: nothing is joined between.
    assert "wide_join" not in graph.units
    assert all(each.matrix is None for each in graph.nodes if "_part_" in each.name)
    plan = tfdist.research.place_layers(
        graph, [tfdist.research.Device("a"), tfdist.research.Device("b")]
    )
    strategy = tfdist.research.PipelineStrategy(plan, 2)
    ours = train(words, strategy, split={"table": 3, **PAIR})
    assert_alike(ours, train(words), tolerance=1e-5)


def test_a_plan_and_a_model_that_are_split_otherwise_are_refused():
    graph = estimate_layers(mlp(), batch_size=16, flops=1e9)
    links, devices = (
        tfdist.research.Links(1e12),
        [tfdist.research.Device("a"), tfdist.research.Device("b")],
    )
    split = tfdist.research.place_layers(graph, devices, links, split=2)
    assert split.split
    with raises(tfdist.research.PipelineError, "split_layers(model, plan)"):
        train(mlp, tfdist.research.PipelineStrategy(split, 2))
    whole = tfdist.research.place_layers(graph, devices, links)
    with raises(tfdist.research.PipelineError, "no layer", "'wide'"):
        train(mlp, tfdist.research.PipelineStrategy(whole, 2), split={"wide": 2})


def test_a_layer_on_both_sides_of_a_split_one_is_refused():
    def shared():
        again = layers.Dense(6, name="again")
        x = keras.Input((6,))
        y = layers.Dense(6, name="between")(again(x))
        return keras.Model(x, layers.Dense(3)(again(y)))

    with raises(tfdist.research.PipelineError, "'again'", "several times"):
        train(shared, tfdist.research.PipelineStrategy(1, 2), split={"between": 2})


class Normalized(keras.optimizers.SGD):
    """Looks at the norm of each gradient, as a user's own optimizer may."""

    def update_step(self, gradient, variable, learning_rate):
        unit = gradient / keras.ops.norm(gradient)
        super().update_step(unit, variable, learning_rate)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, clipnorm=1.0),
        *(keras.optimizers.Adafactor, Normalized),
        lambda: keras.optimizers.LossScaleOptimizer(Normalized()),
    ],
)
def test_optimizers_that_look_at_a_whole_weight_are_refused(optimizer, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "whole", optimizer)
    with raises(tfdist.research.PipelineError, "wide", "split"):
        train(mlp, tfdist.research.PipelineStrategy(2, 2), "whole", {"wide": 2})
