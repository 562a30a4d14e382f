"""Rounds that end without the slowest workers.

One ps, the *lead*, decides for all of them which gradients of a round count.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdist.parameter_server.rounds.rounds import Rounds
from tfdist.parameter_server.rounds.turnstile import Turnstile, step_of
from tfdist.parameter_server.step_graph.step_graph import StepGraph
from tfdist.variables.resources import Numbers, Resource


class FollowingTurnstile(Turnstile):
    """The turnstile of a ps that follows the decisions of the lead."""

    def admit_as(self, counts: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        """Adds a gradient that counts, unless it is there already.

        A lost worker may have told the lead, and not this ps.
        """
        with tf.device(self.device):
            counts = tf.identity(counts)
            return step_of(self._add_if(lambda *_: counts, batch, counts)[0])


class LeadTurnstile(Turnstile):
    """The turnstile that decides who may join a round, and whose gradients count.

    The first N gradients count that were computed from the weights of the round, and the
    others are dropped, on every ps. A step joins the current round, if its worker has not
    computed a gradient of it yet, and waits for the next one otherwise. It need not wait
    if the steps in flight are too few to complete the round: near the end of an epoch,
    some workers have no batch left, and some may be lost.

    Args:
        device: The device of the ps.
        num_workers: The number of workers.
        enough: The number N of gradients that make an update.
        started: How many workers start a step of a round: N and the backups.
    """

    def __init__(
        self, device: str, num_workers: int, enough: int, started: int
    ) -> None:
        super().__init__(device, num_workers, enough)
        self._started = started
        # The round that each worker has joined last, and whether its step is in flight.
        self._joined = Numbers(device, [-1] * num_workers)
        self._runs = Numbers(device, [0] * num_workers)
        self._full = Resource(
            "FIFOQueueV2", device, component_types=[tf.int32], shapes=[[]], capacity=-1
        )

    def join(self, worker: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        """Waits until a step may join a round, and returns that; -1 if `let_all_pass` ended it.

        If its batch counts in the current round, because a lost worker has said so, its gradient
        is needed and does not wait.
        """
        with tf.device(self.device):
            worker, batch = tf.identity(worker), tf.identity(batch)

            def waits(
                joins: tf.Tensor, current: tf.Tensor, is_open: tf.Tensor
            ) -> tf.Tensor:
                return ~joins & (is_open == 0)

            def wait(
                joins: tf.Tensor, current: tf.Tensor, is_open: tf.Tensor
            ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                with tf.control_dependencies(self._woken(current + 1)):
                    return self._join_now(worker, batch)

            at_first = self._join_now(worker, batch)
            joins, current, _ = tf.while_loop(
                waits, wait, at_first, parallel_iterations=1
            )
            none = tf.constant(-1, tf.int64)
            return tf.identity(tf.where(joins, current, none), name="entered")

    def _join_now(
        self, worker: tf.Tensor, batch: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Joins the current round if the step may: whether, which, and if all may pass."""
        lock = tf.raw_ops.MutexLock(mutex=self._lock.handle)
        with tf.control_dependencies([lock]):
            current, so_far = tf.unstack(self._state.read())
            joined = self._joined.read()
            runs = self._runs.read()
            place = batch % self._counted.size
            is_needed = (self._counted.at(place) == batch) & (
                self._counted_in.at(place) == current
            )
            is_open = self._is_open.read()[0]
        here = tf.cast(joined == current, tf.int64)
        # A step whose gradient counts no longer runs, so none is counted twice.
        under_way = so_far + tf.reduce_sum(here * runs)
        is_new = tf.gather(joined, worker) != current
        is_first = is_new & (under_way < self._started)
        joins = (so_far < self._enough) & (is_first | (under_way < self._enough))
        joins |= is_needed
        # Slices of length 0 or 1 write or leave, without a branch.
        number = tf.cast(joins, tf.int64)
        at = tf.reshape(worker, [1])[:number]
        # The lock covers the writes only if these wait for what was read under it.
        with tf.control_dependencies([joins, is_open]):
            written = [
                self._joined.set_at(at, tf.reshape(current, [1])[:number]),
                self._runs.set_at(at, tf.ones([number], tf.int64)),
            ]
        with tf.control_dependencies(written):
            unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([unlocked]):
            return tf.identity(joins), tf.identity(current), is_open

    def decide(
        self, computed_in: tf.Tensor, worker: tf.Tensor, batch: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Decides whether the gradient of a step counts, and ends the step.

        Returns whether it counts in the current round, and the step of what this ps adds.
        """
        with tf.device(self.device):
            computed_in, worker = tf.identity(computed_in), tf.identity(worker)

            def counts(current: tf.Tensor, so_far: tf.Tensor) -> tf.Tensor:
                return (computed_in == current) & (so_far < self._enough)

            def end(current: tf.Tensor, now: tf.Tensor, adds: tf.Tensor) -> list[Any]:
                is_full = tf.cast(adds & (now == self._enough), tf.int32)
                count = tf.fill([is_full], self._enough)
                at = tf.reshape(worker, [1])
                stopped = self._runs.set_at(at, tf.zeros([1], tf.int64))
                with tf.control_dependencies([stopped]):
                    # Waiting steps may have counted on this one.
                    woken = self._wake(None, ~adds)
                full = tf.raw_ops.QueueEnqueueManyV2(
                    handle=self._full.handle, components=[count]
                )
                return [stopped, full, *woken]

            adds, counted_in = self._add_if(counts, batch, computed_in, end)
            # An update may have begun by now, but not ended: it would need this one.
            is_of_round = (counted_in >= 0) & (counted_in == computed_in)
            return is_of_round, step_of(adds)

    def full(self) -> tf.Tensor:
        """Waits until the round is full, or is to end; returns its number of gradients."""
        with tf.device(self.device):
            (count,) = tf.raw_ops.QueueDequeueV2(
                handle=self._full.handle, component_types=[tf.int32]
            )
            count.set_shape([])
            return count

    def end(self, gradients: int) -> None:
        """Ends a round with those that it has. Call it while no step is in flight."""
        with tf.device(self.device):
            tf.raw_ops.QueueEnqueueV2(
                handle=self._full.handle, components=[tf.constant(gradients)]
            )

    def leave(self, worker: tf.Tensor) -> None:
        """Takes out the step of a worker, if it is the index of one: it is lost."""
        with tf.device(self.device):
            number = tf.cast(worker >= 0, tf.int64)
            at = tf.reshape(worker, [1])[:number]
            gone = self._runs.set_at(at, tf.zeros([number], tf.int64))
            with tf.control_dependencies([gone]):
                self._wake(None)


class BackupRounds(Rounds):
    """The rounds of a model under `tfdist.Synchronous(backup_workers=b)`.

    A batch does not belong to a round: its step joins the current one.

    Cost: beyond `Rounds`, a step waits for the lead before it reads from other ps, and
    before it writes there.
    """

    def __init__(self, model: keras.Model, enough: int, started: int) -> None:
        self._started = started
        super().__init__(model, enough)

    def _turnstile(self, device: str) -> Turnstile:
        workers = self._strategy.num_replicas
        if device == self.gate.device:
            return LeadTurnstile(device, workers, self.enough, self._started)
        return FollowingTurnstile(device, workers, self.enough)

    @property
    def lead(self) -> LeadTurnstile:
        """The turnstile that decides."""
        lead = self.turnstiles[self.gate.device]
        assert isinstance(lead, LeadTurnstile)
        return lead

    def _passing(self, passing: tf.Tensor, lost: tf.Tensor) -> None:
        super()._passing(passing, lost)
        self.lead.leave(lost)

    def _first(self, ticket: tf.Tensor) -> tf.Tensor:
        return tf.constant(0, tf.int64)

    def _enter(
        self, ticket: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        joined = self.lead.join(self.gate.worker, ticket[1])
        entered = {
            device: joined if each is self.lead else each.enter(joined)
            for device, each in self.turnstiles.items()
        }
        return entered, joined, joined < 0

    def _admit(
        self, computed_in: tf.Tensor, ready: tf.Tensor, batch: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        counts, of_lead = self.lead.decide(ready, self.gate.worker, batch)
        steps = {
            device: each.admit_as(counts, batch)
            for device, each in self.turnstiles.items()
            if isinstance(each, FollowingTurnstile)
        }
        with tf.device(self.gate.device):
            return {**steps, self.gate.device: of_lead}, tf.equal(
                of_lead, step_of(True)
            )

    def update(self, rounds: int = 1) -> Any:
        """Returns the function without arguments that waits for a round and ends it."""
        assert rounds == 1, "how many there will be is not known"
        if 1 not in self._updates:
            graph = StepGraph(
                self._strategy, self._end_full, [], entered=lambda: self._complete
            )
            with self._strategy.scope():
                self._updates[1] = tf.function(
                    lambda: graph.add([], "round") and None, autograph=False
                ).get_concrete_function()
        return self._updates[1]

    def _end_full(self) -> None:
        self._end_round(self.lead.full())
