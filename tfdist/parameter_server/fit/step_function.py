"""`train_function`, `test_function` and `predict_function` that run on workers.

Keras calls them from `fit`, `evaluate`, `predict` and the `_on_batch` methods. With
batches of a `Feed` they return at once, while up to a few steps a worker are under
way; with a single batch (`train_on_batch` and its kind) they wait for its result.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfdist.keras.logs import StepLogs
from tfdist.liveness.activity import DATA
from tfdist.parameter_server.fit.feed import BatchLayout, FedBatch, Feed, as_tensors
from tfdist.parameter_server.fit.refusals import check_captures
from tfdist.parameter_server.fit.tables import give_to_workers
from tfdist.parameter_server.fit.worker_function import trace_steps, trace_steps_reading

if TYPE_CHECKING:
    from tfdist.parameter_server.strategy import ParameterServerStrategy


class StepFunction:
    """Runs `train_step` or `test_step` on the workers.

    Args:
        model: The Keras model.
        strategy: The cluster.
        step: The model's own step: a batch to a dict of logs.
        steps_per_execution: How many steps a worker is sent at once.
        workers_may_read: Whether an endless dataset may be read by the workers, so
            that which of its batches are used depends on how fast each of them is.
    """

    def __init__(
        self,
        model: Any,
        strategy: "ParameterServerStrategy",
        step: Callable[[Any], Any],
        steps_per_execution: int,
        workers_may_read: bool = False,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._step = step
        self._workers_may_read = workers_may_read
        self._steps = steps_per_execution
        self._logs = StepLogs(model)
        self._traced: dict[Any, Any] = {}

    def __call__(self, iterator: Iterator[Any]) -> dict[str, Any]:
        """Runs the next step or steps.

        Returns:
            The logs. For a `Feed`, those of steps that have finished so far, a dict
            that is kept up to date.

        Raises:
            StopIteration: If there is no batch left; all steps have finished.
        """
        if isinstance(iterator, Feed):
            return self._run_ahead(iterator)
        return self._run_and_wait(next(iterator))

    def _run_ahead(self, feed: Feed) -> dict[str, Any]:
        in_flight = self._strategy.in_flight
        if self._workers_may_read and feed.worker_input is not None:
            argument = feed.worker_input.iterators
            function = self._trace_reading(feed.layout, argument)
        else:
            argument = self._take(feed)
            function = self._trace(feed.layout, self._steps)
        in_flight.submit(function, argument, self._logs.take)
        if self._logs.are_unknown:
            in_flight.join()
        return self._logs.latest()

    def _take(self, feed: Feed) -> tf.Tensor:
        try:
            with self._strategy.activity.waiting_for(DATA):
                rows = [batch.row for batch in feed.take(self._steps)]
        except StopIteration:
            # Keras leaves the epoch without the synchronisation of its other exits.
            self._strategy.in_flight.join()
            raise
        return rows[0] if self._steps == 1 else tf.concat(rows, axis=0)

    def _run_and_wait(self, batch: Any) -> dict[str, Any]:
        batch = as_tensors(batch)
        layout = BatchLayout.of_batch(batch)
        in_flight = self._strategy.in_flight
        in_flight.submit(self._trace(layout, 1), layout.to_row(batch), self._logs.take)
        in_flight.join()
        return self._logs.now()

    def _trace(self, layout: BatchLayout, steps: int) -> Any:
        return self._traced_once(
            (layout.key, steps),
            lambda step: trace_steps(self._strategy, step, layout, steps),
        )

    def _trace_reading(self, layout: BatchLayout, iterators: Any) -> Any:
        return self._traced_once(
            (layout.key, "reading"),
            lambda step: trace_steps_reading(
                self._strategy, step, layout, iterators, self._steps
            ),
        )

    def _traced_once(self, key: Any, trace: Callable[[Callable[..., Any]], Any]) -> Any:
        if key not in self._traced:
            give_to_workers(self._model)
            function = trace(lambda batch: self._logs.pack(self._step(batch)))
            check_captures(function, self._model)
            self._traced[key] = function
        return self._traced[key]


class PredictFunction:
    """Runs `predict_step` on the workers; the outputs keep the order of the batches.

    Args:
        model: The Keras model.
        strategy: The cluster.
    """

    def __init__(self, model: Any, strategy: "ParameterServerStrategy") -> None:
        self._model = model
        self._strategy = strategy
        self._traced: dict[Any, Any] = {}

    def __call__(self, batches: list[Any]) -> Any:
        """Returns the outputs for the batches, concatenated."""
        outputs = [self._output(batch) for batch in batches]
        if len(outputs) == 1:
            return outputs[0]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *outputs)

    def _output(self, batch: Any) -> Any:
        if not isinstance(batch, FedBatch):
            tensors = as_tensors(batch)
            layout = BatchLayout.of_batch(tensors)
            output = self._submit(layout, layout.to_row(tensors))
            return self._strategy.in_flight.fetch(output)
        if batch.output is None:
            self._ask_for(batch)
        for ahead in batch.feed.peek(self._strategy.in_flight.limit):
            if ahead.output is None:
                self._ask_for(ahead)
        return self._strategy.in_flight.fetch(batch.output)

    def _ask_for(self, batch: FedBatch) -> None:
        batch.output = self._submit(batch.feed.layout, batch.row)

    def _submit(self, layout: BatchLayout, row: tf.Tensor) -> Any:
        if layout.key not in self._traced:
            self._build(layout)
            give_to_workers(self._model)
            function = trace_steps(
                self._strategy, self._model.predict_step, layout, steps=1
            )
            check_captures(function, self._model)
            self._traced[layout.key] = function
        # The chief waits for every output itself, so nothing has to be bounded.
        return self._strategy.in_flight.schedule(self._traced[layout.key], row)

    def _build(self, layout: BatchLayout) -> None:
        """Creates the variables of a model that has not seen a batch before."""
        if self._model.built:
            return
        x, _, _ = keras.utils.unpack_x_y_sample_weight(layout.structure)
        with self._strategy.scope():
            self._model(
                tf.nest.map_structure(
                    lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), x
                )
            )
