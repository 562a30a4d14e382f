"""The functions sent to workers, until the weights have their results."""

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.cluster.liveness.step_error import shortened

_LAST_BATCH = (
    "if one of these sizes is that of a batch: the last one may have fewer examples; "
    "tf.shape(x)[0] is the number in each"
)

is_checked_already: ContextVar[bool] = ContextVar("is_checked_already", default=False)
"""True while a function is sent of which `fit` has checked the step."""

Explain = Callable[[tf.errors.OpError], Exception]


def as_it_is(error: tf.errors.OpError) -> Exception:
    """Explains nothing."""
    return error


def told(error: Exception, explain: Explain) -> Exception:
    """Returns the exception to raise for the error of a function."""
    if not isinstance(error, tf.errors.OpError):
        return error
    return explain(shortened(error, _LAST_BATCH))


@dataclass(frozen=True, eq=False, kw_only=True)
class Handlers:
    """Handlers of a sent function's end.

    Attributes:
        on_result: Called with the fetched result, at the latest by `InFlight.join`, and
            with whether no function that was submitted later has finished first.
        on_end: Called with the fetched result, in any order. Returns what says whether
            the weights have what the function computed.
        explain: Takes its error if it fails, and returns what to raise.
    """

    on_result: Callable[[Any, bool], None] = lambda _, __: None
    on_end: Callable[[Any], Callable[[], bool]] = lambda _: lambda: True
    explain: Explain = as_it_is


@dataclass(frozen=True, eq=False, kw_only=True)
class SentFunction:
    """A function of some steps.

    Attributes:
        number: Counts submissions, from 1.
        batches: Its batches, as `InFlight.under_way` returns them.
        output: The remote value of its result.
    """

    number: int
    steps: int
    batches: Nest
    output: Any
    handlers: Handlers

    @property
    def has_failed(self) -> bool:
        """True if it has failed, and was not cancelled because of another failure."""
        try:
            # Only once it has ended: `get` would wait for it.
            _tf.wait_for_result(self.output, 0) and self.output.get()
        except tf.errors.CancelledError:
            return False
        except Exception:
            return True
        return False


class SentFunctions:
    """Functions in flight, and finished ones whose round is incomplete.

    Attributes:
        under_way: Functions that are not known to have ended.
    """

    def __init__(self) -> None:
        self.under_way: list[SentFunction] = []
        self._ending: list[SentFunction] = []
        self._unapplied: list[tuple[SentFunction, Callable[[], bool]]] = []

    def take_ended(self) -> Iterator[SentFunction]:
        """Yields functions that have ended since, in the order of their submission."""
        ended = [_tf.wait_for_result(each.output, 0) for each in self.under_way]
        both = list(zip(self.under_way, ended, strict=True))
        self.under_way = [function for function, has_ended in both if not has_ended]
        self._ending = [function for function, has_ended in both if has_ended]
        yield from self._ending
        # Not reached if the caller fails on one of them: `explain_failed` looks at them.
        self._ending = []

    def keep_until(
        self, function: SentFunction, is_applied: Callable[[], bool]
    ) -> None:
        """Keeps a function that has ended until the weights have its results."""
        if not is_applied():
            self._prune()
            self._unapplied.append((function, is_applied))

    def not_applied(self, since: int) -> list[SentFunction]:
        """Returns functions after `since` whose changes the weights may lack."""
        self._prune()
        ended = [function for function, _ in self._unapplied]
        # In the order of their batches: a checkpoint puts these back.
        ordered = sorted([*self.under_way, *ended], key=lambda each: each.number)
        return [each for each in ordered if each.number > since]

    def _prune(self) -> None:
        self._unapplied = [each for each in self._unapplied if not each[1]()]

    def explain_failed(self) -> Explain | None:
        """Returns the function that explains the first failure, if there is one."""
        running = (*self._ending, *self.under_way)
        return next(
            (each.handlers.explain for each in running if each.has_failed), None
        )

    def clear(self) -> None:
        """Forgets all of them."""
        self.under_way.clear()
        self._ending = []
        self._unapplied.clear()


class RoundsUnderWay:
    """Work that the functions in flight do not wait for; none by default."""

    def complete(self) -> None:
        """Waits for the updates of the rounds that have all their batches."""

    def finish(self) -> None:
        """Ends the last round with the batches that it has, and waits for all rounds."""

    def worker_lost(self, worker: int) -> None:
        """Takes note, in some thread, that a worker is lost with its function."""

    def reset(self) -> None:
        """Gives up what is in flight: functions were cancelled or given up."""
