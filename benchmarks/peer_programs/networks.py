"""The models in PyTorch, which the programs on PyTorch and on Ray share."""

import numpy as np
import torch
from peer_programs.control import Task
from peer_programs.data import initial_weights
from torch import nn


def network(model: str) -> nn.Sequential:
    """Returns a model with the initial weights of all contenders."""
    if model == "mlp":
        built = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    else:
        built = nn.Sequential(
            *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1024, 10)),
        )
    with torch.no_grad():
        for parameter, weight in zip(
            built.parameters(), initial_weights(model), strict=True
        ):
            # PyTorch's kernels have their outputs and inputs first.
            axes = (3, 2, 0, 1) if weight.ndim == 4 else None
            parameter.copy_(torch.from_numpy(weight.transpose(axes).copy()))
    return built


def optimizer(task: Task, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Returns the optimizer of a task for some parameters."""
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[task.optimizer]
    return kind(parameters, task.learning_rate)


def images(batch: np.ndarray) -> torch.Tensor:
    """Returns images in PyTorch's layout, with channels first."""
    if batch.ndim == 4:
        batch = batch.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(batch))


def batches(
    every: tuple[np.ndarray, np.ndarray],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the batches of an epoch, as `Data.batches` has them, as tensors."""
    return [
        (images(each), torch.from_numpy(labels).long())
        for each, labels in zip(*every, strict=True)
    ]
