"""Our server and our clients as Flower's apps, against `Simulation`: see `make flower`.

In most tests Flower's messages go from one app to the other in this process; the last one
starts Flower's own processes with the commands of docs/federated.md.
"""

import copy
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import keras
import numpy as np
import pytest

from tfdist.research import federated
from tfdist.research.federated import flower

pytest.importorskip("flwr", reason="Flower has an environment of its own: make flower")

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # Read when Flower is imported.
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from ray import cloudpickle

from ..support.raising import raises

PAGE = (Path(__file__).parents[2] / "docs" / "federated.md").read_text()
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)).astype("float32")
Y = RNG.integers(3, size=60)
SPLIT = [np.arange(0, 13), np.arange(13, 20), np.arange(20, 45), np.arange(45, 60)]
BUILT = []


def build_model():
    BUILT.append(None)
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


def build_plain_model():
    """No integer weights: Flower's FedAvg averages whatever it is sent."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((6,)), layers.BatchNormalization(), layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def examples_of(client):
    return X[SPLIT[client]], Y[SPLIT[client]]


def averaging(**arguments):
    arguments = {"local_epochs": 2, "batch_size": 5, **arguments}
    return federated.FederatedAveraging(**arguments)


class InProcessGrid:
    """Takes messages to a `ClientApp`, as Flower's engines do, and errors back.

    Args:
        app: The clients'; None: what `run` makes.
        clients: Of each node, its partition-id, or None.
    """

    def __init__(self, app, clients):
        self.app, self._clients = app, clients
        self.asked = []

    def get_node_ids(self):
        return list(self._clients)

    def send_and_receive(self, messages, *, timeout=None):
        # Replies come in any order.
        return [self._reply(each) for each in reversed(list(messages))]

    def _reply(self, message):
        node = message.metadata.dst_node_id
        client = self._clients[node]
        if message.metadata.message_type == "train":
            self.asked.append(client)
        try:
            config = {} if client is None else {"partition-id": client}
            return self.app(message, context(node, config))
        except Exception as error:  # noqa: BLE001
            return Message(Error(1, str(error)), reply_to=message)


def context(node=0, node_config=None, run_config=None):
    return Context(1, node, node_config or {}, RecordDict(), run_config or {})


@pytest.fixture(autouse=True)
def inside_a_run(monkeypatch):
    """Flower's engines set these before they call an app."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def nodes(*clients):
    return {1000 - 7 * place: client for place, client in enumerate(clients)}


def run(algorithm, rounds, grid=None, build=build_model, **arguments):
    """Returns the model after some rounds on Flower, and the grid."""
    app = flower.client_app(build, algorithm, examples_of)
    grid = grid or InProcessGrid(app, nodes(2, 0, 3, 1))
    grid.app = grid.app or app
    found = []

    def build_on_server():
        found.append(build())
        return found[-1]

    server = flower.server_app(build_on_server, algorithm, 4, rounds, **arguments)
    server(grid, context())
    return found[0], grid


def simulated(algorithm, rounds, build=build_model, **arguments):
    model = build()
    federated.Simulation(model, algorithm, (X, Y), SPLIT, **arguments).run(rounds)
    return model


def assert_equal(model, reference, build=build_model):
    """Equal to rounding, and far from where training began."""
    for one, other in zip(model.weights, reference.weights, strict=True):
        if "float" in str(one.dtype):
            np.testing.assert_allclose(one.numpy(), other.numpy(), atol=2e-6)
    begun = np.concatenate([each.numpy().ravel() for each in build().trainable_weights])
    ended = [each.numpy().ravel() for each in reference.trainable_weights]
    assert np.abs(np.concatenate(ended) - begun).max() > 1e-3


ALGORITHMS = {
    "everyone": {},
    "some": {"fraction": 0.5, "seed": 3},
    "momentum": {"server_optimizer": federated.FedAvgM(momentum=0.9)},
    "median": {"rule": federated.Median(1), "proximal": 0.1},
    "noise": {"privacy": federated.GaussianMechanism(1.0, 0.1)},
    "decay": {"learning_rate_decay": 0.5},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_on_flower_are_those_of_a_simulation(name):
    algorithm = averaging(**ALGORITHMS[name])
    model, grid = run(algorithm, 3)
    assert_equal(model, simulated(algorithm, 3))
    assert len(grid.asked) == (6 if name == "some" else 12)


def test_a_client_that_fails_is_left_out_and_the_round_counts(caplog):
    algorithm = averaging()

    def some(client):
        if client == 2:
            raise OSError("the disk of client 2 is gone")
        if client == 3:
            return X[SPLIT[3]] * np.float32(np.inf), Y[SPLIT[3]]
        return examples_of(client)

    app = flower.client_app(build_model, algorithm, some)
    model, grid = run(algorithm, 2, InProcessGrid(app, nodes(0, 1, 2, 3)))
    assert sorted(grid.asked) == [0, 0, 1, 1, 2, 2, 3, 3]
    behavior = federated.ClientBehavior(dropout=[2, 3])
    assert_equal(model, simulated(algorithm, 2, behavior=behavior))
    assert "the disk of client 2 is gone" in caplog.text
    assert "client 3 must send finite numbers" in caplog.text
    assert "round 2: 2 of 4 clients sent no update that can be used" in caplog.text


def test_too_few_answers_change_nothing(caplog):
    algorithm = averaging(min_clients=4)

    def none(client):
        raise OSError("gone")

    app = flower.client_app(build_model, algorithm, none)
    before = build_model()
    model, _ = run(algorithm, 1, InProcessGrid(app, nodes(0, 1, 2, 3)))
    for one, other in zip(model.weights, before.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert "round 1 changes nothing" in caplog.text


def test_nodes_without_a_number_are_no_clients(caplog):
    algorithm = averaging()
    grid = InProcessGrid(None, nodes(0, None, 4, 1))
    model, grid = run(algorithm, 2, grid, start_with=2)
    assert sorted(grid.asked) == [0, 0, 1, 1]
    assert "flower-supernode --node-config 'partition-id=0'" in caplog.text
    assert "clients are 0 to 3; node 986 says that it is 4" in caplog.text
    with raises(TimeoutError, "2 of 4", "2 nodes"):
        run(algorithm, 1, InProcessGrid(None, nodes(0, None, 4, 1)), connect_timeout=0)


def test_callbacks_see_rounds_and_stop_them():
    seen = []

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, sorted(logs)))
            self.model.stop_training = epoch == 1

    model, grid = run(
        averaging(), 5, validation_data=lambda: (X, Y), callbacks=lambda: [Stop()]
    )
    assert seen == [(each, ["val_accuracy", "val_loss"]) for each in range(2)]
    assert len(grid.asked) == 8
    assert_equal(model, simulated(averaging(), 2))


def test_our_client_under_the_strategy_of_flower():
    algorithm = averaging()
    app = flower.client_app(build_plain_model, algorithm, examples_of)
    model = build_plain_model()
    result = FedAvg(fraction_evaluate=0.0).start(
        InProcessGrid(app, nodes(0, 1, 2, 3)), ArrayRecord(model.get_weights()), 2
    )
    model.set_weights(result.arrays.to_numpy_ndarrays())
    reference = simulated(algorithm, 2, build_plain_model)
    assert_equal(model, reference, build_plain_model)


def test_the_secure_sums_of_the_page_are_the_plain_mean(monkeypatch):
    (block,) = re.findall(r"```python\n(from experiment .*?)```", PAGE, re.S)
    experiment = ModuleType("experiment")
    vars(experiment).update(CLIENTS=4, ROUNDS=1, build_model=build_plain_model)
    experiment.examples_of = examples_of
    monkeypatch.setitem(sys.modules, "experiment", experiment)
    page = {}
    exec(block, page)  # noqa: S102
    contexts = {
        7 + each: context(7 + each, {"partition-id": each}) for each in range(4)
    }
    sent = []

    class KeepsContexts(InProcessGrid):
        """The keys of SecAgg+ stay with a client from one message to the next."""

        run = SimpleNamespace(run_id=1)

        def _reply(self, message):
            # A client changes what it receives, which the server has put into all messages.
            own = copy.deepcopy(message)
            reply = self.app(own, contexts[message.metadata.dst_node_id])
            sent.extend(reply.content.array_records.values())
            return reply

    of_server = context()
    page["server"](KeepsContexts(page["client"], contexts), of_server)
    start = build_plain_model().get_weights()
    trained = [page["Client"](each).fit(start, {})[0] for each in range(4)]
    sizes = [len(rows) for rows in SPLIT]
    (found,) = of_server.state.array_records.values()
    for place, weight in enumerate(found.to_numpy_ndarrays()):
        mean = np.average([each[place] for each in trained], axis=0, weights=sizes)
        np.testing.assert_allclose(weight, mean, atol=1e-3)
    assert np.abs(found.to_numpy_ndarrays()[-2] - start[-2]).max() > 0.01
    # No client has sent an array that is not masked.
    assert sent
    assert not any(sent)


def test_copies_of_an_app_in_a_process_share_the_graph():
    """Flower's simulation sends the app to its workers with every message."""
    app = flower.client_app(build_model, averaging(), examples_of)
    BUILT.clear()
    for _ in range(3):
        copy = cloudpickle.loads(cloudpickle.dumps(app))
        run(averaging(), 1, InProcessGrid(copy, nodes(0, 1, 2, 3)))
    assert len(BUILT) == 3 + 1  # Each server builds one.


def test_what_is_refused():
    with raises(ValueError, "rounds", "received 0"):
        flower.server_app(build_model, averaging(), 4, 0)
    with raises(ValueError, "num_clients=4", "start_with=5"):
        flower.server_app(build_model, averaging(), 4, 1, start_with=5)
