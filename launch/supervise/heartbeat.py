"""Signs of life for the tasks on other hosts."""

import signal

from launch.supervise.remote_process import HEARTBEAT_INTERVAL, RemoteProcess


class Heartbeat:
    """Sends signs of life, from the main thread.

    It uses a timer of the kernel's, not the event loop: the supervisor may hang in a
    write to a stopped terminal, and the tasks must survive that.
    """

    def __init__(self) -> None:
        self._processes: list[RemoteProcess] = []
        self._is_beating = False

    def add(self, process: RemoteProcess) -> None:
        """Sends signs of life to a process until it is closed."""
        if not self._is_beating:
            self._is_beating = True
            signal.signal(signal.SIGALRM, lambda *_: self._beat())
            signal.setitimer(signal.ITIMER_REAL, HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL)
        self._processes.append(process)

    def _beat(self) -> None:
        self._processes = [each for each in self._processes if not each.is_closed]
        for process in self._processes:
            process.beat()
