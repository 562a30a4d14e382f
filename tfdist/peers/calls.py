"""Agreement of the workers on the call that they begin, which needs all of them."""

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._support.errors import Error, advise
from tfdist.cluster.liveness.peers import WHAT_TO_DO, PeerLostError

_log = logging.getLogger("tfdist")

BARRIER = "strategy.barrier()"
EPOCH, END_OF_EPOCH = "the next epoch of fit", "the end of an epoch of fit"
END_OF_FIT, STEP = "the end of fit", "a step of fit, evaluate or predict"
EXCHANGE = "an exchange at the start or the end of fit, or of its data"
RESET = "reset_metrics"
CALLS = (BARRIER, "fit", "evaluate", "predict", EPOCH, END_OF_EPOCH, END_OF_FIT)
ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")
WAITS = (*CALLS, STEP, EXCHANGE, RESET, *ON_BATCH)
"""The calls and places at which a worker waits for all others."""

_PLACES = (EPOCH, END_OF_EPOCH, END_OF_FIT, STEP, EXCHANGE)
OF_THE_PROGRAM = tuple(each for each in WAITS if each not in (*_PLACES, RESET))
"""Calls that a program makes, and no other of these calls makes for it."""
# The program has not called them, and one worker may save for long before.
_QUIET = (EPOCH, END_OF_EPOCH)

REMEDY = (
    "All workers run a model of a strategy together: make the same calls of fit, evaluate, "
    "predict, train_on_batch and strategy.barrier() on every worker, in the same order, "
    "also in callbacks. To evaluate or predict on one worker alone, use a copy that "
    "belongs to no strategy, made outside of strategy.scope(): copy = "
    "keras.models.clone_model(model), and copy.set_weights(model.get_weights())"
)

_STOPS = (
    "If one worker alone sets model.stop_training within an epoch, the epoch ends there "
    "alone: set it in on_epoch_end, or at the same step of every worker"
)

_RESETS = "fit, evaluate, train_on_batch and test_on_batch call reset_metrics, too"

# In TensorFlow's errors: one message meets another.
_NOT_MET = re.compile("mismatch in the collective|Collective instance .* expected")


class LoneCallError(Error, RuntimeError):
    """A worker makes a call that all workers have to make together."""


def agree(
    call: str,
    numbers: Sequence[int],
    workers: Sequence[str],
    gather: Callable[[list[int]], Any],
    patience: float,
) -> Any:
    """Checks that all workers begin the same call.

    Cost: a message of 8 bytes per worker, and 8 for each number.

    Args:
        call: One of `CALLS`.
        numbers: Passed to the other workers.
        workers: The names of all workers.
        gather: Returns the integers of all workers, a row per worker, given this
            worker's.
        patience: After how many seconds to warn that other workers are missing.

    Returns:
        The numbers of all workers, a row per worker.

    Raises:
        LoneCallError: If another worker begins another call.
        PeerLostError: If another worker has ended.
    """
    waits = _waits(call)
    is_quiet = call in _QUIET
    warning = _warning(f"{waits}. {REMEDY}", patience)
    try:
        with naming_lone_calls(), contextlib.nullcontext() if is_quiet else warning:
            table = gather([CALLS.index(call), *numbers])
    except PeerLostError as error:
        if is_quiet:
            raise
        lost = str(error).partition(". ")[0]
        raise PeerLostError(
            f"{waits}, but {lost}. If its script has come to its end: {REMEDY}. If it "
            f"failed: {WHAT_TO_DO}"
        ).with_traceback(error.__traceback__) from None
    except Exception as error:
        if not is_quiet:
            advise(error, f"When this was raised, {waits}. {REMEDY}")
        raise
    if words := differing([int(code) for code in table[:, 0]], workers):
        raise LoneCallError(words)
    return table[:, 1:]


def _waits(call: str) -> str:
    did, do = ("come to", "come there") if call in _PLACES else ("called", "call it")
    return f"this worker has {did} {call}, and waits for another one to {do}, too"


def differing(
    codes: Sequence[int], workers: Sequence[str], last: Sequence[int] = ()
) -> str:
    """Returns who begins which call, with a remedy, or '' if all begin the same.

    Args:
        codes: The index in `WAITS` of each worker's call or place.
        workers: The names of the workers.
        last: The index of each worker's last call of `OF_THE_PROGRAM`, if all are known.

    >>> differing([3, 2, 2], ["worker:0", "worker:1", "worker:2"]).partition(". ")[0]
    'worker:0 calls predict, and worker:1, worker:2 call evaluate'
    >>> differing([0, 4], ["worker:0", "worker:1"]).partition(". ")[0]
    'worker:0 calls strategy.barrier(), and worker:1 comes to the next epoch of fit'
    """
    if len(set(codes)) == 1:
        return ""
    parts, advice = [], [REMEDY]
    for code in dict.fromkeys(codes):
        names = [name for name, its in zip(workers, codes, strict=True) if its == code]
        verb, to = ("come", " to") if WAITS[code] in _PLACES else ("call", "")
        verb += "s" if len(names) == 1 else ""
        parts.append(f"{', '.join(names)} {verb}{to} {WAITS[code]}")
    if len(set(last)) > 1 and list(last) != list(codes):
        # A lone call may have taken a step with the others, and they differ later.
        of_each = [
            f"{WAITS[code]} on {name}" for code, name in zip(last, workers, strict=True)
        ]
        advice.insert(0, f"The last calls were {', '.join(of_each)}")
    begun = {WAITS[code] for code in codes}
    if STEP in begun and begun & {END_OF_EPOCH, "evaluate"}:
        # A callback may call evaluate, and fit alone comes to the end of an epoch.
        advice.insert(END_OF_EPOCH not in begun, _STOPS)
    if RESET in begun:
        advice.insert(0, _RESETS)
    return f"{', and '.join(parts)}. {'. '.join(advice)}"


def is_not_met(message: str) -> bool:
    """Returns True if TensorFlow's error is of messages that do not meet."""
    return bool(_NOT_MET.search(message))


@contextlib.contextmanager
def naming_lone_calls() -> Iterator[None]:
    """Turns TensorFlow's error of messages that do not meet into a `LoneCallError`.

    Raises:
        LoneCallError: If another worker is not within the same call.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if not is_not_met(error.message):
            raise
        raise LoneCallError(
            "another worker has made a call that this worker does not make at the same "
            f"time, such as predict in a callback. {REMEDY}"
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
