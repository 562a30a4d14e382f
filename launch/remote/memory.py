"""Signs that the kernel has killed a process because the memory ran out."""

import collections
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

_KEPT = 5
_ALMOST_ALL = 0.95
_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")  # Of cgroup v2, and of v1.
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_USES = ("memory.current", "memory.usage_in_bytes")
_EVENTS = ("memory.events", "memory.oom_control")


@dataclass(frozen=True)
class Memory:
    """The memory of this machine, or of the cgroup nearest to its limit, at one moment.

    Attributes:
        used: Bytes that processes have, without caches that the kernel can drop.
        limit: Bytes that they may have.
        kills: The number of processes that the kernel has killed for their memory.
        of: The scope of that count: this machine, or its cgroup if the kernel counts there.
    """

    used: int
    limit: int
    kills: int
    of: str = "this machine"


def explain(peak: int, samples: Sequence[Memory]) -> str:
    """Returns a remark on a process that somebody has killed (SIGKILL), or ''.

    Args:
        peak: The most bytes of memory that it had.
        samples: The memory in the last seconds before its end, and at its end.

    >>> free, full = Memory(2 * 10**9, 8 * 10**9, 3), Memory(79 * 10**8, 8 * 10**9, 3)
    >>> explain(7 * 10**9, [free, full])
    'probably out of memory: it used 7.0 of 8.0 GB'
    >>> explain(10**9, [free, free])
    ''
    >>> explain(10**9, [free, Memory(2 * 10**9, 8 * 10**9, 4)])  # The kernel killed one.
    'probably out of memory: it used 1.0 GB (the kernel killed a process of this machine)'
    """
    fullest = max(samples, key=lambda each: each.used / each.limit)
    is_full = fullest.used >= _ALMOST_ALL * fullest.limit
    last = samples[-1]
    killed = last.kills != samples[0].kills
    if not is_full and not killed:
        return ""
    # A memory that was full between two samples is not noticed.
    of = f" of {fullest.limit / 1e9:.1f}" if is_full else ""
    who = f" (the kernel killed a process of {last.of})" if killed else ""
    return f"probably out of memory: it used {peak / 1e9:.1f}{of} GB{who}"


def measure() -> Memory:
    """Returns the memory of this machine and of this process's cgroups."""
    # Sizes that a kernel does not report are left out.
    machine = _numbers("/proc/meminfo")
    total = machine.get("MemTotal:", 1) * 1024
    found = [(total - machine.get("MemAvailable:", total // 1024) * 1024, total)]
    kills, of = _numbers("/proc/vmstat").get("oom_kill", 0), "this machine"
    for directory in _cgroups():
        for name in _EVENTS:
            counted = _numbers(f"{directory}/{name}")
            if "oom_kill" in counted:  # The last of them is the process's own.
                kills, of = counted["oom_kill"], "its cgroup"
        for limit_name, use_name in zip(_LIMITS, _USES, strict=True):
            with contextlib.suppress(ValueError):
                limit = int(_read(f"{directory}/{limit_name}"))  # "max" is none.
                used = int(_read(f"{directory}/{use_name}"))
                found.append((used - _cached(f"{directory}/memory.stat"), limit))
    used, limit = max(found, key=lambda each: each[0] / each[1])
    return Memory(used, limit, kills, of)


def _cgroups() -> list[str]:
    """Returns the directories of this process's cgroups, and of those around them.

    A container sees a part of them, and its own as the root.
    """
    directories: list[str] = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = _ROOTS[bool(kinds)]
        parts = [part for part in path.split("/") if part]
        directories += ["/".join([root, *parts[:n]]) for n in range(len(parts) + 1)]
    return directories


def _cached(path: str) -> int:
    stat = _numbers(path)
    # A cgroup of v1 counts those within it in `total_...` only.
    prefix = "total_" if "total_active_file" in stat else ""
    return sum(stat.get(f"{prefix}{name}_file", 0) for name in ("active", "inactive"))


def _numbers(path: str) -> dict[str, int]:
    rows = [line.split() for line in _read(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return ""


class MemoryWatch:
    """Measures the memory once a second while tasks run."""

    interval = 1.0  # seconds

    def __init__(self) -> None:
        self._samples = collections.deque([measure()], maxlen=_KEPT)
        self._looked = time.monotonic()

    def check(self) -> None:
        """Measures, if it is time."""
        now = time.monotonic()
        if now - self._looked >= self.interval:
            self._looked = now
            self._samples.append(measure())

    def explain(self, peak: int) -> str:
        """Returns a remark on a process that was killed just now, or ''."""
        return explain(peak, [*self._samples, measure()])
