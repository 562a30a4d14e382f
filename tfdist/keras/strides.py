"""Takes several steps together, if no callback sees each batch.

Keras counts `steps_per_execution` steps at a time. Where nothing happens between these,
several are taken together, to be sent in one message: a *stride*.
"""

import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import keras

from tfdist._support.types import EpochIterator


def in_strides(
    epoch_iterator: EpochIterator,
    steps: Iterator[tuple[int, int, Any]],
    size: Callable[[], int],
    sizes: Collection[int],
    is_shown: bool,
) -> Iterator[tuple[int, int, Any]]:
    """Takes steps together.

    `steps` are the first and the last step of each execution, and the data, which is
    told how many steps to take next, as `steps_requested`. `size` returns that number, and
    `sizes` is what it has returned. Yields the same of each stride.
    """
    length_unknown = epoch_iterator.num_batches is None
    for first, last, data in steps:
        data.is_shown = is_shown
        each = last + 1 - first
        ahead = min(max(size() // each, 1) - 1, _left(epoch_iterator, last + 1))
        more = list(itertools.islice(steps, ahead))
        stop = more[-1][1] + 1 if more else last + 1
        for count in split(stop - first, each, sizes):
            if length_unknown:
                # Keras takes this for the number of batches once they have run out.
                epoch_iterator._steps_seen = min(first, data.taken) + each
            data.steps_requested = count
            yield first, first + count - 1, data
            first += count


def telling_the_ends(
    epoch_iterator: EpochIterator, steps: Iterator[tuple[int, int, Any]]
) -> Iterator[tuple[int, int, Any]]:
    """Notes on the data whether an execution is the first or the last one of the epoch.

    As `is_first` and `is_last`; the latter is None if the data have an unknown length.
    """
    is_first = True
    for first, last, data in steps:
        data.is_first, is_first = is_first, False
        data.is_last = not _left(epoch_iterator, last + 1)
        if not data.is_last and epoch_iterator._num_batches is None:
            data.is_last = None
        yield first, last, data


def _left(epoch_iterator: EpochIterator, begun: int) -> int:
    """Returns how many more executions Keras enumerates in this epoch.

    Keras's generator cannot be asked: after its last execution it ends the epoch, and
    so may a `PyDataset` whose batches are still to be read. `begun` is how many steps
    of the epoch it has enumerated.
    """
    batches = epoch_iterator._num_batches
    left = [(epoch_iterator.steps_per_epoch or batches or sys.maxsize) - begun]
    if batches:
        left.append(batches - epoch_iterator._steps_seen)
    return max(-(-min(left) // epoch_iterator.steps_per_execution), 0)


def split(steps: int, least: int, sizes: Collection[int]) -> Iterator[int]:
    """Splits steps into strides of the usual sizes, and what is left.

    `steps` and every stride are multiples of `least`.
    """
    for size in sorted(sizes, reverse=True):
        size = max(size // least, 1) * least
        while steps >= size:
            yield size
            steps -= size
    if steps:
        yield steps


def callbacks_of(arguments: dict[str, Any]) -> list[keras.callbacks.Callback]:
    """Returns the callbacks in the arguments of a `fit` or an `evaluate`, one by one."""
    given = arguments.get("callbacks")
    inside = getattr(given, "callbacks", None)
    return inside or keras.tree.flatten(given or [])


def sees_batches(callbacks: Iterable[keras.callbacks.Callback], stage: str) -> bool:
    """Returns True if a callback acts on each batch of "train" or "test"."""
    hooks = [f"on_{stage}_batch_{when}" for when in ("begin", "end")]
    if stage == "train":
        hooks += ["on_batch_begin", "on_batch_end"]
    return any(_overrides(each, hook) for each in callbacks for hook in hooks)


def shows_progress(callbacks: Iterable[keras.callbacks.Callback], verbose: Any) -> bool:
    """Returns True if a progress bar shows logs within an epoch."""
    bars = (isinstance(each, keras.callbacks.ProgbarLogger) for each in callbacks)
    return verbose in ("auto", 1) or any(bars)


def _overrides(callback: keras.callbacks.Callback, hook: str) -> bool:
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
