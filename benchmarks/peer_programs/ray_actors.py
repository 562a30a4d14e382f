"""The driver of a parameter server of Ray actors, as in Ray's own example.

The driver waits for the first worker with gradients, lets the server apply them, and
hands the worker the new weights; all of them pass by reference. The example has one
server, whatever the number of ps asked for.
"""

import os

import numpy as np
import ray
import torch
from peer_programs import networks
from peer_programs.control import Task, serve
from peer_programs.data import Data
from torch import nn


def _weights(network: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in network.state_dict().items()}


def _set_weights(network: nn.Module, weights: dict[str, np.ndarray]) -> None:
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.tensor(weights[name]))


@ray.remote
class ParameterServer:
    """Holds the weights, and applies gradients to them."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self._network = networks.network(task.model)
        self._parameters = list(self._network.parameters())
        self._optimizer = networks.optimizer(task, self._parameters)
        self._updates = 0

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the current weights."""
        return _weights(self._network)

    def apply(self, gradients: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Updates the weights, and returns them."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        self._optimizer.step()
        self._updates += 1
        return _weights(self._network)

    def updates(self) -> int:
        """Returns the number of updates so far."""
        return self._updates


@ray.remote
class Worker:
    """Computes gradients from its own images."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self._network = networks.network(task.model)
        self._batches = networks.batches(Data(task).batches())
        self._step = 0

    def gradients(self, weights: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the gradients of the next batch."""
        _set_weights(self._network, weights)
        images, labels = self._batches[self._step % len(self._batches)]
        self._step += 1
        self._network.zero_grad()
        nn.functional.cross_entropy(self._network(images), labels).backward()
        return [each.grad.numpy() for each in self._network.parameters()]


def main() -> None:
    """Trains as peers.py asks."""
    task = Task.from_environment()
    torch.set_num_threads(1)
    ray.init(
        num_cpus=1 + len(task.workers),
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        _node_ip_address="127.0.0.1",
        _temp_dir=os.environ["TMPDIR"],
    )
    server = ParameterServer.remote(task)
    workers = [
        Worker.remote(Task(**{**vars(task), "index": index}))
        for index in range(len(task.workers))
    ]

    def train(steps: int) -> None:
        weights = server.weights.remote()
        running = {worker.gradients.remote(weights): worker for worker in workers}
        for _ in range(steps):
            (ready,), _ = ray.wait(list(running))
            worker = running.pop(ready)
            weights = server.apply.remote(ready)
            running[worker.gradients.remote(weights)] = worker
        # Gradients on their way at the end belong to no step: they are not applied.
        ray.get([weights, *running])

    def predict(batch: np.ndarray) -> np.ndarray:
        network = networks.network(task.model)
        _set_weights(network, ray.get(server.weights.remote()))
        with torch.no_grad():
            return network(networks.images(batch)).numpy()

    serve(task, train, predict, lambda: ray.get(server.updates.remote()))
    ray.shutdown()


if __name__ == "__main__":
    main()
