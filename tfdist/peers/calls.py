"""Agreement of the workers on the call that they begin, which needs all of them."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._refusal import advise

_log = logging.getLogger("tfdist")

BARRIER = "strategy.barrier()"
_OF_FIT = EPOCH, END_OF_FIT = "the next epoch of fit", "the end of fit"
CALLS = (BARRIER, "fit", "evaluate", "predict", *_OF_FIT)
_TO_GIVE_UP = 10
"""How many times as long as until the warning a call in a callback waits.

Another worker may be busy with what it does alone, such as a save.
"""

_REMEDY = (
    "All workers run a model of a strategy together: make the same calls of fit, evaluate, "
    "predict and strategy.barrier() on every worker, in the same order, also in callbacks. "
    "To evaluate or predict on one worker alone, use a copy that belongs to no strategy, "
    "made outside of strategy.scope(): copy = keras.models.clone_model(model), and "
    "copy.set_weights(model.get_weights())"
)

# In TensorFlow's errors: one message meets another, or none in time.
_NOT_MET = ("mismatch in the collective", "Collective has timed out")


class LoneCallError(RuntimeError):
    """A worker makes a call that all workers have to make together."""


def agree(
    call: str,
    number: int,
    workers: Sequence[str],
    gather: Callable[..., Any],
    patience: float,
    ends: bool,
) -> list[int]:
    """Checks that all workers begin the same call.

    Cost: a message of 16 bytes per worker.

    Args:
        call: One of `CALLS`.
        number: Passed to the other workers.
        workers: The names of all workers.
        gather: Returns the integers of all workers, a row per worker, given this
            worker's and after how many seconds to fail, or None.
        patience: After how many seconds to warn that other workers are missing.
        ends: Whether to fail after ten times as long. Where all workers are within `fit`,
            the others may wait for this one in a step.

    Returns:
        The number of each worker.

    Raises:
        LoneCallError: If another worker begins another call, or none in that time.
    """
    waits = _waits(call)
    # The program has not called an epoch, and one worker may save for long before.
    quiet = contextlib.nullcontext()
    warning = quiet if call == EPOCH else _warning(f"{waits}. {_REMEDY}", patience)
    timeout = _TO_GIVE_UP * patience if ends else None
    try:
        with naming_lone_calls(), warning:
            table = gather([CALLS.index(call), number], timeout)
    except LoneCallError as error:
        if not isinstance(error.__cause__, tf.errors.DeadlineExceededError):
            raise
        raise LoneCallError(
            f"this worker has called {call} in a callback, and another worker has not "
            f"called it within {timeout:g} s. {_REMEDY}"
        ) from None
    except Exception as error:
        if call != EPOCH:
            advise(error, f"When this was raised, {waits}. {_REMEDY}")
        raise
    if words := differing([int(code) for code in table[:, 0]], workers):
        raise LoneCallError(f"{words}. {_REMEDY}")
    return [int(each) for each in table[:, 1]]


def _waits(call: str) -> str:
    did, do = ("come to", "come there") if call in _OF_FIT else ("called", "call it")
    return f"this worker has {did} {call}, and waits for another one to {do}, too"


def differing(codes: Sequence[int], workers: Sequence[str]) -> str:
    """Returns who begins which call, or '' if all begin the same.

    >>> differing([3, 2, 2], ["worker:0", "worker:1", "worker:2"])
    'worker:0 calls predict, and worker:1, worker:2 call evaluate'
    >>> differing([0, 4], ["worker:0", "worker:1"])
    'worker:0 calls strategy.barrier(), and worker:1 comes to the next epoch of fit'
    """
    if len(set(codes)) == 1:
        return ""
    parts = []
    for code in dict.fromkeys(codes):
        names = [name for name, its in zip(workers, codes, strict=True) if its == code]
        verb, to = ("come", " to") if CALLS[code] in _OF_FIT else ("call", "")
        verb += "s" if len(names) == 1 else ""
        parts.append(f"{', '.join(names)} {verb}{to} {CALLS[code]}")
    return ", and ".join(parts)


@contextlib.contextmanager
def naming_lone_calls() -> Iterator[None]:
    """Turns TensorFlow's errors of messages that do not meet into a `LoneCallError`.

    Raises:
        LoneCallError: If another worker is not within the same call.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if not any(each in error.message for each in _NOT_MET):
            raise
        raise LoneCallError(
            "another worker has made a call that this worker does not make at the same "
            f"time, such as predict in a callback. {_REMEDY}"
        ) from error


@contextlib.contextmanager
def _warning(words: str, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, _log.warning, ["after %g s, %s", seconds, words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
