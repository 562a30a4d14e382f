"""Saving and loading."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import assert_alike, mlp, row

STEPS = 8


@pytest.fixture(scope="module")
def samples():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def adam_mlp():
    return mlp(optimizer=keras.optimizers.Adam(0.01), metrics=["mae"])


def optimizer_state(model):
    return [variable.numpy() for variable in model.optimizer.variables]


@pytest.fixture(scope="module")
def trained(strategy, samples):
    with strategy.scope():
        model = adam_mlp()
    model.fit(*samples, batch_size=8, verbose=0)
    return model


@pytest.fixture(scope="module")
def saved(strategy, trained, make_directory, wait_for_chief) -> Path:
    """The trained model in every format."""
    path = make_directory("saved")
    trained.save(path / "model.keras")
    trained.save(path / "model.h5")
    trained.save_weights(path / "model.weights.h5")
    if getattr(strategy, "is_chief", True):  # TensorFlow writes wherever it is called.
        tf.train.Checkpoint(model=trained).save(str(path / "checkpoint" / "step"))
    trained.export(path / "exported", verbose=False)
    wait_for_chief()
    return path


@pytest.fixture(scope="module")
def alone(saved, samples, run_program):
    """What a process without a cluster and without tfdist loads."""
    x, _ = samples
    result = run_program("load_without_tfdist.py", saved, input=json.dumps(x.tolist()))
    assert result.returncode == 0, result.stderr
    predictions, state = result.stdout.splitlines()[-2:]
    return json.loads(predictions), json.loads(state)


@pytest.mark.parametrize(
    "saved_as",
    [
        row("model.keras", "model.keras", "`.keras`, loaded without tfdist"),
        row("model.h5", "model.h5", "`.h5`, loaded without tfdist"),
        row(
            "model.weights.h5",
            "model.weights.h5",
            "`.weights.h5`, loaded without tfdist",
        ),
        row("checkpoint", "checkpoint", "`tf.train.Checkpoint`, read without tfdist"),
        row("exported", "exported", "`model.export` (a SavedModel)"),
        pytest.param("exported, loaded by Keras"),
    ],
)
def test_loaded_alone(trained, samples, alone, saved_as):
    predictions, _ = alone
    expected = trained.predict(samples[0], verbose=0)
    np.testing.assert_allclose(predictions[saved_as], expected, rtol=1e-4, atol=1e-5)


def test_optimizer_is_loaded_alone(trained, alone):
    _, state = alone
    assert_alike(optimizer_state(trained), state, rtol=1e-6)


@pytest.mark.in_gate
@pytest.mark.feature("`.keras`, loaded in the scope to continue training")
def test_load_model_in_the_scope(
    strategy, trained, saved, samples, runs_on_workers, lives_on_cluster
):
    with strategy.scope():
        model = keras.models.load_model(saved / "model.keras")
    assert_alike(model.get_weights(), trained.get_weights())
    assert_alike(optimizer_state(model), optimizer_state(trained))
    lives_on_cluster(model)
    with runs_on_workers(STEPS):
        model.fit(*samples, batch_size=8, verbose=0)
    assert model.optimizer.iterations == 2 * STEPS


@pytest.mark.feature("`.weights.h5`, loaded in the scope")
def test_load_weights_in_the_scope(strategy, trained, saved, samples):
    with strategy.scope():
        model = adam_mlp()
    model.load_weights(saved / "model.weights.h5")
    assert_alike(model.get_weights(), trained.get_weights())
    results = [m.evaluate(*samples, verbose=0) for m in (model, trained)]
    assert results[0] == pytest.approx(results[1], rel=1e-6)


@pytest.mark.in_gate
@pytest.mark.feature("`tf.train.Checkpoint`, restored in the scope, with the optimizer")
def test_restore_checkpoint_in_the_scope(
    strategy, trained, own_directory, samples, runs_on_workers
):
    checkpoint = tf.train.Checkpoint(model=trained, optimizer=trained.optimizer)
    path = checkpoint.save(str(own_directory / "step"))
    with strategy.scope():
        model = adam_mlp()
        model.optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(path).assert_existing_objects_matched()
    assert_alike(model.get_weights(), trained.get_weights())
    assert_alike(optimizer_state(model), optimizer_state(trained))
    with runs_on_workers(STEPS):
        model.fit(*samples, batch_size=8, verbose=0)
    assert model.optimizer.iterations == 2 * STEPS


@pytest.mark.feature("`tf.train.CheckpointManager`")
def test_checkpoint_manager(strategy, own_directory):
    with strategy.scope():
        model = mlp()
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), str(own_directory), max_to_keep=2
    )
    for _ in range(3):
        manager.save()
    expected = model.get_weights()
    model.set_weights([0 * weight for weight in expected])
    manager.restore_or_initialize()
    assert_alike(model.get_weights(), expected)
    assert len(manager.checkpoints) == 2


@pytest.mark.in_gate
@pytest.mark.feature("Weights of plain Keras, loaded in the scope")
def test_plain_weights_are_loaded(strategy, samples, own_directory):
    plain = adam_mlp()
    plain.fit(*samples, batch_size=8, shuffle=False, verbose=0)
    plain.save(own_directory / "plain.keras")
    with strategy.scope():
        model = keras.models.load_model(own_directory / "plain.keras")
    assert_alike(model.get_weights(), plain.get_weights())
    expected = plain.predict(samples[0], verbose=0)
    np.testing.assert_allclose(
        model.predict(samples[0], verbose=0), expected, rtol=1e-5
    )


@pytest.mark.feature("`get_weights`, `set_weights`")
def test_set_weights(strategy, samples):
    with strategy.scope():
        model = mlp()
    weights = [np.full_like(weight, 0.5) for weight in model.get_weights()]
    model.set_weights(weights)
    assert_alike(model.get_weights(), weights)
    expected = np.tanh(samples[0] @ weights[0] + 0.5) @ weights[2] + 0.5
    np.testing.assert_allclose(
        model.predict(samples[0], verbose=0), expected, rtol=1e-5
    )


@pytest.mark.feature("Training and saving inside the scope")
def test_saving_inside_of_the_scope(strategy, samples, tmp_path, wait_for_chief):
    with strategy.scope():
        model = adam_mlp()
        checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
        model.fit(*samples, batch_size=8, epochs=2, callbacks=[checkpoint], verbose=0)
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        model.export(tmp_path / "exported", verbose=False)
        wait_for_chief()
        loaded = keras.models.load_model(tmp_path / "model.keras")
    names = {"1.keras", "2.keras", "model.keras", "model.weights.h5", "exported"}
    assert {path.name for path in tmp_path.iterdir()} == names
    plain = keras.models.load_model(tmp_path / "2.keras")
    for each in (loaded, plain):
        assert_alike(each.get_weights(), model.get_weights())
        assert_alike(optimizer_state(each), optimizer_state(model))
