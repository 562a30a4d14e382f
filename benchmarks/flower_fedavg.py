"""Flower's own FedAvg with a plain Keras client: what benchmarks/federated_flower.py compares.

Ray's workers import this file, and keep the model and the data between messages: a client
that compiled its model in each round would be slower.
"""

import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent / "examples/federated_flower")
)
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # Read when Flower is imported.

import experiment  # noqa: E402
import numpy as np  # noqa: E402
from flwr.app import (  # noqa: E402
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from tfdist import federated  # noqa: E402

client = ClientApp()
build_model = functools.cache(experiment.build_model)


@functools.cache
def split(clients: int, seed: int) -> list[np.ndarray]:
    """Returns the rows of each client, in both contenders."""
    (_, y), _ = experiment.load_data()
    return federated.label_shards(y, clients, seed=seed)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Trains by `fit`, as Flower's examples with Keras do."""
    config = message.content["config"]
    model, (x, y) = build_model(), experiment.load_data()[0]
    rows = split(config["clients"], config["seed"])[context.node_config["partition-id"]]
    model.set_weights(message.content["arrays"].to_numpy_ndarrays())
    model.fit(
        x[rows],
        y[rows],
        epochs=config["epochs"],
        batch_size=config["batch"],
        verbose=0,
    )
    content = {
        "arrays": ArrayRecord(model.get_weights()),
        "metrics": MetricRecord({"num-examples": len(rows)}),
    }
    return Message(RecordDict(content), reply_to=message)


class TimedFedAvg(FedAvg):
    """FedAvg that notes how long a round takes, from the first message to the mean."""

    seconds = 0.0

    def configure_train(self, *arguments: object) -> object:
        """Begins a round."""
        self._begin = time.perf_counter()
        return super().configure_train(*arguments)

    def aggregate_train(self, *arguments: object) -> object:
        """Ends a round."""
        found = super().aggregate_train(*arguments)
        self.seconds = time.perf_counter() - self._begin
        return found


def run(
    clients: int,
    fraction: float,
    epochs: int,
    batch: int,
    seed: int,
    cpus: float,
    is_over: Callable[[list[tuple[float, float]]], bool],
) -> list[tuple[float, float]]:
    """Returns the seconds and the test accuracy of each round, until it is over."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    found: list[tuple[float, float]] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for each in _rounds(grid):
            found.append(each)
            if is_over(found):
                return

    def _rounds(grid: Grid) -> Iterator[tuple[float, float]]:
        model, test = experiment.build_model(), experiment.test_data()
        config = {"clients": clients, "seed": seed, "epochs": epochs, "batch": batch}
        strategy = TimedFedAvg(
            fraction_train=fraction, fraction_evaluate=0.0, min_available_nodes=clients
        )
        while True:
            result = strategy.start(
                grid,
                ArrayRecord(model.get_weights()),
                num_rounds=1,
                train_config=ConfigRecord(config),
            )
            model.set_weights(result.arrays.to_numpy_ndarrays())
            accuracy = model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
            yield strategy.seconds, accuracy

    resources = {"client_resources": {"num_cpus": cpus, "num_gpus": 0.0}}
    run_simulation(server, client, clients, backend_config=resources)
    return found
