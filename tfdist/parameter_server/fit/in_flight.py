"""The steps that were sent to workers and are not known to have finished."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from tfdist import _tf
from tfdist.liveness import supervision
from tfdist.liveness.patience import Patience
from tfdist.liveness.step_error import shortened
from tfdist.liveness.watchdog import StalledError

_log = logging.getLogger("tfdist")

# Between looks at the other functions, per step of the oldest.
_POLL_SECONDS = 0.005
_LONGEST_POLL_SECONDS = 0.025
_SLICE_SECONDS = 0.5

_LAST_BATCH = (
    "if one of these sizes is that of a batch: the last one may have fewer examples; "
    "tf.shape(x)[0] is the number in each"
)


Explain = Callable[[tf.errors.OpError], Exception]


def as_it_is(error: tf.errors.OpError) -> Exception:
    """Explains nothing."""
    return error


class RoundsUnderWay(Protocol):
    """The rounds of the last steps: what their functions do not wait for themselves."""

    def complete(self) -> None:
        """Waits for the updates of the rounds that have all their batches."""

    def finish(self) -> None:
        """Ends the last round with the batches that it has, and waits for all rounds."""

    def worker_lost(self, worker: int) -> None:
        """Takes note, in some thread, that a worker is lost with its function."""

    def reset(self) -> None:
        """Gives up what is under way: functions were cancelled or given up."""


class NoRounds:
    """Of steps that are part of none."""

    def complete(self) -> None:
        """Does nothing."""

    def finish(self) -> None:
        """Does nothing."""

    def worker_lost(self, worker: int) -> None:
        """Does nothing: another worker runs the function again."""

    def reset(self) -> None:
        """Does nothing."""


@dataclass(frozen=True, eq=False)
class _Function:
    """A submitted function of some steps; `number` counts submissions from 1."""

    number: int
    steps: int
    batches: Any
    output: Any
    on_result: Callable[[Any], None]
    on_end: Callable[[Any], Callable[[], bool]]
    explain: Explain


class InFlight:
    """Schedules functions on the workers, and limits how many are in flight.

    A slow worker delays only its own function; the other workers continue.

    Args:
        coordinator: The coordinator that sends functions to workers.
        limit: The maximum number of functions in flight.
        patience: How long to wait; without it, waits have no deadline, as in
            TensorFlow.
        collect: Has the workers send what they have kept back, before anything reads it.

    Attributes:
        submitted: How many functions have been submitted.
        steps_finished: How many steps are known to have finished.
        stalls: Whether the last wait was given up because training stalled.
        rounds: The rounds that the functions are part of, if they are.
    """

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        limit: int,
        patience: Patience | None = None,
        collect: Callable[[], None] = lambda: None,
    ) -> None:
        self._coordinator = coordinator
        self._patience = patience
        self.collect = collect
        self.limit = limit
        self._under_way: list[_Function] = []
        self._ending: list[_Function] = []
        # What has ended, and waits for the others of its round.
        self._ended: list[tuple[_Function, Callable[[], bool]]] = []
        self._newest_result = 0
        self._explain: Explain | None = None
        # The number of the last function that was submitted before a wait was given up.
        self._outlasted = 0
        self._submitter: int | None = None
        self.submitted = 0
        self.steps_finished = 0
        self.stalls = False
        self.rounds: RoundsUnderWay = NoRounds()

    def submit(
        self,
        function: Any,
        argument: Any,
        on_result: Callable[[Any], None] = lambda _: None,
        steps: int = 1,
        batches: Any = None,
        on_end: Callable[[Any], Callable[[], bool]] = lambda _: _yes,
        explain: Explain = as_it_is,
    ) -> Any:
        """Sends a function to any free worker; waits while `limit` are in flight.

        Args:
            function: A `ConcreteFunction`.
            argument: Its only argument.
            on_result: Called with the fetched result, at the latest by `join`. Skipped
                if a function that was submitted later has finished first.
            steps: How many steps it runs.
            batches: Its batches, as `under_way` returns them; by default the argument.
            on_end: Called with the fetched result, whatever has finished before. Returns
                what says whether the weights have what the function computed.
            explain: Takes its error if it fails, and returns what to raise.

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
        batches = argument if batches is None else batches
        self._under_way.append(
            _Function(
                self.submitted, steps, batches, output, on_result, on_end, explain
            )
        )
        return output

    @property
    def finished(self) -> int:
        """The number of functions known to have finished, in any order."""
        return self.submitted - len(self._under_way)

    def under_way(self, since: int = 0) -> list[tuple[Any, int]]:
        """Returns the functions that the weights may not have yet.

        Args:
            since: How many of the first to leave out: those of an earlier `fit`.

        Returns:
            The batches of each, and its number of steps.
        """
        return [
            (each.batches, each.steps)
            for each in sorted(
                [*self._under_way, *self._unapplied()], key=lambda each: each.number
            )
            if each.number > since
        ]

    def _unapplied(self) -> list[_Function]:
        self._ended = [each for each in self._ended if not each[1]()]
        return [function for function, _ in self._ended]

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
            each for each in self._under_way if each.number > self._outlasted
        ]:
            if renewed and self.finished > finished:
                deadline, finished = time.monotonic() + timeout, self.finished
            left = deadline - time.monotonic()
            if left <= 0:
                self._outlasted = self.submitted
                return
            _tf.wait_for_result(slow[0].output, min(left, _LONGEST_POLL_SECONDS))
            self._take_results()
        if not self._under_way:
            self.collect()
            self.rounds.complete()

    def _make_room(self) -> None:
        """Waits until fewer than `limit` functions are in flight."""
        self._take_results()
        with self.waiting():
            while len(self._under_way) >= self.limit:
                # Each result has its own event, and nothing waits for any one of
                # several. So wait for the oldest, which usually finishes first, but
                # only briefly: if a slow worker has it, others may have finished.
                oldest = self._under_way[0]
                seconds = min(_POLL_SECONDS * oldest.steps, _LONGEST_POLL_SECONDS)
                _tf.wait_for_result(oldest.output, seconds)
                self.check()
                self._take_results()

    def _take_results(self) -> None:
        ended = [_tf.wait_for_result(each.output, 0) for each in self._under_way]
        both = list(zip(self._under_way, ended, strict=True))
        self._under_way = [function for function, has_ended in both if not has_ended]
        self._ending = [function for function, has_ended in both if has_ended]
        for function in self._ending:
            self._take_result(function)
        self._ending = []

    def _take_result(self, function: _Function) -> None:
        result = self.fetch(function.output, function.explain)
        # The launcher wants to know whether this program has ever finished a step.
        if self._newest_result == 0:
            supervision.report_training()
        self.steps_finished += function.steps
        is_applied = function.on_end(result)
        if not is_applied():
            self._unapplied()
            self._ended.append((function, is_applied))
        # Results arrive in any order, and logs must not go back to an earlier step.
        if function.number > self._newest_result:
            self._newest_result = function.number
            function.on_result(result)

    def waiting(self) -> AbstractContextManager[None]:
        """Returns a context in which this thread waits for the workers or the ps."""
        return nullcontext() if self._patience is None else self._patience.waiting()

    def wait_until(self, has_ended: Callable[[float], bool]) -> None:
        """Waits until something has ended, as long as training makes progress.

        Args:
            has_ended: Waits for so many seconds, and returns whether it has.

        Raises:
            StalledError: If training has stalled.
        """
        with self.waiting():
            while not has_ended(_SLICE_SECONDS):
                self.check()

    def check(self) -> None:
        """Checks, while this thread waits, that training makes progress.

        Raises:
            StalledError: If it has stalled.
        """
        if self._patience is not None:
            try:
                self._patience.check()
            except StalledError:
                self._give_up()
                raise

    def schedule(self, function: Any, argument: Any) -> Any:
        """Sends a function without waiting; the caller fetches its result.

        Args:
            function: A `ConcreteFunction`.
            argument: Its only argument.

        Returns:
            The remote value of its result, for `fetch`.

        Raises:
            tf.errors.OpError: The error of an earlier function.
        """
        try:
            return self._coordinator.schedule(function, args=(argument,))
        except Exception as error:
            self._forget()
            raise self._told(error) from None

    def fetch(self, output: Any, explain: Explain = as_it_is) -> Any:
        """Waits for one function, and returns its result.

        Args:
            output: The remote value of its result.
            explain: Takes its error if it fails, and returns what to raise.

        Raises:
            tf.errors.OpError: The error of this or another function. No function is in
                flight any longer.
        """
        try:
            if self._patience is not None:
                self._patience.wait_for(output)
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
            if self._patience is not None:
                self._patience.wait_for_all([each.output for each in self._under_way])
            self._coordinator.join()
        except StalledError:
            self._give_up()
            raise
        except Exception as error:
            self._forget()
            raise self._told(error) from None

    def _told(self, error: Exception) -> Exception:
        explain, self._explain = self._explain or as_it_is, None
        if not isinstance(error, tf.errors.OpError):
            return error
        return explain(shortened(error, _LAST_BATCH))

    def _give_up(self) -> None:
        self._forget()
        self.stalls = True

    def _forget(self) -> None:
        # After an error, the coordinator has cancelled all functions; after a stall,
        # nobody fetches them. Either way they must not count towards `limit`.
        for each in (*self._ending, *self._under_way):
            if self._explain is None and _has_failed(each.output):
                self._explain = each.explain
        self._under_way.clear()
        self._ending = []
        self._ended.clear()
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


def _yes() -> bool:
    return True


def _has_failed(output: Any) -> bool:
    """Whether a function has failed, and was not cancelled because another one had."""
    try:
        _tf.wait_for_result(output, 0) and output.get()
    except tf.errors.CancelledError:
        return False
    except Exception:
        return True
    return False
