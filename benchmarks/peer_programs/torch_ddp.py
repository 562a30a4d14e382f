"""A worker of PyTorch's `DistributedDataParallel` over Gloo: synchronous, without ps."""

import os
import socket

import numpy as np
import torch
from peer_programs import networks
from peer_programs.control import Task, serve
from peer_programs.data import Data
from torch import distributed, nn


def main() -> None:
    """Trains as peers.py asks."""
    task = Task.from_environment()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    # Gloo would take the address that the host's name has.
    interfaces = {name for _, name in socket.if_nameindex()}
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if "eth0" in interfaces else "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{task.workers[0]}",
        rank=task.index,
        world_size=len(task.workers),
    )
    network = networks.network(task.model)
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = networks.optimizer(task, list(model.parameters()))
    batches = networks.batches(Data(task).batches())
    done = 0

    def train(steps: int) -> None:
        nonlocal done
        total = torch.zeros(())
        for step in range(done, done + steps):
            images, labels = batches[step % len(batches)]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        done += steps

    def predict(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(networks.images(batch)).numpy()

    serve(task, train, predict)


if __name__ == "__main__":
    main()
