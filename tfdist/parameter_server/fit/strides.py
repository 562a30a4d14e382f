"""How many steps go to a worker in one message, if no callback sees each batch.

A message costs the chief more than a millisecond, whether it asks for one step or for
ten. Keras counts `steps_per_execution` steps at a time. Where nothing happens between
these, several are taken together: a *stride*.
"""

import itertools
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import keras


def sizes_of(exchange: int) -> tuple[int, ...]:
    """Returns the numbers of steps in a stride: few, since each takes a trace.

    Args:
        exchange: The most steps between two exchanges.
    """
    most = max(exchange, 10)
    # For slow steps.
    half = (5,) if exchange <= 5 else ()
    return (1, *half, most, 2 * most, 10 * most)


# A longer message would delay a progress bar and the end of an epoch noticeably; a
# shorter one costs more than it has to. In between, the size stays as it is.
_SHORT_SECONDS = 0.15
_LONG_SECONDS = 0.4
_WINDOW_SECONDS = 0.2
# A size above ten costs a trace of a second or more, and saves less than the one before.
# So it has to wait until that one has been used so often.
_CHEAP_SIZE = 10
_STRIDES_BEFORE_LARGER = 200


class Pace:
    """Chooses the number of steps in a stride by how fast steps finish.

    Args:
        workers: The number of workers.
        sizes: The numbers to choose from, in increasing order.
        clock: Returns the time in seconds.

    Attributes:
        sizes: The numbers to choose from.
        chosen: Those that it has chosen so far.
    """

    def __init__(
        self,
        workers: int,
        sizes: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sizes = tuple(sizes)
        self._workers = workers
        self._clock = clock
        self._since, self._finished_then = clock(), 0
        self.chosen = {self.sizes[0]}
        self._size = 0
        self._enlarge_at = 0

    def start(self, finished: int) -> None:
        """Leaves out of the measurement what came before, as between two epochs."""
        self._since, self._finished_then = self._clock(), finished

    def steps(self, finished: int) -> int:
        """Returns the number of steps for the next stride.

        Args:
            finished: How many steps have finished since the strategy was constructed.
        """
        elapsed, done = self._clock() - self._since, finished - self._finished_then
        if elapsed >= _WINDOW_SECONDS and done:
            self._since, self._finished_then = self._clock(), finished
            seconds = elapsed * self._workers / done
            larger = self._larger(seconds, finished)
            if larger > self._size:
                self._size = larger
                strides = _STRIDES_BEFORE_LARGER * self.sizes[larger]
                self._enlarge_at = finished + strides
            while self.sizes[self._size] * seconds > _LONG_SECONDS and self._size:
                self._size -= 1
        self.chosen.add(self.sizes[self._size])
        return self.sizes[self._size]

    def _larger(self, seconds: float, finished: int) -> int:
        """Returns the position of the size to change to, if it is larger."""
        short = [size for size in self.sizes if size * seconds <= _SHORT_SECONDS]
        cheap = [size for size in short if size <= max(_CHEAP_SIZE, self.sizes[1])]
        if len(cheap) - 1 > self._size:
            return len(cheap) - 1
        following = self._size + 1
        pays = finished >= self._enlarge_at
        return following if pays and len(short) > following else self._size


def in_strides(
    epoch_iterator: Any,
    steps: Iterator[tuple[int, int, Any]],
    size: Callable[[], int],
    sizes: Collection[int],
    is_shown: bool,
) -> Iterator[tuple[int, int, Any]]:
    """Takes steps together.

    Args:
        epoch_iterator: Keras's epoch iterator.
        steps: The first and the last step of each execution, and the data; the latter is
            told how many steps to take next, as `asked`.
        size: Returns the number of steps for the next stride.
        sizes: What it has returned, for the rest of an epoch.
        is_shown: Whether a progress bar shows the logs of each stride.

    Yields:
        The first and the last step of each stride, and the data.
    """
    length_unknown = epoch_iterator.num_batches is None
    for first, last, data in steps:
        data.is_shown = is_shown
        each = last + 1 - first
        ahead = min(max(size() // each, 1) - 1, _left(epoch_iterator, last + 1))
        more = list(itertools.islice(steps, ahead))
        stop = more[-1][1] + 1 if more else last + 1
        for count in split(stop - first, each, sorted(sizes)):
            if length_unknown:
                # Keras takes this for the number of batches once they have run out.
                epoch_iterator._steps_seen = min(first, data.taken) + each
            data.asked = count
            yield first, first + count - 1, data
            first += count


def _left(epoch_iterator: Any, begun: int) -> int:
    """Returns how many more executions Keras enumerates in this epoch.

    Keras's generator cannot be asked: after its last execution it ends the epoch, and so
    may a `PyDataset` whose batches are still to be read.

    Args:
        epoch_iterator: Keras's epoch iterator.
        begun: How many steps of the epoch it has enumerated.
    """
    batches = epoch_iterator._num_batches
    left = [(epoch_iterator.steps_per_epoch or batches or sys.maxsize) - begun]
    if batches:
        left.append(batches - epoch_iterator._steps_seen)
    return max(-(-min(left) // epoch_iterator.steps_per_execution), 0)


def split(steps: int, least: int, sizes: Sequence[int]) -> Iterator[int]:
    """Splits steps into strides of the usual sizes.

    Args:
        steps: How many there are.
        least: A number of which every stride is a multiple.
        sizes: The usual sizes, in increasing order.
    """
    for size in reversed(sizes):
        size = max(size // least, 1) * least
        while steps >= size:
            yield size
            steps -= size


def sees_batches(callbacks: Iterable[Any], stage: str) -> bool:
    """Whether a callback does something before or after each batch.

    Args:
        callbacks: The callbacks of a `fit` or an `evaluate`.
        stage: `"train"` or `"test"`.
    """
    hooks = [f"on_{stage}_batch_{when}" for when in ("begin", "end")]
    if stage == "train":
        hooks += ["on_batch_begin", "on_batch_end"]
    return any(_overrides(each, hook) for each in callbacks for hook in hooks)


def shows_progress(callbacks: Iterable[Any], verbose: Any) -> bool:
    """Whether a progress bar shows logs within an epoch.

    Args:
        callbacks: The callbacks of a `fit` or an `evaluate`, none of which sees batches.
        verbose: Its argument of this name.
    """
    bars = (isinstance(each, keras.callbacks.ProgbarLogger) for each in callbacks)
    return verbose in ("auto", 1) or any(bars)


def _overrides(callback: Any, hook: str) -> bool:
    # The progress bar shows what the metrics say, however many steps have passed. The
    # other two look at batches only if they are to save in the middle of an epoch.
    if type(callback) is keras.callbacks.ProgbarLogger:
        return False
    saving = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
    if type(callback) in saving and callback.save_freq == "epoch":
        return False
    if getattr(callback, "follows_strides", False):
        return False
    method = getattr(callback, hook)
    return getattr(method, "__func__", method) is not getattr(
        keras.callbacks.Callback, hook
    )
