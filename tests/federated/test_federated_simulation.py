"""Simulated clients, against the same clients trained one by one by `fit`."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.research import federated
from tfdist.research.federated.averaging import local_batches
from tfdist.research.federated.execution import client_training

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)).astype("float32")
Y = RNG.integers(3, size=60)
SPLIT = [np.arange(0, 13), np.arange(13, 20), np.arange(20, 60)]


def make_model(optimizer=None, middle=(), seed=1, compiled=True):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(5, activation="tanh"), *middle, keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    if compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = optimizer or keras.optimizers.SGD(0.1)
        # Eager: what is compared with is not worth a trace. Clients' steps are one anyway.
        model.compile(optimizer, loss, metrics=["accuracy"], run_eagerly=True)
    return model


averaging = federated.FederatedAveraging


def simulation(model=None, algorithm=None, data=(X, Y), split=SPLIT, **arguments):
    model = make_model() if model is None else model
    algorithm = algorithm or averaging(local_epochs=2, batch_size=5)
    return federated.Simulation(model, algorithm, data, split, **arguments)


def training_of(algorithm, *model, **options):
    return client_training.ClientTraining(make_model(*model, **options), algorithm)


def flat(model):
    return np.concatenate([each.numpy().ravel() for each in model.weights])


OPTIMIZERS = {
    "clipped": lambda: keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.1),
    "adam": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.5)
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param("clipped", marks=pytest.mark.not_in_gate), "adam"]
)
def test_clients_train_as_fit_trains_them_one_by_one(name):
    middle = [keras.layers.BatchNormalization()] if name == "adam" else []
    algorithm = averaging(local_epochs=2, batch_size=5, learning_rate_decay=1.0)
    training = training_of(algorithm, OPTIMIZERS[name](), middle)
    start = training.vector.read()
    rows = dict(enumerate(SPLIT))
    found = training.updates(start, (X, Y), rows, round_index=4)
    for update, mine in zip(found, SPLIT, strict=True):
        # A fresh model has the same weights, and an optimizer without steps.
        again = [keras.layers.BatchNormalization()] if middle else []
        model = make_model(OPTIMIZERS[name](), again)
        order, _ = local_batches(algorithm, len(mine), 4, update.client)
        for epoch in order.reshape(2, -1):
            taken = mine[epoch]
            model.fit(X[taken], Y[taken], batch_size=5, shuffle=False, verbose=0)
        reference = client_training.ModelVector(model).read() - start
        assert np.abs(reference).max() > 1e-3
        np.testing.assert_allclose(update.change, reference, atol=2e-6)
        assert update.examples == len(mine)
    assert training.steps == 2 * (3 + 2 + 8)


def test_one_client_alone_sends_what_it_sends_among_others():
    dropout = [keras.layers.Dropout(0.5)]
    training = training_of(averaging(batch_size=5), middle=dropout)
    start = training.vector.read()
    _, second, _ = training.updates(start, (X, Y), dict(enumerate(SPLIT)), 2)
    alone = training.update(start, (X[SPLIT[1]], Y[SPLIT[1]]), 2, 1)
    assert alone.change.tobytes() == second.change.tobytes()
    # Dropout draws anew for another round, and for another client.
    later = training.update(start, (X[SPLIT[1]], Y[SPLIT[1]]), 3, 1)
    assert np.abs(later.change - alone.change).max() > 1e-4


def test_federated_sgd_is_a_step_on_all_examples():
    model = make_model(keras.optimizers.SGD(0.5))
    simulation(model, averaging()).run(1)
    whole = make_model(keras.optimizers.SGD(0.5))
    whole.fit(X, Y, batch_size=60, shuffle=False, verbose=0)
    np.testing.assert_allclose(flat(model), flat(whole), atol=1e-6)


@pytest.mark.not_in_gate
def test_the_proximal_term_pulls_towards_the_model_of_the_round():
    def changes(mu):
        for epochs in (1, 2):
            algorithm = averaging(local_epochs=epochs, proximal=mu)
            training = training_of(algorithm)
            yield training.update(training.vector.read(), (X, Y), 0, 0).change

    (first, free), (same, pulled) = changes(0.0), changes(2.0)
    # The first step starts where the pull is 0; the second is pulled by mu * rate * change.
    np.testing.assert_allclose(same, first, atol=1e-7)
    np.testing.assert_allclose(pulled, free - 0.1 * 2.0 * first, atol=1e-6)


def test_the_rate_decays_from_round_to_round():
    training = training_of(averaging(learning_rate_decay=0.5))
    start = training.vector.read()
    changes = [training.update(start, (X, Y), index, 0).change for index in range(3)]
    np.testing.assert_allclose(changes[2] * 4, changes[0], atol=1e-6)
    np.testing.assert_allclose(changes[1] * 2, changes[0], atol=1e-6)


@pytest.mark.not_in_gate
def test_the_same_seed_gives_the_same_run():
    def run(seed):
        one = simulation(
            algorithm=averaging(fraction=0.7, batch_size=5, seed=seed),
            behavior=federated.ClientBehavior(dropout=0.2),
        )
        one.run(4)
        return one.server.weights

    first = run(0)
    assert run(0).tobytes() == first.tobytes()
    assert np.abs(run(1) - first).max() > 1e-4


def test_many_clients_in_several_calls_are_those_of_one(monkeypatch):
    whole = simulation()
    whole.run(1)
    monkeypatch.setattr(client_training, "_CALL_BYTES", 1)
    parts = simulation()
    parts.run(1)
    assert parts.server.weights.tobytes() == whole.server.weights.tobytes()


@pytest.mark.not_in_gate
def test_a_function_or_a_dataset_of_a_client_gives_what_arrays_give():
    def arrays(client):
        return X[SPLIT[client]], Y[SPLIT[client]]

    def dataset(client):
        return tf.data.Dataset.from_tensor_slices(arrays(client)).batch(4)

    whole = simulation()
    whole.run(2)
    for examples_of in (arrays, dataset):
        one = simulation(data=examples_of, split=3)
        one.run(2)
        assert one.server.weights.tobytes() == whole.server.weights.tobytes()


@pytest.mark.not_in_gate
def test_it_learns_and_logs_what_happened():
    seen = []

    class Seen(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, logs["val_loss"], flat(self.model)))

    x = X + 3 * np.eye(3, 6)[Y].astype("float32")
    behavior = federated.ClientBehavior(dropout=[1], seconds=[1.0, 1.0, 2.0])
    one = simulation(data=(x, Y), behavior=behavior)
    history = one.run(6, validation_data=(x, Y), validation_freq=3).history
    size = one.server.weights.nbytes
    logged = {"clients": 3.0, "answered": 2.0, "seconds": 2.0, "counts": 1.0}
    logged |= {"bytes_down": 3.0 * size, "bytes_up": 2.0 * size}
    assert {name: history[name] for name in logged} == {
        name: [value] * 6 for name, value in logged.items()
    }
    assert len(history["val_loss"]) == 2
    assert history["val_accuracy"][-1] > 0.8
    one.run(9, validation_data=(x, Y), callbacks=[Seen()])
    assert [epoch for epoch, *_ in seen] == [6, 7, 8]
    assert seen[-1][2].tobytes() == flat(one._model).tobytes()


def test_clients_train_at_the_rate_that_callbacks_set():
    """Each round moves as far as its rate has it: a gradient step on all examples."""
    rates = [0.1, 0.0, 0.05]
    one = simulation(algorithm=averaging(batch_size=None, local_epochs=1))
    weights = [flat(one._model)]

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights.append(flat(self.model))

    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, _: rates[epoch])
    one.run(3, callbacks=[schedule, Keep()])
    first, second, third = (
        np.abs(after - before).max() for before, after in itertools.pairwise(weights)
    )
    assert first > third > second == 0


def test_callbacks_stop_a_run():
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 2

    one = simulation()
    assert len(one.run(9, callbacks=[Stop()]).history["clients"]) == 3
    assert one.server.round_index == 3


def test_late_clients_are_left_out(caplog):
    one = simulation(
        algorithm=averaging(deadline=1.0, min_clients=2),
        behavior=federated.ClientBehavior(seconds=[0.5, 3.0, 3.0]),
    )
    before = one.server.weights
    logs = one.run(1).history
    assert (logs["answered"], logs["seconds"], logs["counts"]) == ([1.0], [1.0], [0.0])
    assert "answers of 2 clients (min_clients); received 1" in caplog.text
    assert one.server.weights.tobytes() == before.tobytes()


def test_a_diverged_client_is_left_out(caplog):
    x = X.copy()
    x[SPLIT[1]] = np.inf
    one = simulation(algorithm=averaging(), data=(x, Y))
    assert one.run(1).history["answered"] == [2.0]
    assert "client 1 must send finite numbers" in caplog.text
    assert np.isfinite(one.server.weights).all()


def test_a_client_without_examples_is_never_asked(caplog):
    split = [SPLIT[0], np.array([], int), SPLIT[2]]
    one = simulation(algorithm=averaging(), split=split)
    assert one.run(1).history["clients"] == [2.0]
    assert "1 clients have no examples" in caplog.text


def test_attackers_move_a_mean_and_not_a_median():
    def moved(rule, attackers):
        attack = federated.ScaledUpdate(1e4) if attackers else None
        behavior = federated.ClientBehavior(attackers=attackers, attack=attack)
        parts = np.array_split(np.arange(60), 5)
        one = simulation(None, averaging(rule=rule), split=parts, behavior=behavior)
        before = one.server.weights
        one.run(1)
        return np.linalg.norm(one.server.weights - before)

    clean = moved(federated.WeightedMean(), ())
    assert moved(federated.WeightedMean(), (3,)) > 100 * clean
    assert moved(federated.Median(1), (3,)) < 2 * clean


def test_a_client_leaves_and_takes_its_updates_along():
    one = simulation(keep_contributions=True)
    one.run(2)
    before = one.server.weights
    one.leave(0, take_out=True)
    assert np.abs(one.server.weights - before).max() > 1e-4
    assert flat(one._model).tobytes() == one.server.weights.tobytes()
    assert one.run(3).history["clients"] == [2.0]


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


def with_own_step():
    inputs = keras.Input((6,))
    model = OwnStep(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", "mse")
    return model


def scheduled():
    return make_model(OPTIMIZERS["adam"]())


def averaged():
    return make_model(keras.optimizers.SGD(0.1, use_ema=True))


def unbuilt():
    return keras.Sequential([keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: simulation("model"), TypeError, "a keras.Model; received str"),
        (
            lambda: simulation(make_model(compiled=False)),
            ValueError,
            "must be compiled",
        ),
        (lambda: simulation(unbuilt()), ValueError, "must be built"),
        (lambda: simulation(with_own_step()), ValueError, "a train_step of its own"),
        (lambda: simulation(averaged()), ValueError, "use_ema=False"),
        (
            lambda: simulation(scheduled(), averaging(learning_rate_decay=0.9)),
            ValueError,
            "with a schedule. Use one of both",
        ),
        (lambda: simulation(split=3), TypeError, r"arrays \(x, y\) and their split"),
        (
            lambda: simulation(split=[[60]]),
            ValueError,
            "examples 0 to 59; the split gives client 0 60 to 60",
        ),
        (
            lambda: simulation(data=(X, Y[1:])),
            ValueError,
            r"as many rows each; received \[59, 60\]",
        ),
        (
            lambda: simulation(data=lambda _: (X[:0], Y[:0]), split=3).run(1),
            ValueError,
            "client 0 has no examples",
        ),
        (
            lambda: simulation(data=lambda i: (X[:, i:], Y), split=2).run(1),
            ValueError,
            "the same shapes and dtypes",
        ),
        (
            lambda: training_of(averaging()).updates(np.zeros(3, "f4"), (X, Y), {}, 0),
            ValueError,
            "parameters; received weights of",
        ),
        (lambda: simulation().run(0), ValueError, "are 1 or more; received rounds=0"),
    ],
)
def test_bad_input_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
