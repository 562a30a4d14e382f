"""Counters that only grow, read again and again while a job runs."""

import bisect
import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

Read = Callable[[], Mapping[str, float]]
_PID = re.compile(r"\bpid=(\d+)")


class Sampler:
    """Reads counters in a thread while the context is active."""

    def __init__(self, read: Read, interval: float) -> None:
        self._read = read
        self._interval = interval
        self._times: list[float] = []
        self._samples: list[Mapping[str, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def between(self, began: float, ended: float) -> dict[str, float]:
        """Returns how much each counter grew between two times, in seconds since 1970.

        Between two readings, a counter grows evenly; a counter that is not in the reading
        before counts from 0.
        """
        before, after = self._at(began), self._at(ended)
        return {name: after[name] - before.get(name, 0.0) for name in after}

    def _at(self, when: float) -> dict[str, float]:
        if not self._times:
            return {}
        at = bisect.bisect(self._times, when)
        if at in (0, len(self._times)):
            return dict(self._samples[max(at - 1, 0)])
        earlier, later = self._samples[at - 1], self._samples[at]
        since, until = self._times[at - 1], self._times[at]
        part = (when - since) / (until - since)
        return {
            name: earlier.get(name, 0.0) + part * (value - earlier.get(name, 0.0))
            for name, value in later.items()
        }

    def _run(self) -> None:
        while not self._over.is_set():
            sample = self._read()
            self._times.append(time.time())
            self._samples.append(sample)
            self._over.wait(self._interval)


def cpu_of(pids: Mapping[str, int]) -> Read:
    """Returns a reader of the CPU seconds of processes, and of the machine as ''."""
    last = dict.fromkeys(pids, 0.0)

    def read() -> Mapping[str, float]:
        for name, pid in pids.items():
            # One that has ended keeps what it used last.
            with contextlib.suppress(psutil.Error):
                used = psutil.Process(pid).cpu_times()
                last[name] = used.user + used.system
        machine = psutil.cpu_times()
        # Guests are in `user` already.
        idle = machine.idle + machine.iowait + machine.guest + machine.guest_nice
        return {**last, "": sum(machine) - idle}

    return read


def bytes_of(pids: Mapping[str, int]) -> Read:
    """Returns a reader of the bytes that processes have sent and received by TCP.

    The counters are the kernel's own, of connections that are open, as `ss` of iproute2
    shows them. Without it, nothing is counted.
    """

    def read() -> Mapping[str, float]:
        try:
            shown = subprocess.run(
                ["ss", "-tinpHO", "state", "established"],
                capture_output=True,
                text=True,
                check=False,
            ).stdout
        except OSError:
            return {}
        return bytes_in(shown.splitlines(), pids)

    return read


def bytes_in(lines: Sequence[str], pids: Mapping[str, int]) -> dict[str, float]:
    """Adds up the bytes of connections, as `ss -tinpHO` prints them.

    >>> line = 'users:(("python",pid=9,fd=3)) cubic bytes_acked:7 bytes_received:5 rto:2'
    >>> bytes_in([line], {"ps:0": 9})
    {'sent ps:0': 7.0, 'received ps:0': 5.0}
    """
    names = {str(pid): name for name, pid in pids.items()}
    found: dict[str, float] = {}
    for line in lines:
        owner = next((pid for pid in _PID.findall(line) if pid in names), None)
        if owner is None:
            continue
        for direction, key in (("sent", "bytes_acked"), ("received", "bytes_received")):
            name = f"{direction} {names[owner]}"
            count = re.search(rf"\b{key}:(\d+)", line)
            found[name] = found.get(name, 0.0) + float(count[1] if count else 0)
    return found
