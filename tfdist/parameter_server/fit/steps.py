"""A model's steps on whichever worker is free.

With batches of a `Feed` they return at once, while up to a few steps per worker are
under way; with a single batch (`train_on_batch` and its kind) they wait for its result.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.logs import StepLogs
from tfdist.liveness.activity import DATA
from tfdist.parameter_server.fit.feed import FedBatch, Feed
from tfdist.parameter_server.fit.in_flight import InFlight
from tfdist.parameter_server.fit.message import as_tensors, to_row
from tfdist.parameter_server.fit.refusals import check_captures
from tfdist.parameter_server.fit.tables import give_to_workers
from tfdist.parameter_server.fit.worker_function import trace_steps, trace_steps_reading


class WorkerSteps:
    """Runs the train or the test steps of a model on the workers.

    Args:
        model: The Keras model.
        in_flight: Sends functions to the workers.
        step: The model's own step: maps a batch to a dict of logs.
        workers_may_read: Whether the workers may read an endless dataset, so that
            which of its batches are used depends on how fast each of them is.
    """

    data_type = Feed

    def __init__(
        self,
        model: Any,
        in_flight: InFlight,
        step: Callable[[Any], Any],
        workers_may_read: bool = False,
    ) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._in_flight = in_flight
        self._step = step
        self._workers_may_read = workers_may_read
        self._steps = model.steps_per_execution
        self._logs = StepLogs(model)
        self._traced: dict[Any, Any] = {}

    def on_data(self, data: Feed) -> dict[str, Any]:
        """Sends the next steps to a worker, and returns the logs of finished ones.

        Raises:
            StopIteration: If there is no batch left; all steps have finished.
        """
        if self._workers_may_read and data.worker_input is not None:
            argument = data.worker_input.iterators
            function = self._trace_reading(
                data.structure, data.worker_input.iterator_spec
            )
        else:
            argument = self._take(data)
            function = self._trace(data.structure, self._steps)
        self._in_flight.submit(function, argument, self._logs.take)
        if self._logs.are_unknown:
            self._in_flight.join()
        return self._logs.latest()

    def _take(self, feed: Feed) -> tf.Tensor:
        try:
            with self._strategy.activity.waiting_for(DATA):
                rows = [batch.row for batch in feed.take(self._steps)]
        except StopIteration:
            # Keras leaves the epoch here without waiting, as it does elsewhere.
            self._in_flight.join()
            raise
        return rows[0] if self._steps == 1 else tf.concat(rows, axis=0)

    def on_batch(self, batch: Any) -> dict[str, Any]:
        """Runs one step on a worker, and waits for its logs."""
        batch = as_tensors(batch)
        structure = BatchStructure.of_batch(batch)
        function = self._trace(structure, 1)
        self._in_flight.submit(function, to_row(structure, batch), self._logs.take)
        self._in_flight.join()
        return self._logs.now()

    def _trace(self, structure: BatchStructure, steps: int) -> Any:
        return self._traced_once(
            (structure.key, steps),
            lambda step: trace_steps(self._strategy, step, structure, steps),
        )

    def _trace_reading(
        self, structure: BatchStructure, iterator_spec: tf.TypeSpec
    ) -> Any:
        return self._traced_once(
            (structure.key, "reading"),
            lambda step: trace_steps_reading(
                self._strategy, step, structure, iterator_spec, self._steps
            ),
        )

    def _traced_once(self, key: Any, trace: Callable[[Callable[..., Any]], Any]) -> Any:
        if key not in self._traced:
            give_to_workers(self._model)
            function = trace(lambda batch: self._logs.pack(self._step(batch)))
            check_captures(function, self._model)
            self._traced[key] = function
        return self._traced[key]


class WorkerPredictions:
    """Predicts on the workers.

    Args:
        model: The Keras model.
        in_flight: Sends functions to the workers.
    """

    data_type = FedBatch

    def __init__(self, model: Any, in_flight: InFlight) -> None:
        self._model = model
        self._in_flight = in_flight
        self._traced: dict[Any, Any] = {}

    def on_data(self, data: FedBatch) -> Any:
        """Waits for the outputs of one batch, and asks for those of the next ones."""
        if data.output is None:
            self._ask_for(data)
        for ahead in data.feed.peek(self._in_flight.limit):
            if ahead.output is None:
                self._ask_for(ahead)
        return self._in_flight.fetch(data.output)

    def on_batch(self, batch: Any) -> Any:
        """Waits for the outputs of a batch of the user's."""
        tensors = as_tensors(batch)
        structure = BatchStructure.of_batch(tensors)
        output = self._schedule(structure, to_row(structure, tensors))
        return self._in_flight.fetch(output)

    def _ask_for(self, batch: FedBatch) -> None:
        batch.output = self._schedule(batch.feed.structure, batch.row)

    def _schedule(self, structure: BatchStructure, row: tf.Tensor) -> Any:
        if structure.key not in self._traced:
            self._build(structure)
            give_to_workers(self._model)
            strategy = self._model.distribute_strategy
            function = trace_steps(
                strategy, self._model.predict_step, structure, steps=1
            )
            check_captures(function, self._model)
            self._traced[structure.key] = function
        # The chief waits for every output itself, so nothing has to be bounded.
        return self._in_flight.schedule(self._traced[structure.key], row)

    def _build(self, structure: BatchStructure) -> None:
        """Creates the variables of a model that has not seen a batch before."""
        if self._model.built:
            return
        x, _, _ = keras.utils.unpack_x_y_sample_weight(structure.specs)
        with self._model.distribute_strategy.scope():
            self._model(
                tf.nest.map_structure(
                    lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), x
                )
            )
