"""Writing in a background thread, one write at a time; a failure is a warning."""

import logging
import threading
from collections.abc import Callable

from tfdist.cluster.liveness.step_error import reason

_log = logging.getLogger("tfdist")

DRAIN_SECONDS = 30.0
"""The time that a failed `fit` waits for the checkpoint that is being written."""


class BackgroundWriter:
    """Runs one function at a time in a background thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """True if the previous function is still running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None], what: str) -> None:
        """Starts a write, unless `busy`; logs an exception that it raises as a warning."""
        assert not self.busy

        def run() -> None:
            try:
                write()
            except Exception as error:
                _log.warning(
                    "%s was not written: %s. Checkpoints that are there stay",
                    what,
                    reason(str(error)).partition("\n")[0],
                )

        # A daemon, since a write that hangs on a file system must not keep the chief
        # from exiting.
        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits at most `timeout` seconds; returns whether the function has returned."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.busy

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Waits a limited time, and gives up what is not written by then."""
        if not self.wait(seconds):
            _log.warning("abandoned a checkpoint that was still being written")
