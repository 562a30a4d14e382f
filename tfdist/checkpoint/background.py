"""One write at a time, in a thread, whose failure is a warning."""

import logging
import threading
from collections.abc import Callable

from tfdist.liveness.step_error import reason

_log = logging.getLogger("tfdist")


class BackgroundWriter:
    """Runs a function in a thread of its own, unless the one before still runs."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether the function of before still runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None], what: str) -> None:
        """Starts to write; `busy` has to be False.

        Args:
            write: Whatever it raises is a warning.
            what: Is written, for the warning.
        """
        assert not self.busy

        def run() -> None:
            try:
                write()
            except Exception as error:
                _log.warning(
                    "%s was not written, training goes on, and the checkpoints of "
                    "before stay: %s",
                    what,
                    reason(str(error)).partition("\n")[0],
                )

        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the function to end, for at most `timeout` seconds.

        Returns:
            Whether it has ended.
        """
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.busy
