"""The steps that were sent to workers and are not known to have finished."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import setting
from tfdist._support.types import Nest
from tfdist.cluster.liveness import supervision
from tfdist.cluster.liveness.patience import Patience
from tfdist.cluster.liveness.watchdog import StalledError
from tfdist.parameter_server.steps.sent_functions import (
    Explain,
    Handlers,
    RoundsUnderWay,
    SentFunction,
    SentFunctions,
    as_it_is,
    is_checked_already,
    told,
)

_log = logging.getLogger("tfdist")

# Between looks at the other functions, per step of the oldest.
_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.025
_SLICE_SECONDS = 0.5


@dataclass(eq=False)
class InFlight:
    """Schedules functions on the workers, and limits how many are in flight.

    A slow worker delays only its own function; the other workers continue.

    Args:
        coordinator: The coordinator that sends functions to workers.
        limit: The maximum number of functions in flight.
        patience: How long to wait; without it, waits have no deadline, as in
            TensorFlow.
        collect: Flushes the changes that workers hold back, before weights are read.

    Attributes:
        submitted: How many functions have been submitted.
        steps_finished: How many steps are known to have finished.
        stalls: Whether the last wait was given up because training stalled.
        rounds: The rounds that the functions are part of, if they are.
    """

    coordinator: tf.distribute.coordinator.ClusterCoordinator
    limit: int
    patience: Patience | None = None
    collect: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._functions = SentFunctions()
        self._newest_result = 0
        self._explain: Explain | None = None
        # The number of the last function that was submitted before a wait was given up.
        self._outlasted = 0
        self._submitter: int | None = None
        self.submitted = 0
        self.steps_finished = 0
        self.stalls = False
        self.rounds = RoundsUnderWay()

    def submit(
        self,
        function: Any,
        argument: Nest,
        handlers: Handlers | None = None,
        *,
        steps: int = 1,
        batches: Nest = None,
    ) -> Any:
        """Sends a function to any free worker; waits while `limit` are in flight.

        Args:
            function: A `ConcreteFunction`.
            argument: Its only argument.
            handlers: The handlers of its end.
            steps: How many steps it runs.
            batches: Its batches, as `under_way` returns them; by default the argument.

        Returns:
            The remote value of its result.

        Raises:
            tf.errors.OpError: The error of an earlier function.
            StalledError: If training has stalled.
        """
        self._submitter = threading.get_ident()
        self._make_room()
        output = self.schedule(function, argument)
        self.stalls = False
        self.submitted += 1
        sent = SentFunction(
            number=self.submitted,
            steps=steps,
            batches=argument if batches is None else batches,
            output=output,
            handlers=handlers or Handlers(),
        )
        self._functions.under_way.append(sent)
        return output

    @property
    def finished(self) -> int:
        """The number of functions known to have finished, in any order."""
        return self.submitted - len(self._functions.under_way)

    def under_way(self, since: int = 0) -> list[tuple[Any, int]]:
        """Returns the batches and steps of what the weights may not have, after `since`."""
        left = self._functions.not_applied(since)
        return [(each.batches, each.steps) for each in left]

    def wait(self, timeout: float, renewed: bool = False) -> None:
        """Waits a limited time for the functions in flight.

        This waits for the updates of their complete rounds, too. A function that has
        outlasted such a wait, as on a stopped worker, is not waited for again.

        Args:
            timeout: The limit in seconds.
            renewed: Whether it begins anew whenever a function finishes.

        Raises:
            tf.errors.OpError: The error of a function.
        """
        deadline, finished = time.monotonic() + timeout, self.finished
        self._take_results()
        while slow := [
            each for each in self._functions.under_way if each.number > self._outlasted
        ]:
            if renewed and self.finished > finished:
                deadline, finished = time.monotonic() + timeout, self.finished
            left = deadline - time.monotonic()
            if left <= 0:
                self._outlasted = self.submitted
                return
            _tf.wait_for_result(slow[0].output, min(left, _LONGEST_POLL_SECONDS))
            self._take_results()
        # One that has outlasted its wait would hold up both.
        if not self._functions.under_way:
            self.collect()
            self.rounds.complete()

    def _make_room(self) -> None:
        """Waits until fewer than `limit` functions are in flight."""
        self._take_results()
        with self.waiting():
            while len(self._functions.under_way) >= self.limit:
                # Each result has its own event, and nothing waits for any one of
                # several. So wait for the oldest, which usually finishes first, but
                # only briefly: if a slow worker has it, others may have finished.
                oldest = self._functions.under_way[0]
                seconds = min(_POLL_SECONDS * oldest.steps, _LONGEST_POLL_SECONDS)
                _tf.wait_for_result(oldest.output, seconds)
                self.check()
                self._take_results()

    def _take_results(self) -> None:
        for function in self._functions.take_ended():
            self._take_result(function)

    def _take_result(self, function: SentFunction) -> None:
        handlers = function.handlers
        result = self.fetch(function.output, handlers.explain)
        # The launcher wants to know whether this program has ever finished a step.
        if self._newest_result == 0:
            supervision.report_training()
        self.steps_finished += function.steps
        self._functions.keep_until(function, handlers.on_end(result))
        # Results arrive in any order, and logs must not go back to an earlier step.
        is_newest = function.number > self._newest_result
        self._newest_result = max(self._newest_result, function.number)
        handlers.on_result(result, is_newest)

    def waiting(self) -> AbstractContextManager[None]:
        """Returns a context in which this thread waits for the workers or the ps."""
        return nullcontext() if self.patience is None else self.patience.waiting()

    def wait_until(self, has_ended: Callable[[float], bool]) -> None:
        """Waits until something has ended; `has_ended` waits for that many seconds."""
        with self.waiting():
            while not has_ended(_SLICE_SECONDS):
                self.check()

    def check(self) -> None:
        """Checks, while this thread waits, that training makes progress.

        Raises:
            StalledError: If it has stalled.
        """
        if self.patience is not None:
            try:
                self.patience.check()
            except StalledError:
                self._give_up()
                raise

    def schedule(self, function: Any, argument: Nest) -> Any:
        """Sends a function without waiting, and returns what to `fetch` its result by.

        Raises:
            tf.errors.OpError: The error of an earlier function.
        """
        try:
            with setting(is_checked_already, True):
                return self.coordinator.schedule(function, args=(argument,))
        except Exception as error:
            self._forget()
            raise self._told(error) from None

    def fetch(self, output: Any, explain: Explain = as_it_is) -> Any:
        """Waits for the result of one function; its error is what `explain` returns.

        Raises:
            tf.errors.OpError: The error of this or another function. No function is in
                flight any longer.
        """
        try:
            if self.patience is not None:
                self.patience.wait_for(output)
            else:
                _tf.wait_for_result(output, threading.TIMEOUT_MAX)
            return output.get()
        except StalledError:
            self._give_up()
            raise
        except Exception as error:
            if not isinstance(error, tf.errors.CancelledError):
                self._explain = explain
            self._forget()
            # If this function was cancelled because another failed, `join` raises the
            # error of that one. Joining also clears the error, which the coordinator
            # would otherwise raise again in the next call.
            self._join()
            raise self._told(error) from None

    def join(self) -> None:
        """Waits for every function, and takes all results.

        Raises:
            tf.errors.OpError: The error of a function.
        """
        self.join_functions()
        self.collect()
        self.rounds.complete()

    def join_functions(self) -> None:
        """Waits for every function, and not for the rounds that they are part of.

        Raises:
            tf.errors.OpError: The error of a function.
        """
        self._join()
        self._take_results()

    def join_own(self) -> None:
        """Waits for the functions that this thread has submitted.

        Does nothing in any other thread, which could wait forever while this one keeps
        submitting, nor after a wait that was given up.

        Raises:
            tf.errors.OpError: The error of a function.
        """
        if self._submitter == threading.get_ident() and not self.stalls:
            self.join()

    def _join(self) -> None:
        try:
            if self.patience is not None:
                under_way = self._functions.under_way
                self.patience.wait_for_all([each.output for each in under_way])
            self.coordinator.join()
        except StalledError:
            self._give_up()
            raise
        except Exception as error:
            self._forget()
            raise self._told(error) from None

    def _told(self, error: Exception) -> Exception:
        explain, self._explain = self._explain or as_it_is, None
        return told(error, explain)

    def _give_up(self) -> None:
        self._forget()
        self.stalls = True

    def _forget(self) -> None:
        # After an error, the coordinator has cancelled all functions; after a stall,
        # nobody fetches them. Either way they must not count towards `limit`.
        if self._explain is None:
            self._explain = self._functions.explain_failed()
        self._functions.clear()
        self.rounds.reset()

    def drain(self) -> None:
        """Waits for every function while another error is being raised."""
        if self.stalls:
            return
        try:
            self.join_functions()
            self.collect()
        except Exception as error:
            # The error being raised comes first; this one would hide it.
            _log.warning("while waiting for the steps in flight: %s", error)
        finally:
            # Rounds that the error has ended are never applied.
            self._forget()
