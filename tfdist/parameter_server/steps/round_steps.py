"""Deals the batches of `fit` out to the workers, in rounds."""

import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from tfdist._support.types import Logs, Nest
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.strides import split
from tfdist.parameter_server.feed.feed import Feed
from tfdist.parameter_server.feed.sources import ChiefBatches, Source, row_of
from tfdist.parameter_server.gate.gate import Gate
from tfdist.parameter_server.rounds.rounds import Rounds
from tfdist.parameter_server.rounds.updates import Updates
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.sent_functions import Handlers, RoundsUnderWay
from tfdist.parameter_server.steps.worker_function import WorkerFunction
from tfdist.parameter_server.steps.worker_steps import WorkerSteps


@dataclass
class _Fate:
    """The rounds that the batches of a message have become part of.

    Attributes:
        missing: How many messages have some of them, and no round yet.
        last: The last round that any of them was part of.
    """

    missing: int = 1
    last: int = -1


@dataclass(order=True)
class _Message:
    """Batches for a worker.

    Attributes:
        first: The number of the first one.
        source: What takes them out of rows.
        rows: The batches, and with each its ticket.
        batches: The batches alone.
        fate: The fate of the batches.
    """

    first: int
    source: Source = field(compare=False)
    rows: tf.Tensor = field(compare=False)
    batches: tf.Tensor = field(compare=False)
    fate: _Fate = field(compare=False)

    def one_by_one(self, step: int) -> "list[_Message]":
        """Returns a message per batch; their numbers are `step` apart."""
        count = len(self.batches)
        self.fate.missing += count - 1
        return [
            _Message(
                self.first + i * step,
                self.source,
                self.rows[i : i + 1],
                self.batches[i : i + 1],
                self.fate,
            )
            for i in range(count)
        ]


class RoundSteps(WorkerSteps, RoundsUnderWay):
    """Runs the train steps of a model in rounds of several batches.

    Batches are numbered, and dealt out to rounds in their order: batch i belongs to round
    i // N. Any worker may compute any of them.
    """

    def __init__(
        self,
        model: keras.Model,
        in_flight: InFlight,
        step: Callable[[Nest], Nest],
        batches: int,
    ) -> None:
        super().__init__(model, in_flight, step)
        self._batches = batches
        self._rounds: Rounds | None = None
        self._updates = Updates()
        self._round = 0
        self._batch = 0
        self._dealt = 0
        # Workers lost, and those after which all continued. Another thread counts the first.
        self._lock = threading.Lock()
        self._lost = self._recovered = 0
        self._early: list[_Message] = []

    def on_data(self, data: Feed) -> Logs:
        """Sends the next batches to workers, and returns the logs of finished steps.

        Raises:
            StopIteration: If no batch is left; all rounds have finished.
        """
        self._begin()
        self._recover()
        requested = data.steps_requested or self._steps
        self._begin_to_show(data)
        try:
            rows = self._rows(data, requested)
        except StopIteration:
            self.finish()
            raise
        self._deal(data.source, rows, len(rows) == requested)
        return self._logs_to_show(data)

    def on_batch(self, batch: Nest) -> Logs:
        """Runs a round of one batch, and waits for it."""
        self._begin()
        self._are_read = False
        source, row = row_of(batch)
        self._deal(source, [row], False)
        self.finish()
        return self._logs.now()

    def finish(self) -> None:
        """Ends the last round with the batches that it has, and waits for all rounds."""
        self._in_flight.join()
        if self._dealt:
            self._end_rounds(1, self._dealt)
            self.complete()

    def complete(self) -> None:
        """Waits for the rounds that have all their batches."""
        self._recover()
        self._updates.wait(lambda: self._round, self._in_flight.waiting(), self._check)

    def _check(self) -> None:
        self._in_flight.check()
        self._recover()

    def worker_lost(self, worker: int) -> None:
        """Ends the waits of the other workers: one of them has to compute the lost step.

        It is behind steps of later rounds, for which they would wait forever.
        """
        with self._lock, contextlib.suppress(tf.errors.OpError):
            self._lost += 1
            if self._rounds is not None:
                self._rounds.let_all_pass(True, worker)

    def _recover(self) -> None:
        """Sends the steps again, in their order, that came before their rounds."""
        while self._recovered != self._lost or self._early:
            lost = self._lost
            self._in_flight.join_functions()
            with self._lock:
                # One more was lost during the wait: wait for all once more.
                if lost != self._lost:
                    continue
                if self._rounds is not None:
                    self._rounds.let_all_pass(False)
                self._recovered = lost
            # One by one: of two batches in a message, the second could wait for a batch
            # that is behind it, since there are fewer workers now.
            early = [
                one for each in self._early for one in each.one_by_one(self._batches)
            ]
            self._early = []
            for each in sorted(early):
                self._submit_message(each)

    def reset(self) -> None:
        """Gives up what is in flight, after an error."""
        # What the ps have of a round may be incomplete forever, so all of it is made
        # anew.
        self._updates.close()
        self._updates = Updates()
        self._rounds = None
        self._traced.clear()
        self._functions.clear()
        self._early.clear()
        self._round = self._dealt = 0

    def _begin(self) -> None:
        # At each call: another model may have trained since.
        self._in_flight.rounds = self

    def _deal(
        self, source: ChiefBatches, rows: list[tf.Tensor], is_usual: bool
    ) -> None:
        """Deals batches out: to as many rounds at once as there are complete ones."""
        of_round = self._batches
        while rows:
            rounds = self._rounds_at_once(source, len(rows))
            if rounds and not is_usual:
                traced = {size for key, size, _ in self._functions if key == source.key}
                rounds = next(split(rounds, 1, sorted({1, *traced})))
            many = rounds * of_round
            for share in range(of_round if rounds else 1):
                # One batch of each round: batches are dealt out in turn.
                taken = rows[share:many:of_round] if rounds else rows[:1]
                self._send(source, taken, self._batch + share)
            rows = rows[many or 1 :]
            self._batch += many or 1
            self._dealt = 0 if rounds else self._dealt + 1
            if rounds or self._dealt == of_round:
                self._end_rounds(rounds or 1, of_round)

    def _rounds_at_once(self, source: ChiefBatches, batches: int) -> int:
        """Returns how many complete rounds can be dealt out, a message per worker.

        A message with batches of several rounds waits until all other batches of the
        first are computed, so each of them needs a worker.
        """
        if self._dealt or len(self._strategy.replicas_here) < self._batches:
            return 0
        if self._worker_function(source.structure).step.not_copied:
            return min(1, batches // self._batches)
        return batches // self._batches

    def _send(self, source: ChiefBatches, rows: list[tf.Tensor], first: int) -> None:
        batches = tf.concat(rows, axis=0) if len(rows) > 1 else rows[0]
        tickets = [
            [_as_string([self._round + i, first + i * self._batches])]
            for i in range(len(rows))
        ]
        # In the same rows: one more argument of a function would be one more message.
        with_tickets = tf.concat([batches, tf.constant(tickets)], axis=1)
        self._submit_message(_Message(first, source, with_tickets, batches, _Fate()))

    def _submit_message(self, message: _Message) -> None:
        fate, steps = message.fate, len(message.batches)
        function = self._function(message.source, steps)
        self._logs.begin(self._are_read)

        def note_round(vector: tf.Tensor) -> Callable[[], bool]:
            number = int(vector.numpy()[-1])
            if number < 0:
                # It came before its round and did nothing: `_recover` sends it again.
                self._early.append(message)
            else:
                fate.missing -= 1
                fate.last = max(fate.last, number)
            return lambda: fate.missing == 0 and self._updates.rounds > fate.last

        self._in_flight.submit(
            function,
            message.rows,
            Handlers(
                on_result=lambda logs, is_newest: self._logs.take(logs[:-1], is_newest),
                on_end=note_round,
                explain=functools.partial(message.source.explained, message.batches),
            ),
            steps=steps,
            batches=message.batches,
        )

    def _end_rounds(self, rounds: int, batches: int) -> None:
        assert self._rounds
        update = self._rounds.update(rounds)
        self._updates.submit(update, tf.constant(batches), rounds)
        self._round += rounds
        self._dealt = 0

    def _worker_function(self, structure: BatchStructure) -> WorkerFunction:
        if self._rounds is None:
            self._rounds = self._new_rounds()
        return super()._worker_function(structure)

    def _new_rounds(self) -> Rounds:
        return Rounds(self._model, self._batches)

    @property
    def _gate(self) -> Gate | None:
        gate: Gate = self._strategy.gate
        return gate


def _as_string(ticket: list[int]) -> bytes:
    proto = tf.make_tensor_proto(ticket, tf.int64)
    serialized: bytes = proto.SerializeToString()
    return serialized
