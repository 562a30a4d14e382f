"""The rounds of a model: its workers' steps, and the update that ends each."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.graph.tasks import task_at
from tfdist.keras.computation import Computation, computing
from tfdist.keras.optimizers import optimizers_of, replaced_applies
from tfdist.parameter_server.rounds.computation import (
    Contribution,
    RoundComputation,
    RoundError,
)
from tfdist.parameter_server.rounds.sums import GradientSums
from tfdist.parameter_server.rounds.turnstile import Turnstile
from tfdist.parameter_server.step_graph.step_graph import StepGraph
from tfdist.variables.partitioned import PartitionedVariable

TICKET = tf.TensorSpec([2], tf.int64)
"""The numbers of a step's round and batch, which it gets besides its batch."""


class Rounds:
    """The rounds of a model under `tfdist.Synchronous()`, each of `enough` gradients."""

    def __init__(self, model: keras.Model, enough: int) -> None:
        self._model, self._strategy = model, model.distribute_strategy
        self.gate = self._strategy.gate
        self.enough = enough
        devices = sorted({*_devices_of(model), self.gate.device})
        self.turnstiles = {device: self._turnstile(device) for device in devices}
        number = tf.TensorSpec([], tf.int64)
        with self._strategy.scope():
            self._let_all_pass = tf.function(
                self._passing, autograph=False
            ).get_concrete_function(number, number)
        # A worker that is lost could hold up the first call.
        self.let_all_pass(False)
        self._sums: GradientSums | None = None
        self._updates: dict[int, Any] = {}
        self._entered: dict[str, str] = {}
        self._complete: dict[str, str] = {}

    def _turnstile(self, device: str) -> Turnstile:
        return Turnstile(device, self._strategy.num_replicas, self.enough)

    def let_all_pass(self, passing: bool, lost: int = -1) -> None:
        """Ends all waits of steps for their rounds, until it is called again.

        `lost` is the index of a worker that is lost, if one is.
        """
        numbers = int(passing), lost
        self._let_all_pass(*(tf.constant(each, tf.int64) for each in numbers))

    def _passing(self, passing: tf.Tensor, lost: tf.Tensor) -> None:
        for each in self.turnstiles.values():
            each.let_all_pass(passing)

    def entered(self) -> dict[str, str]:
        """Returns the operations that the last traced step waits for, by ps."""
        return dict(self._entered)

    def in_round(
        self, step: Callable[[Nest], Nest]
    ) -> Callable[[Nest, tf.Tensor], Nest]:
        """Returns a function that traces a step as a worker's part of a round.

        It takes a batch and its ticket. Its result is the step's vector, and at the end the number
        of the round; -1 if it came before its round, and so did nothing.
        """

        def run(batch: Nest, ticket: tf.Tensor) -> Nest:
            with tf.name_scope(self.gate.scope):
                entered, first, is_early = self._enter(ticket)
            self._entered = {task_at(d): each.op.name for d, each in entered.items()}
            here = entered[self.gate.device]
            with tf.name_scope(self.gate.scope), tf.device(self.gate.device):
                is_part = here >= self._first(ticket)
            self.gate.entered(here, is_part)
            # A gradient of weights of two rounds belongs to neither: it counts nowhere.
            computed_in = _same_as(first, list(entered.values()))

            def contribute(contribution: Contribution) -> None:
                self._contribute(contribution, computed_in, ticket[1])

            computation = RoundComputation(_examples(batch), contribute)
            # What a class of its own does there is part of the update, of all gradients.
            own = replaced_applies(optimizers_of(self._model), computation.add)
            with computing(computation), own:
                result = step(batch)
            if not computation.applied:
                raise RoundError(
                    "the train_step applies no gradients, and tfdist.Synchronous() "
                    "averages those that an optimizer is to apply. Call "
                    "self.optimizer.apply(gradients, variables), or use "
                    "consistency=tfdist.Asynchronous()"
                )
            early = tf.constant(-1, tf.int64)
            number = tf.cast(tf.where(is_early, early, first), tf.float64)
            return tf.concat([result, [number]], axis=0)

        return run

    def _first(self, ticket: tf.Tensor) -> tf.Tensor:
        """Returns the first round that a step may be part of."""
        return ticket[0]

    def _enter(
        self, ticket: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        """Returns the round on each ps, the step's, and whether the wait was ended."""
        entered = {d: each.enter(ticket[0]) for d, each in self.turnstiles.items()}
        is_early = tf.reduce_any(tf.stack(list(entered.values())) < ticket[0])
        return entered, ticket[0], is_early

    def _contribute(
        self, contribution: Contribution, computed_in: tf.Tensor, batch: tf.Tensor
    ) -> None:
        if self._sums is None:
            # Sums live as long as the rounds, and not in the graph of the step being
            # traced.
            with tf.init_scope():
                self._sums = GradientSums(list(self.turnstiles), contribution)
        self.gate.computed()
        given = [each for each in contribution.gradients if each is not None]
        with tf.control_dependencies(tf.nest.flatten(given, expand_composites=True)):
            ready = tf.identity(computed_in, name="computed")
        with tf.name_scope(self.gate.scope):
            with tf.device(self.gate.device):
                arrived = tf.identity(ready, name="arrived")
            steps, counts = self._admit(computed_in, ready, batch)
        self.gate.admitted(arrived, counts)
        self._sums.add(contribution, steps)

    def _admit(
        self, computed_in: tf.Tensor, ready: tf.Tensor, batch: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Decides whether a gradient counts: the step of what each ps adds, and whether."""
        # Each of them counts, so there is no need to wait for it.
        steps = {
            d: each.admit(computed_in, batch) for d, each in self.turnstiles.items()
        }
        with tf.device(self.gate.device):
            return steps, steps[self.gate.device] >= 0

    def update(self, rounds: int) -> Any:
        """Returns the function of the number of gradients that ends `rounds` rounds.

        It runs on the chief, and waits there for the gradients.
        """
        if rounds not in self._updates:
            graph = self._update_graph
            with self._strategy.scope():
                self._updates[rounds] = tf.function(
                    lambda count: (
                        [graph.add([count], "round") for _ in range(rounds)] and None
                    ),
                    autograph=False,
                ).get_concrete_function(_COUNT)
        return self._updates[rounds]

    @property
    def _update_graph(self) -> StepGraph:
        # Under 0, which is no number of rounds.
        if 0 not in self._updates:
            self._updates[0] = StepGraph(
                self._strategy,
                self._end_round,
                [_COUNT],
                entered=lambda: self._complete,
            )
        graph: StepGraph = self._updates[0]
        return graph

    def _end_round(self, count: tf.Tensor) -> None:
        assert self._sums
        given = self._sums.contribution
        optimizer, variables, method = given.optimizer, given.variables, given.method
        averages, complete = self._sums.averages(count)
        self._complete = {task_at(d): each.op.name for d, each in complete.items()}

        def apply() -> None:
            with computing(Computation()):
                if method == "apply":
                    optimizer.apply(averages, variables)
                else:
                    optimizer.apply_gradients(zip(averages, variables, strict=True))

        self._strategy.run(apply)
        graph = tf.compat.v1.get_default_graph()
        homes = {inside.ref(): outside.device for outside, inside in graph.captures}
        # A ps is open again once all that the update writes there is written, and no
        # sooner.
        written = graph.get_operations()
        for device, turnstile in self.turnstiles.items():
            there = [
                op
                for op in written
                if device in (homes.get(i.ref()) for i in op.inputs)
            ]
            with tf.control_dependencies(there):
                turnstile.advance(count)


_COUNT = tf.TensorSpec([], tf.int32)


def _devices_of(model: keras.Model) -> list[str]:
    """Returns the ps that hold variables which a step or an update reads."""
    # A step adds to metrics without a turn: sums come out the same in any order.
    metrics = {id(each) for each in model.metrics_variables}
    every = [*model.variables, *model.optimizer.variables]
    holders = [_tf.value_of(each) for each in every if id(each) not in metrics]
    devices = set()
    for each in holders:
        whole = isinstance(each, PartitionedVariable)
        devices |= {s.device for s in (each.shards if whole else [each])}
    return sorted(devices)


def _examples(batch: Nest) -> tf.Tensor:
    first = next(each for each in tf.nest.flatten(batch) if each is not None)
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first)[0] if first.shape.rank else tf.constant(1)


def _same_as(asked: tf.Tensor, entered: list[tf.Tensor]) -> tf.Tensor:
    """Returns the round that was entered on every ps, or -1 if it is not the same."""
    is_same = tf.reduce_all(tf.stack(entered) == asked)
    return tf.where(is_same, asked, tf.constant(-1, tf.int64))
