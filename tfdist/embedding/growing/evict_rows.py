"""Gives up rows of growing tables while a model trains."""

import logging
from typing import Any

import keras

from tfdist import _tf
from tfdist.embedding.growing.growing_layer import GrowingLayer

_log = logging.getLogger("tfdist")


class EvictRows(keras.callbacks.Callback):
    """Has each growing table give up rows at the end of epochs, by its `eviction`.

    It waits for the steps in flight: no step has looked up a row that is given up.

    Args:
        every: The number of epochs between two evictions.

    Raises:
        ValueError: If `every` is below 1; and at the start of `fit`, if no layer of the model
            has an eviction.
    """

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a number of epochs; received {every!r}")
        self._every = every

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks the model."""
        if not self._layers():
            raise ValueError(
                f"{self.model.name} has no growing table with an eviction: give one to "
                "tfdist.embedding.DynamicEmbedding, or leave out EvictRows"
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Evicts, if it is time."""
        if (epoch + 1) % self._every:
            return
        for layer in self._layers():
            _log.info("%s: %d rows were given up", layer.path, layer.evict())

    def _layers(self) -> list[GrowingLayer]:
        layers = _tf.flatten_layers(self.model)
        return [
            each for each in layers if isinstance(each, GrowingLayer) and each.eviction
        ]
