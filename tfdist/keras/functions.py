"""The functions that Keras calls to train, test and predict, under any driver.

Keras calls them with an iterator over the driver's data in `fit`, `evaluate` and
`predict`, and with single batches in `train_on_batch` and the like.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import keras
import tensorflow as tf

from tfdist._support.types import Logs, Nest


class Runs(Protocol):
    """Trains, tests or predicts, as a driver does it."""

    @property
    def data_type(self) -> type:
        """The class of the elements of an iteration over the driver's data."""

    def on_data(self, data: Nest) -> Nest:
        """Runs the next steps on the driver's data; returns their logs, or the outputs.

        Logs may cover only the steps finished so far, in a dict that is kept up to date.
        Raises StopIteration at the end of the data.
        """

    def on_batch(self, batch: Nest) -> Nest:
        """Runs one step on a batch from the user; returns its logs, or the outputs."""


@dataclass(eq=False)
class StepFunction:
    """A model's `train_function` or `test_function`."""

    model: keras.Model
    steps: Runs

    def __call__(self, iterator: Iterator[Nest]) -> Logs:
        """Runs the next `steps_per_execution` steps, and returns their logs."""
        # `fit` passes the iterator over the driver's data; `train_on_batch`, one over a batch.
        if isinstance(iterator, self.steps.data_type):
            logs: Logs = self.steps.on_data(iterator)
            return logs
        latest: Logs | None = None
        for batch in itertools.islice(iterator, self.model.steps_per_execution):
            latest = self.steps.on_batch(batch)
        if latest is None:
            raise StopIteration
        return latest


class PredictFunction:
    """A model's `predict_function`. Outputs keep the order of the batches."""

    def __init__(self, predictions: Runs) -> None:
        self._predictions = predictions

    def __call__(self, data: list[Nest]) -> Nest:
        """Returns the outputs for some batches, concatenated."""
        outputs = []
        for each in data:
            try:
                outputs.append(self._output(each))
            except StopIteration:
                # Keep the outputs so far; the next call raises StopIteration.
                break
        if not outputs:
            raise StopIteration
        if len(outputs) == 1:
            return outputs[0]
        return keras.tree.map_structure(lambda *parts: tf.concat(parts, 0), *outputs)

    def _output(self, data: Nest) -> Nest:
        if isinstance(data, self._predictions.data_type):
            return self._predictions.on_data(data)
        return self._predictions.on_batch(data)
