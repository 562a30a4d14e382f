"""Runs a model's steps on whichever worker is free.

With batches from a `Feed`, a call returns immediately while few steps per worker are in
flight. With a single batch (`train_on_batch` and the like), it waits for the result.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Logs, Nest
from tfdist.cluster.liveness.activity import DATA
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.logs import StepLogs
from tfdist.keras.optimizers import optimizers_of
from tfdist.keras.strides import split
from tfdist.parameter_server.caching.cached_steps import CachedSteps
from tfdist.parameter_server.exchange.policies import keeps_values
from tfdist.parameter_server.feed.feed import Feed
from tfdist.parameter_server.feed.sources import Source, row_of
from tfdist.parameter_server.feed.worker_input import WorkerInput
from tfdist.parameter_server.gate.gate import Gate
from tfdist.parameter_server.rounds.rounds import Rounds
from tfdist.parameter_server.step_graph.step_graph import StepGraph
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.metric_sums import MetricSums
from tfdist.parameter_server.steps.refusals import AsynchronousTrainingError
from tfdist.parameter_server.steps.sent_functions import Handlers
from tfdist.parameter_server.steps.tracing import trace_for_workers
from tfdist.parameter_server.steps.worker_function import WorkerFunction

_log = logging.getLogger("tfdist")


class WorkerSteps:
    """Runs the train or the test steps of a model on the workers.

    Args:
        model: The Keras model.
        in_flight: Sends functions to the workers.
        step: The model's step, which maps a batch to a dict of logs.
        is_training: Whether the steps follow the strategy's policy of consistency, and
            the workers may read an endless dataset. The batches used then depend on the
            speed of each worker.
    """

    data_type = Feed

    def __init__(
        self,
        model: keras.Model,
        in_flight: InFlight,
        step: Callable[[Nest], Nest],
        is_training: bool = False,
    ) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._in_flight = in_flight
        self._step = step
        self._is_training = is_training
        self._steps = model.steps_per_execution
        self._logs = StepLogs(model, MetricSums(model, in_flight.join_functions))
        # Whether somebody sees the logs before the epoch ends.
        self._are_read = False
        self._traced: dict[Any, WorkerFunction] = {}
        self._functions: dict[Any, Any] = {}
        self._rounds: Rounds | None = None
        self._kept: dict[Any, Any] = {}

    def on_data(self, data: Feed) -> Logs:
        """Sends the next steps to a worker, and returns the logs of finished steps.

        Raises:
            StopIteration: If no batch is left; all steps have finished.
        """
        steps = data.steps_requested or self._steps
        self._begin_to_show(data)
        source = self._source_of(data)
        if isinstance(source, WorkerInput):
            for count in self._functions_of(source, steps, steps):
                self._submit(source, source.iterators, count)
        else:
            for rows in self._take(data, steps):
                self._submit(source, rows, len(rows))
        return self._logs_to_show(data)

    def _source_of(self, data: Feed) -> Source:
        if self._is_training and data.worker_input is not None:
            return data.worker_input
        return data.source

    def _begin_to_show(self, data: Feed) -> None:
        self._are_read = data.is_shown
        if data.is_first:
            self._logs.forget()

    def _logs_to_show(self, data: Feed) -> Logs:
        """Returns the logs of finished steps: after the last one, of all of them."""
        if not data.is_shown:
            return self._logs.known()
        if data.steps_requested is None:
            is_last = self._is_last(data)
            # Callbacks need logs after the first step, and only a finished step has any.
            if is_last or self._logs.are_unknown:
                self._in_flight.join_functions()
                return self._logs.now()
        return self._logs.latest()

    def _is_last(self, data: Feed) -> bool:
        if data.is_last is not None:
            return data.is_last
        if isinstance(self._source_of(data), WorkerInput):
            return False
        with self._strategy.activity.waiting_for(DATA):
            return not data.peek(1)

    def _rows(self, feed: Feed, steps: int) -> list[tf.Tensor]:
        """Takes batches.

        Raises:
            StopIteration: If none is left.
        """
        with self._strategy.activity.waiting_for(DATA):
            return [batch.row for batch in feed.take(steps)]

    def _take(self, feed: Feed, steps: int) -> list[tf.Tensor]:
        """Takes batches, and returns those of each message."""
        try:
            rows = self._rows(feed, steps)
        except StopIteration:
            # Keras leaves the epoch here without the wait that it makes elsewhere.
            self._in_flight.join()
            raise
        counts = self._functions_of(feed.source, len(rows), steps)
        rest = iter(rows)
        return [_joined(list(itertools.islice(rest, count))) for count in counts]

    def _functions_of(
        self, source: Source, steps: int, requested: int
    ) -> Iterable[int]:
        """Splits the requested steps into the sizes of the functions that run them."""
        if self._worker_function(source.structure).step.not_copied:
            return [1] * steps
        if steps == requested:
            return [steps]
        # What is left of a dataset of unknown length is not worth a trace.
        traced = {
            size
            for key, size, gate in self._functions
            if (key, gate) == (source.key, self._gate)
        }
        if self._strategy.exchange.steps == 1:
            traced.add(1)
        return split(steps, 1, traced)

    def _submit(self, source: Source, argument: Nest, steps: int) -> None:
        function = self._function(source, steps)
        # Without any, which is most often, nothing is looked up at each message.
        if self._kept:
            cached = self._worker_function(source.structure).cached_steps
            if cached is not None:
                self._strategy.caches.use(cached)
        self._logs.begin(self._are_read)
        self._in_flight.submit(
            function,
            argument,
            Handlers(
                on_result=self._logs.take,
                explain=functools.partial(source.explained, argument),
            ),
            steps=steps,
        )

    def on_batch(self, batch: Nest) -> Logs:
        """Runs one step on a worker, and waits for its logs."""
        self._are_read = False
        source, row = row_of(batch)
        self._submit(source, row, 1)
        self._in_flight.join()
        return self._logs.now()

    def _function(self, source: Source, steps: int) -> Any:
        # Another policy may have come with the epoch.
        key = source.key, steps, self._gate
        # TensorFlow registers each traced function with every task, and the chief waits
        # for all of them, so functions are traced once per key.
        if key not in self._functions:
            traced = self._worker_function(source.structure)
            self._functions[key] = traced.function(source, steps)
        return self._functions[key]

    def _worker_function(self, structure: BatchStructure) -> WorkerFunction:
        gate = self._gate
        if (structure.key, gate) not in self._traced:
            caching = keeps_values(self._strategy.exchange)
            traced = trace_for_workers(
                self._model,
                structure,
                lambda: WorkerFunction(
                    self._strategy,
                    # Packed: each result of a function costs a message.
                    lambda batch: self._logs.pack(self._step(batch)),
                    structure,
                    gate,
                    self._rounds,
                    self._caching if caching else None,
                    self._is_training,
                ),
            )
            _tell_of_seeds(traced.step.seeded, traced.step.not_copied)
            self._traced[structure.key, gate] = traced
            if self._is_training:
                self._strategy.fit_driver.note_step(traced)
        return self._traced[structure.key, gate]

    def _caching(self, step: StepGraph) -> CachedSteps:
        """Returns a step on values that its worker keeps."""
        captured = [outside for outside, _ in step.function.graph.captures]
        # Nothing is learned in a test, so any change of others is one.
        rate = _learning_rate_of(self._model, captured) if self._is_training else _none
        return CachedSteps(step, self._strategy, rate, self._kept)

    @property
    def _gate(self) -> Gate | None:
        return self._strategy.gate if self._is_training else None


def _learning_rate_of(
    model: keras.Model, captured: Iterable[Any]
) -> Callable[[], tf.Tensor]:
    """Returns a function that reads the learning rate where a step is traced.

    If several optimizers learn in a step, it is the smallest rate: the values of all
    weights move as often as those that need it most.

    Raises:
        AsynchronousTrainingError: If the step uses none of the model's optimizers.
    """
    handles = {id(each) for each in captured}
    used = [
        each
        for each in optimizers_of(model)
        if id(_tf.value_of(each.iterations).handle) in handles
    ]
    if not used:
        raise AsynchronousTrainingError(
            "exchange=WhenChanged(...) asks the learning rate how large a change is, and "
            "the train_step uses no optimizer that is an attribute of the model. Make its "
            "optimizer one, or use tfdist.ExchangeEvery(k)"
        )

    def rate() -> tf.Tensor:
        rates = [tf.cast(each.learning_rate, tf.float64) for each in used]
        return tf.reduce_min(tf.stack(rates))

    return rate


def _tell_of_seeds(seeded: Collection[str], not_copied: Collection[str]) -> None:
    if seeded:
        _log.info(
            "%s draw without the seed that they were given: each worker draws numbers of "
            "its own, which differ from run to run. keras.random keeps its seed",
            ", ".join(sorted(seeded)),
        )
    if not_copied:
        _log.warning(
            "%s keep a state of their own, so that each message to a worker has one step "
            "alone, and each worker has a state of its own",
            ", ".join(sorted(not_copied)),
        )


def _none() -> float:
    return 0.0


def _joined(rows: list[tf.Tensor]) -> tf.Tensor:
    return rows[0] if len(rows) == 1 else tf.concat(rows, axis=0)
