"""Waits for the workers in short slices, so that the watchdog can raise in between."""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import RemoteValue
from tfdist.cluster.liveness.activity import STEPS, Activity

_SLICE_SECONDS = 0.5
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1e-4, 0.1  # seconds


@dataclass(eq=False)
class Patience:
    """Waits as TensorFlow's coordinator does, and calls `check` between slices.

    It raises the error that ends a wait.
    """

    coordinator: tf.distribute.coordinator.ClusterCoordinator
    activity: Activity
    check: Callable[[], None]

    def waiting(self) -> AbstractContextManager[None]:
        """Returns a context that records that the main thread waits for steps."""
        return self.activity.waiting_for(STEPS)

    def wait_for(self, output: RemoteValue) -> None:
        """Waits until a function has finished or failed."""
        with self.waiting():
            while not _tf.wait_for_result(output, _SLICE_SECONDS):
                self.check()

    def wait_for_all(self, outputs: Iterable[RemoteValue]) -> None:
        """Waits until no function is in flight: those of `outputs`, and any others."""
        pause = _SHORTEST_PAUSE
        with self.waiting():
            for output in outputs:
                while not _tf.wait_for_result(output, _SLICE_SECONDS):
                    self.check()
                    # One that waits for a step that has failed would wait forever.
                    self.coordinator.done()
            while not self.coordinator.done():
                self.check()
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
