"""A model's steps to train, test and predict, run on all replicas together."""

import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.types import Logs, Nest
from tfdist.keras import building
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.logs import check_is_a_log
from tfdist.peers import calls
from tfdist.peers.input import ShardedIterator
from tfdist.synchronous.fit.metric_results import MetricResults, flat_logs
from tfdist.synchronous.fit.model_functions import ModelFunctions, runs_eagerly
from tfdist.synchronous.fit.refusals import (
    check_assigned,
    check_copies,
    check_normalization,
)
from tfdist.synchronous.fit.run import (
    Reductions,
    ShareFunction,
    VaryingShapesError,
    on_batch,
    repeated,
)
from tfdist.synchronous.replica.all_rows import AllRows
from tfdist.synchronous.replica.collectives import of_first_replica, sum_tensors
from tfdist.synchronous.replica.computation import tracing
from tfdist.synchronous.replica.step import ReplicaStep
from tfdist.synchronous.replica.whole_batch import part_of
from tfdist.synchronous.replica.written import settle_written

_as_written = tf.autograph.experimental.do_not_convert
_rehearsed: "weakref.WeakKeyDictionary[Any, dict[str, Reductions]]" = (
    weakref.WeakKeyDictionary()
)
"""The kinds of the numbers that each model's steps compute, by the step's name."""


class ReplicaSteps(ModelFunctions):
    """Runs the train or the test steps of a model on all replicas together."""

    def __init__(self, model: keras.Model, step: Callable[[Nest], Nest]) -> None:
        super().__init__(model)
        self._step = step
        self._are_single = False

    def on_data(self, data: ShardedIterator) -> Logs:
        """Runs the next steps and returns their logs, equal on every worker.

        Raises:
            StopIteration: If the data of all workers has ended.
            PeerLostError: If another task ended or does not respond.
        """
        waiting = self.strategy.fit_driver.waiting(calls.STEP)
        with waiting, self.naming_errors(data.structure.has_fixed_rows):
            try:
                ran, logs = self._next_steps(data)
            except tf.errors.OpError:
                self.strategy.copies_may_differ = True
                raise
            data.taken += int(ran)
            if not int(ran):
                raise StopIteration
            return logs

    def _next_steps(self, data: ShardedIterator) -> tuple[Nest, Nest]:
        """Runs steps; returns how many had data, and the logs after the last of them."""
        if not self._are_single:
            try:
                return self._on_shares(data)(data.values, *_steps_of(data))
            except VaryingShapesError:
                # All workers trace the same step, so each of them arrives here.
                self._are_single = True
        ran, logs = 0, None
        step = self._on_shares(data, single=True)
        for _ in range(data.steps_requested or self.model.steps_per_execution):
            had_data, found = step(data.values)
            if not int(had_data):
                break
            ran, logs = ran + 1, found
        return ran, logs

    def _on_present(self, structure: BatchStructure, present: tuple[Any, ...]) -> Any:
        with MetricResults(self.model) as self._results:
            outputs = on_batch(
                self.strategy, structure, present, self._run, self._kinds
            )
        return self._logs(outputs)

    def rehearse(self, structure: BatchStructure, batch: Nest) -> None:
        """Traces one replica's step on a symbolic batch, as the only replica.

        Raises:
            Exception: Whatever the step raises.
        """
        step = self.only_replica(structure, batch)
        with MetricResults(self.model) as self._results, tracing(step):
            self._run(step, batch)
        _rehearsed.setdefault(self.model, {})[self._step.__name__] = tuple(step.kinds)

    @property
    def _kinds(self) -> Reductions:
        """The kinds that a rehearsal found, or None if the step itself is traced."""
        if not runs_eagerly(self.model):
            return None
        return _rehearsed[self.model][self._step.__name__]

    def _on_shares(
        self, shares: ShardedIterator, single: bool = False
    ) -> Callable[..., Nest]:
        attempt = ShareFunction(
            self.strategy,
            shares.structure,
            shares.totals,
            self._run,
            self._kinds,
        )
        each = self.model.steps_per_execution

        def execute(values: Nest, asked: Nest = None) -> tuple[tf.Tensor, Nest]:
            with MetricResults(self.model) as self._results:
                if single or (asked is None and each == 1):
                    ran, outputs = attempt(values)
                else:
                    steps = each if asked is None else asked
                    ran, outputs = repeated(attempt, values, steps)
            # An eager step leaves nothing, not even zeros, where the data has ended. That
            # is the same on all workers, so none waits for the others to add up logs.
            return ran, {} if outputs is None else self._logs(outputs)

        in_strides = shares.steps_requested is not None and not single
        key = f"{self.key_of(shares)} {in_strides} {single}"
        return self.function(key, shares.structure, execute)

    def _run(self, step: ReplicaStep, batch: Nest) -> dict[str, tf.Tensor]:
        """Runs one replica's step. Returns its parts of the logs that no metric made."""
        step.model = self.model
        step.is_given(batch)
        # A model's `metrics` may leave some of its metrics out: a layer's has all.
        metrics = [*self.model.metrics, *keras.Layer.metrics.fget(self.model)]
        step.sums([variable for metric in metrics for variable in metric.variables])
        with step.own_seed.drawing():
            logs = flat_logs(self._step(batch))
        is_traced = not (step.is_rehearsal or tf.executing_eagerly())
        if is_traced:
            graph = tf.compat.v1.get_default_graph()
            # Where every worker runs the script, each has such a variable of its own.
            if self.strategy.has_one_script:
                check_copies(graph, self.model)
            check_assigned(graph, step)
            if self.strategy.num_replicas_in_sync > 1:
                check_normalization(step)
        settle_written(step)
        self._sources = {n: self._results.source_of(log) for n, log in logs.items()}
        return {
            name: part_of(step, _as_float(logs[name]))
            for name, source in self._sources.items()
            if source is None
        }

    @_as_written
    def _logs(self, outputs: Nest) -> dict[str, tf.Tensor]:
        """Returns the logs of all replicas: metrics of all examples, and sums of parts."""
        variables = self.model.metrics_variables
        others = sorted(outputs)

        def add_up(outputs: Nest) -> list[tf.Tensor]:
            states = [_state(each) for each in variables]
            return sum_tensors([*states, *(outputs[name] for name in others)])

        sums = self.strategy.run(add_up, args=(outputs,))
        sums = [self.strategy.experimental_local_results(each)[0] for each in sums]
        states = sums[: len(variables)]
        totals = dict(zip(others, sums[len(variables) :], strict=True))
        # A metric's result is not additive in general (AUC, a ratio), its state is. The
        # scope computes the result from the summed states and leaves each replica's own
        # state alone, to which the next step adds.
        with keras.StatelessScope(
            state_mapping=list(zip(variables, states, strict=True))
        ):
            return {
                name: totals[name] if source is None else source.result()
                for name, source in self._sources.items()
            }


def _state(variable: keras.Variable) -> tf.Tensor:
    """Returns this replica's contribution to the value of a metric's variable."""
    value = tf.convert_to_tensor(variable.value)
    context = tf.distribute.get_replica_context()
    if variable.aggregation == "sum":
        return value
    if variable.aggregation == "mean":
        return value / tf.cast(context.num_replicas_in_sync, value.dtype)
    return of_first_replica(value)


def _as_float(value: tf.Tensor) -> tf.Tensor:
    """Returns a log as a float tensor, which replicas can add up.

    Raises:
        ValueError: If it is not a number, or has no fixed shape.
    """
    value = tf.convert_to_tensor(value)
    check_is_a_log(value)
    return value if value.dtype.is_floating else tf.cast(value, tf.float32)


def _steps_of(data: ShardedIterator) -> tuple[tf.Tensor, ...]:
    return () if data.steps_requested is None else (tf.constant(data.steps_requested),)


class ReplicaPredictions(ModelFunctions):
    """Predicts on all replicas. Every worker gets the outputs of all of them."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self._step = building.step_of(model, building.PREDICT)

    def on_data(self, data: ShardedIterator) -> Logs:
        """Returns the outputs of the next batch.

        Raises:
            StopIteration: If the data of all workers has ended.
            PeerLostError: If another task ended or does not respond.
        """
        waiting = self.strategy.fit_driver.waiting(calls.STEP)
        with waiting, self.naming_errors(data.structure.has_fixed_rows):
            ran, outputs = self._on_shares(data)(data.values)
            if not int(ran):
                raise StopIteration
            return outputs

    def _on_shares(self, shares: ShardedIterator) -> Callable[..., Nest]:
        attempt = ShareFunction(
            self.strategy,
            shares.structure,
            shares.totals,
            self._run,
        )
        return self.function(
            self.key_of(shares),
            shares.structure,
            lambda values: self._local(attempt(values)),
        )

    def _on_present(self, structure: BatchStructure, present: tuple[Any, ...]) -> Any:
        return self._local(on_batch(self.strategy, structure, present, self._run))

    def rehearse(self, structure: BatchStructure, batch: Nest) -> None:
        """Traces one replica's step on a symbolic batch, as the only replica."""
        with tracing(self.only_replica(structure, batch)):
            self._step(batch)

    def _run(self, step: ReplicaStep, batch: Nest) -> Nest:
        outputs = self._step(batch)
        rows = AllRows(step, keras.tree.flatten(outputs)).concatenated()
        return keras.tree.pack_sequence_as(outputs, rows)

    def _local(self, values: Nest) -> Nest:
        return tf.nest.map_structure(
            lambda each: self.strategy.experimental_local_results(each)[0], values
        )
