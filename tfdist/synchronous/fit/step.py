"""The functions that Keras's `fit`, `evaluate` and `predict` call for each step."""

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.keras.logs import check_is_a_log
from tfdist.liveness.peers import explained
from tfdist.synchronous.fit.exchange import (
    gather_rows,
    of_first_replica,
    sum_tensors,
    undo_if_idle,
)
from tfdist.synchronous.fit.input import (
    BatchStructure,
    ShardedIterator,
    row_count,
)
from tfdist.synchronous.fit.metric_results import MetricResults, flat_logs
from tfdist.synchronous.fit.refusals import check_copies, warn_of_mixing
from tfdist.synchronous.fit.replica import ReplicaStep, replica_step
from tfdist.synchronous.fit.run import Kinds, ShareFunction, on_batch
from tfdist.synchronous.fit.whole_batch import part_of, settle_written

_as_written = tf.autograph.experimental.do_not_convert
_rehearsed: "weakref.WeakKeyDictionary[Any, dict[str, Kinds]]" = (
    weakref.WeakKeyDictionary()
)
"""The kinds of what the steps of a model compute, by the name of the step."""


class StepFunction:
    """What Keras calls to train or to test: `steps_per_execution` steps at a time.

    All workers trace the same functions the same number of times, whatever the sizes
    of their shares: TensorFlow numbers the collectives as it traces them.

    Args:
        model: The Keras model.
        strategy: Its `MultiWorkerMirroredStrategy`.
        step: The model's `train_step` or `test_step`.
    """

    def __init__(self, model: Any, strategy: Any, step: Callable[[Any], Any]) -> None:
        self._model = model
        self._strategy = strategy
        self._step = step
        self._traced: dict[str, Callable[..., Any]] = {}

    def __call__(self, iterator: Any) -> Any:
        """Runs the steps, and returns their logs: the same on every worker.

        Raises:
            StopIteration: If the data of all workers is at its end.
            PeerLostError: If another task ended or does not answer.
        """
        with explained(self._strategy.extended.lost_peers):
            if not isinstance(iterator, ShardedIterator):
                batches = itertools.islice(iterator, self._model.steps_per_execution)
                return [self._on_batch(batch) for batch in batches][-1]
            try:
                ran, logs = self._on_shares(iterator)(iterator.values)
            except tf.errors.OpError:
                self._strategy.copies_may_differ = True
                raise
            if not int(ran):
                raise StopIteration
            return logs

    def rehearse(self, structure: BatchStructure, batch: Any) -> None:
        """Traces one replica's step on a symbolic batch, as if there were no other.

        Raises:
            Exception: What the step raises.
        """
        rows = row_count(structure.flatten(batch)[0])
        step = ReplicaStep(
            tf.zeros([], tf.int64),
            rows,
            rows,
            structure.has_varying_rows,
            is_rehearsal=True,
        )
        with MetricResults(self._model) as self._results, replica_step(step):
            self._run(step, batch)
        _rehearsed.setdefault(self._model, {})[self._step.__name__] = tuple(step.kinds)

    @property
    def _kinds(self) -> Kinds:
        """What a rehearsal found; None if the step is traced and tells itself."""
        if not self._model.run_eagerly:
            return None
        return _rehearsed[self._model][self._step.__name__]

    def _on_shares(self, shares: ShardedIterator) -> Callable[..., Any]:
        attempt = ShareFunction(
            self._model,
            self._strategy,
            shares.structure,
            shares.knows_totals,
            self._run,
            self._kinds,
        )

        @_as_written
        def execute(values: Any) -> tuple[tf.Tensor, Any]:
            with MetricResults(self._model) as self._results:
                ran, outputs = attempt(values)
                if self._model.steps_per_execution > 1:
                    ran, outputs = self._repeat(attempt, values, ran, outputs)
            return ran, self._logs(outputs)

        return self._function(
            f"{shares.structure.specs} {shares.knows_totals}", execute
        )

    def _repeat(
        self, attempt: "ShareFunction", values: Any, ran: tf.Tensor, outputs: Any
    ) -> tuple[tf.Tensor, Any]:
        """Runs the steps behind the first one, for as long as there is data."""

        def proceed(step: tf.Tensor, goes_on: tf.Tensor, _: Any) -> tf.Tensor:
            return (step < self._model.steps_per_execution) & goes_on

        def run(step: tf.Tensor, _: Any, outputs: Any) -> tuple[Any, ...]:
            goes_on, outputs = attempt(values, outputs)
            return step + 1, goes_on, outputs

        _, _, outputs = tf.while_loop(
            proceed, _as_written(run), (tf.constant(1), ran, outputs)
        )
        return ran, outputs

    def _on_batch(self, batch: Any) -> Any:
        structure = BatchStructure.of_batch(batch)

        @_as_written
        def execute(*present: Any) -> Any:
            with MetricResults(self._model) as self._results:
                outputs = on_batch(
                    self._strategy, structure, present, self._run, self._kinds
                )
            return self._logs(outputs)

        function = self._function(repr(structure.specs), execute, structure.present)
        return function(*structure.flatten(batch))

    def _function(
        self, key: str, execute: Callable[..., Any], signature: Any = None
    ) -> Callable[..., Any]:
        if self._model.run_eagerly:
            return execute
        if key not in self._traced:
            self._traced[key] = _tf.function(execute, signature)
        return self._traced[key]

    def _run(self, step: ReplicaStep, batch: Any) -> dict[str, tf.Tensor]:
        """One replica's step; returns its parts of the logs that are not of metrics."""
        undo = undo_if_idle(step, self._model.metrics_variables)
        step.is_given(batch)
        step.sums(self._model.metrics_variables)
        logs = flat_logs(self._step(batch))
        is_traced = not (step.is_rehearsal or tf.executing_eagerly())
        if is_traced:
            graph = tf.compat.v1.get_default_graph()
            if self._strategy.has_one_script:
                check_copies(graph, self._model)
        settle_written(step)
        undo()
        self._sources = {n: self._results.source_of(log) for n, log in logs.items()}
        parts = {
            name: part_of(step, _as_float(logs[name]))
            for name, source in self._sources.items()
            if source is None
        }
        warn_of_mixing(step.reader.mixing)
        return parts

    @_as_written
    def _logs(self, outputs: Any) -> dict[str, tf.Tensor]:
        """The logs of all replicas: metrics of all examples, and sums of parts."""
        variables = self._model.metrics_variables
        others = sorted(outputs)

        def add_up(outputs: Any) -> list[tf.Tensor]:
            states = [_state(each) for each in variables]
            return sum_tensors([*states, *(outputs[name] for name in others)])

        sums = self._strategy.run(add_up, args=(outputs,))
        sums = [self._strategy.experimental_local_results(each)[0] for each in sums]
        states = sums[: len(variables)]
        totals = dict(zip(others, sums[len(variables) :], strict=True))
        with keras.StatelessScope(
            state_mapping=list(zip(variables, states, strict=True))
        ):
            return {
                name: totals[name] if source is None else source.result()
                for name, source in self._sources.items()
            }


class PredictFunction:
    """What Keras calls to predict; every worker gets the outputs of all.

    Args:
        model: The Keras model.
        strategy: Its `MultiWorkerMirroredStrategy`.
    """

    def __init__(self, model: Any, strategy: Any) -> None:
        self._model = model
        self._strategy = strategy
        self._traced: dict[str, Callable[..., Any]] = {}

    def __call__(self, data: list[Any]) -> Any:
        """Predicts some batches, and returns their outputs in one.

        Raises:
            StopIteration: If the data of all workers is at its end.
            PeerLostError: If another task ended or does not answer.
        """
        with explained(self._strategy.extended.lost_peers):
            if not isinstance(data[0], ShardedIterator):
                return _in_one([self._on_batch(batch) for batch in data])
            outputs = list(self._outputs(data))
        if not outputs:
            raise StopIteration
        return _in_one(outputs)

    def _outputs(self, data: list[ShardedIterator]) -> Iterator[Any]:
        for shares in data:
            ran, outputs = self._on_shares(shares)(shares.values)
            if not int(ran):
                return
            yield outputs

    def _on_shares(self, shares: ShardedIterator) -> Callable[..., Any]:
        attempt = ShareFunction(
            self._model,
            self._strategy,
            shares.structure,
            shares.knows_totals,
            self._run,
        )
        key = f"{shares.structure.specs} {shares.knows_totals}"
        return self._function(key, lambda values: self._local(attempt(values)))

    def _on_batch(self, batch: Any) -> Any:
        structure = BatchStructure.of_batch(batch)

        def execute(*present: Any) -> Any:
            return self._local(on_batch(self._strategy, structure, present, self._run))

        function = self._function(repr(structure.specs), execute, structure.present)
        return function(*structure.flatten(batch))

    def _function(
        self, key: str, execute: Callable[..., Any], signature: Any = None
    ) -> Callable[..., Any]:
        if self._model.run_eagerly:
            return execute
        if key not in self._traced:
            execute = _as_written(execute)
            self._traced[key] = _tf.function(execute, signature)
        return self._traced[key]

    def _run(self, step: ReplicaStep, batch: Any) -> Any:
        outputs = self._model.predict_step(batch)
        return keras.tree.map_structure(lambda each: gather_rows(step, each), outputs)

    def _local(self, values: Any) -> Any:
        return tf.nest.map_structure(
            lambda each: self._strategy.experimental_local_results(each)[0], values
        )


def _state(variable: Any) -> tf.Tensor:
    """What one replica adds to the value of a metric's variable."""
    value = tf.convert_to_tensor(variable.value)
    context = tf.distribute.get_replica_context()
    if variable.aggregation == "sum":
        return value
    if variable.aggregation == "mean":
        return value / tf.cast(context.num_replicas_in_sync, value.dtype)
    return of_first_replica(value)


def _as_float(value: Any) -> tf.Tensor:
    """A log, to be added up over the replicas.

    Raises:
        ValueError: If it is no number, or has no fixed shape.
    """
    value = tf.convert_to_tensor(value)
    check_is_a_log(value)
    return value if value.dtype.is_floating else tf.cast(value, tf.float32)


def _in_one(outputs: list[Any]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    return keras.tree.map_structure(lambda *parts: tf.concat(parts, 0), *outputs)
