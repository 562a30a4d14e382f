"""Reports of `fit` to the launcher: epochs in a file, and the speed by a pipe."""

import contextlib
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tf_config import contract
from tf_config.contract import EpochRecord
from tfdist._support.context import setting
from tfdist._support.types import Logs, Stride
from tfdist.cluster.liveness import supervision

_INTERVAL = 1.0  # seconds
_current: ContextVar["EpochHistory | None"] = ContextVar("epoch_history", default=None)


class EpochHistory(keras.callbacks.Callback):
    """Appends a record of each epoch to a file."""

    def __init__(self, path: str, strategy: tf.distribute.Strategy) -> None:
        super().__init__()
        self._path = path
        self._strategy = strategy
        self._begin()

    def _begin(self) -> None:
        self._began = time.time()
        self._ended: float | None = None
        self._steps = self._messages = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Starts the epoch's clock."""
        self._begin()

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Stops the clock before the validation."""
        self._end()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Writes the record."""
        self._end()
        assert self._ended is not None
        record = EpochRecord(
            epoch=epoch,
            began=self._began,
            ended=self._ended,
            steps=self._steps,
            messages=self._messages,
            policy=getattr(self._strategy, "consistency_setting", ""),
            logs=_numbers(logs or {}),
        )
        with open(self._path, "a") as file:
            file.write(record.to_line())

    def count(self, strides: Iterator[Stride]) -> Iterator[Any]:
        """Passes on what `fit` takes from its data, and counts the steps."""
        for first, last, data in strides:
            if self._ended is None:
                self._steps += last + 1 - first
                self._messages += 1
            yield first, last, data

    def _end(self) -> None:
        self._ended = self._ended or time.time()


@contextlib.contextmanager
def recording(
    strategy: tf.distribute.Strategy, method: str, arguments: dict[str, Any]
) -> Iterator[None]:
    """Records the epochs of a call of `fit`, if a launcher asks for that.

    A callback is added to the arguments.
    """
    path = os.environ.get(contract.HISTORY)
    # A callback may itself call `fit`, which is no epoch of the user's.
    if method != "fit" or not path or _current.get() is not None:
        yield
        return
    history = EpochHistory(path, strategy)
    given = arguments.get("callbacks")
    # First, so that an epoch's time is without what other callbacks do at its end.
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks.insert(0, history)
    else:
        arguments["callbacks"] = [history, *keras.tree.flatten(given or [])]
    with setting(_current, history):
        yield


def counted(strides: Iterator[Stride]) -> Iterator[Any]:
    """Counts the steps of the epoch that is recorded, if one is."""
    history = _current.get()
    return strides if history is None else history.count(strides)


def _numbers(logs: Logs) -> dict[str, float]:
    found = {}
    for name, value in logs.items():
        with contextlib.suppress(TypeError, ValueError):
            found[name] = float(value)
    return found


def reported(strides: Iterator[Stride], driver: Any) -> Iterator[Any]:
    """Passes on what `fit` takes from its data, and reports the steps now and then."""
    return _reporter.follow(strides, driver) if supervision.is_supervised() else strides


class _Reporter:
    """Counts the steps of this process: an epoch may be shorter than the interval."""

    def __init__(self) -> None:
        self._has_traced = False
        self._steps, self._seconds = 0, 0.0

    def follow(self, strides: Iterator[Stride], driver: Any) -> Iterator[Any]:
        # Parameter servers report what each worker has done, and their first step when its
        # result arrives: here it has only been sent.
        sends = hasattr(driver, "progress")
        more = driver.progress if sends else dict
        # Exclude the time between epochs.
        before = time.monotonic()
        for first, last, data in strides:
            yield first, last, data
            now = time.monotonic()
            if self._has_traced:  # Tracing takes longer than many steps.
                self._steps += last + 1 - first
                self._seconds += now - before
            elif not sends:
                supervision.report_training()
            self._has_traced, before = True, now
            if self._seconds >= _INTERVAL:
                numbers = {"steps": self._steps, "seconds": self._seconds, **more()}
                self._steps, self._seconds = 0, 0.0
                supervision.report_progress(numbers)


_reporter = _Reporter()
