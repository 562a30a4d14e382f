"""The numbers of a cluster among those that Keras's TensorBoard callback writes."""

import contextlib
import os
import time
from pathlib import Path

import keras
import tensorflow as tf

from tf_config.contract import CHECKPOINT_DIR, CHECKPOINT_PREFIX
from tfdist._support.types import Logs


class TensorBoard(keras.callbacks.TensorBoard):
    """Writes how the cluster trains, beside what Keras's callback writes.

    At the end of each epoch: `epoch_steps_per_second` and, if `fit` keeps checkpoints,
    `epoch_checkpoints`, the number that were written. On parameter servers, also the steps
    per second and the bytes of variables of each task, such as
    `epoch_steps_per_second_of_worker_0` and `epoch_bytes_on_ps_0`, and if the strategy was
    given a policy, `epoch_staleness` and `epoch_waiting_share`. Validation is part of the
    time of an epoch.

    Args:
        log_dir: The directory for TensorBoard.
        **options: Other arguments of `keras.callbacks.TensorBoard`.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] = "logs", **options: object
    ) -> None:
        super().__init__(log_dir, **{"write_steps_per_second": True, **options})

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Remembers the steps of each worker."""
        super().on_epoch_begin(epoch, logs)
        self._began_at, self._began_with = time.monotonic(), self._worker_steps()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Writes the numbers of the epoch."""
        super().on_epoch_end(epoch, {**(logs or {}), **self._numbers()})

    def _numbers(self) -> dict[str, float]:
        strategy: tf.distribute.Strategy = self.model.distribute_strategy
        found: dict[str, float] = {}
        seconds = time.monotonic() - self._began_at
        # A worker that was restarted counts from 0.
        for i, (before, now) in enumerate(
            zip(self._began_with, self._worker_steps(), strict=False)
        ):
            steps = now - before if now >= before else now
            found[f"steps_per_second_of_worker_{i}"] = steps / seconds
        if hasattr(strategy, "placement_report"):
            for i, size in enumerate(strategy.placement_report().bytes_per_ps):
                found[f"bytes_on_ps_{i}"] = size
        options = getattr(strategy, "checkpoints", None)
        directory = getattr(options, "directory", None) or os.environ.get(
            CHECKPOINT_DIR
        )
        if directory is not None:
            found["checkpoints"] = _checkpoints(Path(directory))
        return found

    def _worker_steps(self) -> tuple[int, ...]:
        strategy: tf.distribute.Strategy = self.model.distribute_strategy
        # While a worker is down, there are no numbers.
        with contextlib.suppress(tf.errors.OpError):
            if hasattr(strategy, "worker_report"):
                return tuple(strategy.worker_report().steps)
        return ()


def _checkpoints(directory: Path) -> int:
    """Returns how many checkpoints all calls of `fit` have written."""
    paths = sorted(directory.glob(f"fit-*/{CHECKPOINT_PREFIX}*"))
    newest = {path.parent: path.name.removeprefix(CHECKPOINT_PREFIX) for path in paths}
    return sum(int(number) + 1 for number in newest.values())
