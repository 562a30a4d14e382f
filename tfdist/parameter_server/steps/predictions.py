"""Predicts on the workers, several batches ahead of the one that is waited for."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.keras.building import PREDICT, step_of
from tfdist.parameter_server.feed.feed import FedBatch
from tfdist.parameter_server.feed.sources import ChiefBatches, row_of
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.tracing import trace_for_workers
from tfdist.parameter_server.steps.worker_function import WorkerFunction


class WorkerPredictions:
    """Predicts on the workers."""

    data_type = FedBatch

    def __init__(self, model: keras.Model, in_flight: InFlight) -> None:
        self._model = model
        self._in_flight = in_flight
        self._traced: dict[Any, Any] = {}

    def on_data(self, data: FedBatch) -> Nest:
        """Waits for the outputs of one batch, and requests those of later batches."""
        if data.output is None:
            self._ask_for(data)
        # Keras asks for one batch at a time, and the others of the workers would wait.
        for ahead in data.feed.peek(self._in_flight.limit):
            if ahead.output is None:
                self._ask_for(ahead)
        return self._in_flight.fetch(
            data.output, functools.partial(data.feed.source.explained, data.row)
        )

    def on_batch(self, batch: Nest) -> Nest:
        """Returns the outputs for a batch from the user."""
        return self._in_flight.fetch(self._schedule(*row_of(batch)))

    def _ask_for(self, batch: FedBatch) -> None:
        batch.output = self._schedule(batch.feed.source, batch.row)

    def _schedule(self, source: ChiefBatches, row: tf.Tensor) -> Any:
        if source.key not in self._traced:
            self._build(source.structure.specs)
            strategy = self._model.distribute_strategy
            step = step_of(self._model, PREDICT)
            traced = trace_for_workers(
                self._model,
                source.structure,
                lambda: WorkerFunction(strategy, step, source.structure),
            )
            self._traced[source.key] = traced.function(source, 1)
        # The chief fetches every output and requests only `limit` ahead, so the number
        # of functions in flight needs no other bound.
        return self._in_flight.schedule(self._traced[source.key], row)

    def _build(self, specs: Nest) -> None:
        """Creates the variables of a model that has not been built."""
        if self._model.built:
            return
        x, _, _ = keras.utils.unpack_x_y_sample_weight(specs)
        with self._model.distribute_strategy.scope():
            self._model(
                tf.nest.map_structure(
                    lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), x
                )
            )
