"""Workloads: models, data, and the length of a repeat."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

MODELS = ("mlp", "cnn")
CLASSES = 10
_EXAMPLES = 4096
_SHAPES = {"mlp": ((784,), "float32"), "cnn": ((28, 28, 1), "uint8")}


@dataclass(frozen=True)
class Workload:
    """A model to train, and a repeat of a number of steps.

    Attributes:
        model: One of `MODELS`.
        batch_size: Examples a step.
        steps: Training steps per repeat, a multiple of `steps_per_execution`.
        steps_per_execution: Steps per call to a worker.
        repeats: Measured repeats, after one warm-up repeat.
    """

    model: str
    batch_size: int
    steps: int
    steps_per_execution: int
    repeats: int

    @property
    def label(self) -> str:
        """The workload as a heading: `mlp x10`."""
        return f"{self.model} x{self.steps_per_execution}"

    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns 4,096 random images, float32 or uint8, and their int32 labels."""
        random = np.random.default_rng(0)
        shape, dtype = _SHAPES[self.model]
        pixels = random.integers(0, 256, (_EXAMPLES, *shape), dtype=np.uint8)
        images = pixels if dtype == "uint8" else pixels.astype(dtype) / 255
        return images, random.integers(0, CLASSES, _EXAMPLES, dtype=np.int32)

    def epoch(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns as many examples as a repeat trains on, repeating the 4,096."""
        rows = np.arange(self.steps * self.batch_size) % _EXAMPLES
        images, labels = self.examples()
        return images[rows], labels[rows]

    def build(self, keras: ModuleType) -> Any:
        """Builds the model with Keras 3 or with tf_keras, which use the same names.

        The MLP has 269,322 weights. The CNN, of 62,346, is that of
        examples/mnist_cnn.py.
        """
        layers = keras.layers
        if self.model == "mlp":
            hidden = [layers.Dense(256, activation="relu") for _ in range(2)]
        else:
            hidden = [
                layers.Rescaling(1 / 255),
                layers.Conv2D(32, 5, activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 5, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dropout(0.4),
            ]
        shape, dtype = _SHAPES[self.model]
        image = keras.Input(shape, dtype=dtype)
        return keras.Sequential([image, *hidden, layers.Dense(CLASSES)])
