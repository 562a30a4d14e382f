"""A gate at which a policy in Python decides, on the chief."""

import contextlib
import logging
import threading
import weakref
from typing import Any

import tensorflow as tf

from tfdist._support.types import After
from tfdist.consistency.policy import Consistency, Phase
from tfdist.consistency.step_schedule import Released, StepSchedule
from tfdist.parameter_server.gate.decisions import IDLE
from tfdist.parameter_server.gate.meter import Meter
from tfdist.parameter_server.gate.waiting_gate import TAKEN, WaitingGate

_log = logging.getLogger("tfdist")

# Answers that a step may get in place of its ticket.
_DROPPED, _FAILED = -2, -3
_STOP, _LEAVE = -1, -2  # in place of a phase
_GO_ON = 0
_STOP_SECONDS = 5.0


class PolicyGate(WaitingGate):
    """Asks a policy of the user about each step.

    Steps put what they ask into a queue on the ps; a thread of the chief takes it out, asks
    the policy, and puts the answer into the line of the worker.

    Cost: besides the messages of a bounded gate, two messages between the chief and the ps
    for each time that a step starts or writes.

    Attributes:
        error: The error of the policy.
    """

    def __init__(self, meter: Meter, num_workers: int, policy: Consistency) -> None:
        super().__init__(meter, num_workers)
        self.error: BaseException | None = None
        self._policy = policy
        self._schedule = StepSchedule(policy)
        with tf.device(self.device):
            self._requests = tf.queue.FIFOQueue(
                # Room for three messages per step and those of the chief, so that no
                # sender waits.
                4 * num_workers + 4,
                [tf.int64],
                [[2]],
                shared_name=self.name,
            )
        next_request = tf.function(self._requests.dequeue, autograph=False)
        self._next = next_request.get_concrete_function()
        # It waits in TensorFlow most of the time, and must not keep the program from
        # ending.
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        weakref.finalize(self, _stop, self._ask_now, self._thread)

    def arrive(self, worker: tf.Tensor, after: After) -> tuple[tf.Tensor, tf.Operation]:
        """Adds the request to start."""
        return tf.constant(_GO_ON, tf.int64), self._ask(worker, Phase.STARTING, after)

    def computed(
        self, worker: tf.Tensor, ticket: tf.Tensor, after: After
    ) -> tf.Operation:
        """Adds the request to write."""
        return self._ask(worker, Phase.READY, after)

    def finished(
        self, worker: tf.Tensor, ticket: tf.Tensor, after: After
    ) -> tf.Operation:
        """Adds the message that a step has written."""
        return self._ask(worker, IDLE, after)

    def check(self, called: tf.Tensor, ticket: tf.Tensor) -> tf.Operation:
        """Adds operations that end a step that may not continue, and say why."""
        dropped = tf.debugging.Assert(
            tf.not_equal(called, _DROPPED),
            [
                "counts() of the policy of consistency has dropped a gradient. Only "
                "tfdist.Synchronous drops gradients; have the step wait, in may_start() "
                "or may_write()"
            ],
        )
        failed = tf.debugging.Assert(
            tf.not_equal(called, _FAILED), ["the policy of consistency raised an error"]
        )
        with tf.control_dependencies([dropped, failed]):
            return super().check(called, ticket)

    def _ask(self, worker: tf.Tensor, phase: int, after: After) -> tf.Operation:
        with tf.control_dependencies(after):
            return self._requests.enqueue(tf.stack([tf.cast(phase, tf.int64), worker]))

    def _ask_now(self, phase: int, worker: int) -> None:
        with tf.device(self.device):
            self._requests.enqueue(tf.constant([phase, worker], tf.int64))

    def reset(self) -> None:
        """Forgets all steps. Call it while none is in flight."""
        self.clear_lines()
        self.error = None
        self._schedule = StepSchedule(self._policy)

    def leave(self, worker: int) -> None:
        """Takes a lost worker's step out, so that nobody waits for it."""
        self._ask_now(_LEAVE, worker)

    def _serve(self) -> None:
        # The ps may be lost, or the program may be over.
        with contextlib.suppress(tf.errors.OpError):
            while True:
                phase, worker = map(int, self._next().numpy())
                if phase == _STOP:
                    return
                self._answer(phase, worker)

    def _answer(self, phase: int, worker: int) -> None:
        waiting = [step.worker for step in self._schedule.state.steps if _waits(step)]
        # Its step may still wait on the ps: it is called, and its check ends it.
        if phase == _LEAVE and worker in waiting:
            self._call(worker, TAKEN)
        try:
            released = self._after(phase, worker)
            self._check_somebody_goes_on()
        except Exception as error:
            if self.error is None:
                _log.exception("the policy %r raised an error", self._policy)
            self.error = error
            # A step that asks waits for an answer, not one that has written or left.
            for each in {worker, *waiting} if phase > IDLE else waiting:
                self._call(each, _FAILED)
            return
        for gradient in released.written:
            self._meter.count(gradient.worker, gradient.staleness)
        for each in [*released.started, *(g.worker for g in released.written)]:
            self._call(each, _GO_ON)
        for gradient in released.dropped:
            self._call(gradient.worker, _DROPPED)

    def _check_somebody_goes_on(self) -> None:
        # A policy is asked again when a step has gone on: here, never.
        if sum(map(_waits, self._schedule.state.steps)) == self._num_workers:
            raise RuntimeError(
                f"the policy {self._policy!r} lets no step go on: the steps of all "
                f"{self._num_workers} workers wait, for may_start() or may_write()"
            )

    def _after(self, phase: int, worker: int) -> Released:
        if phase == Phase.STARTING:
            return self._schedule.arrive(worker)
        if phase == Phase.READY:
            return self._schedule.computed(worker)
        return self._schedule.finished(worker)

    def _call(self, worker: int, ticket: int) -> None:
        with tf.device(self.device):
            self.lines[worker].enqueue(tf.constant(ticket, tf.int64))


def _waits(step: Any) -> bool:
    return step.phase in (Phase.STARTING, Phase.READY)


def _stop(ask: Any, thread: threading.Thread) -> None:
    with contextlib.suppress(tf.errors.OpError):
        ask(_STOP, 0)
        thread.join(_STOP_SECONDS)
