"""A ps or a worker of a parameter server over `torch.distributed.rpc`, asynchronous.

Each ps holds some of the parameters and their optimizer. A step is one call to each ps,
which applies the gradients and returns the new weights, as in PyTorch's tutorials.
"""

import threading

import numpy as np
import torch
from peer_programs import networks
from peer_programs.control import Task, serve
from peer_programs.data import Data
from torch import nn
from torch.distributed import rpc


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
        every = list(networks.network(task.model).parameters())
        owner = owners([each.numel() for each in every], len(task.ps))
        self._parameters = [
            each for each, ps in zip(every, owner, strict=True) if ps == task.index
        ]
        if self._parameters:
            self._optimizer = networks.optimizer(task, self._parameters)
        self._lock = threading.Lock()
        self.updates = 0

    def update(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        with self._lock:
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            self._optimizer.step()
            self.updates += 1
            return [parameter.detach() for parameter in self._parameters]


_shard: _Shard


def _update(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return _shard.update(gradients)


def _updates() -> int:
    return _shard.updates


def _work(task: Task) -> None:
    network = networks.network(task.model)
    parameters = list(network.parameters())
    owner = owners([each.numel() for each in parameters], len(task.ps))
    held = [
        [parameters[i] for i, ps in enumerate(owner) if ps == server]
        for server in range(len(task.ps))
    ]
    servers = [server for server, some in enumerate(held) if some]
    batches = networks.batches(Data(task).batches())
    done = 0

    def train(steps: int) -> None:
        nonlocal done
        total = torch.zeros(())
        for step in range(done, done + steps):
            images, labels = batches[step % len(batches)]
            network.zero_grad()
            loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            total += loss.detach()
            answers = [
                rpc.rpc_async(f"ps{ps}", _update, ([p.grad for p in held[ps]],))
                for ps in servers
            ]
            with torch.no_grad():
                for ps, answer in zip(servers, answers, strict=True):
                    for parameter, value in zip(held[ps], answer.wait(), strict=True):
                        parameter.copy_(value)
        done += steps

    def predict(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(networks.images(batch)).numpy()

    serve(task, train, predict, lambda: rpc.rpc_sync(f"ps{servers[0]}", _updates))


def main() -> None:
    """Serves, or trains as peers.py asks."""
    global _shard
    task = Task.from_environment()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    if task.job == "ps":
        _shard = _Shard(task)
    # TCP, as between hosts and as the other contenders: threads that wait for
    # TensorPipe's shared memory spin, and take 4 times the CPU time per step.
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{task.ps[0]}",
        rpc_timeout=3600,
        _transports=["uv"],
        _channels=["basic"],
    )
    rpc.init_rpc(
        f"{task.job}{task.index}",
        rank=task.index + (0 if task.job == "ps" else len(task.ps)),
        world_size=len(task.ps) + len(task.workers),
        rpc_backend_options=options,
    )
    if task.job == "worker":
        _work(task)
    rpc.shutdown()


if __name__ == "__main__":
    main()
