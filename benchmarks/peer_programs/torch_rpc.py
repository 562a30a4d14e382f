"""A ps or a worker of a parameter server over `torch.distributed.rpc`, asynchronous.

Each ps holds some of the parameters and their optimizer. A step is one call to each ps,
which applies the gradients and returns the new weights, as in PyTorch's tutorials.
"""

import threading

import numpy as np
import torch
from peer_programs.control import Task, serve
from peer_programs.data import LEARNING_RATE, Data, initial_weights
from torch import nn
from torch.distributed import rpc


def _network(model: str) -> nn.Sequential:
    if model == "mlp":
        network = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    else:
        network = nn.Sequential(
            *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1024, 10)),
        )
    with torch.no_grad():
        for parameter, weight in zip(
            network.parameters(), initial_weights(model), strict=True
        ):
            axes = (3, 2, 0, 1) if weight.ndim == 4 else None
            parameter.copy_(torch.from_numpy(weight.transpose(axes).copy()))
    return network


def owners(sizes: list[int], num_ps: int) -> list[int]:
    """Returns the ps of each parameter: the largest first, to the emptiest ps."""
    loads, chosen = [0] * num_ps, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        chosen[index] = loads.index(min(loads))
        loads[chosen[index]] += sizes[index]
    return chosen


class _Shard:
    """The parameters of this ps."""

    def __init__(self, task: Task) -> None:
        every = list(_network(task.model).parameters())
        owner = owners([each.numel() for each in every], len(task.ps))
        self._parameters = [
            each for each, ps in zip(every, owner, strict=True) if ps == task.index
        ]
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[task.optimizer]
        self._optimizer = None
        if self._parameters:
            self._optimizer = kind(self._parameters, LEARNING_RATE[task.optimizer])
        self._lock = threading.Lock()
        self.updates = 0

    def update(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        with self._lock:
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            if self._optimizer:
                self._optimizer.step()
            self.updates += 1
            return [parameter.detach() for parameter in self._parameters]


_shard: _Shard


def _update(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return _shard.update(gradients)


def _updates() -> int:
    return _shard.updates


def _work(task: Task) -> None:
    network = _network(task.model)
    parameters = list(network.parameters())
    owner = owners([each.numel() for each in parameters], len(task.ps))
    mine = [
        [parameters[i] for i, ps in enumerate(owner) if ps == server]
        for server in range(len(task.ps))
    ]
    servers = [server for server, held in enumerate(mine) if held]
    channels_first = (
        (lambda x: x)
        if task.model == "mlp"
        else (lambda x: x.swapaxes(1, 3).swapaxes(2, 3))
    )
    images, labels = Data(task).batches()
    batches = [
        (torch.from_numpy(channels_first(x).copy()), torch.from_numpy(y).long())
        for x, y in zip(images, labels, strict=True)
    ]
    done = 0

    def train(steps: int) -> None:
        nonlocal done
        total = torch.zeros(())
        for step in range(done, done + steps):
            x, y = batches[step % len(batches)]
            network.zero_grad()
            loss = nn.functional.cross_entropy(network(x), y)
            loss.backward()
            total += loss.detach()
            answers = [
                rpc.rpc_async(f"ps{ps}", _update, ([p.grad for p in mine[ps]],))
                for ps in servers
            ]
            with torch.no_grad():
                for ps, answer in zip(servers, answers, strict=True):
                    for parameter, value in zip(mine[ps], answer.wait(), strict=True):
                        parameter.copy_(value)
        done += steps

    def predict(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(channels_first(x).copy())).numpy()

    serve(task, train, predict, lambda: rpc.rpc_sync(f"ps{servers[0]}", _updates))


def main() -> None:
    """Serves, or trains as peers.py asks."""
    global _shard
    task = Task.from_environment()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if task.job == "ps":
        _shard = _Shard(task)
    rank = task.index + (0 if task.job == "ps" else len(task.ps))
    rpc.init_rpc(
        f"{task.job}{task.index}",
        rank=rank,
        world_size=len(task.ps) + len(task.workers),
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"tcp://{task.ps[0]}",
            rpc_timeout=3600,
            _transports=["uv"],
            _channels=["basic"],
        ),
    )
    if task.job == "worker":
        _work(task)
    rpc.shutdown()


if __name__ == "__main__":
    main()
