"""SIGTERM during a `fit`: it is noted, and ends the process once that has been saved."""

import os
import signal
import sys
import threading
from types import FrameType, TracebackType


class Termination:
    """Holds back SIGTERM while the context lasts.

    Outside the main thread, or if the program handles SIGTERM itself, it does nothing.

    Attributes:
        requested: Whether SIGTERM has come.
    """

    def __init__(self) -> None:
        self.requested = False
        self._holds = False

    def __enter__(self) -> "Termination":
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._note)
            self._holds = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._holds:
            return
        if self.requested:
            if kind is not None and error is not None:
                # The process will not live to show it.
                sys.excepthook(kind, error, traceback)
            self.end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def end(self) -> None:
        """Ends the process as SIGTERM would have done."""
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        # Slurm and the launcher may both send it, so a second one means no more.
        self.requested = True
