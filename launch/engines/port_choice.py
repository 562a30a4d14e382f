"""Chooses the ports of a job's tasks: a pure decision, after a look at the hosts."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from launch.network import ports

_SPARE = 100


@dataclass(frozen=True)
class OwnPorts:
    """Every host has a port for each of its tasks, as other hosts see it.

    It asks every host about some ports, and chooses among the free ones; so does
    `SharedPorts`, in whose place it can be.
    """

    num_tasks: Mapping[int, int]
    first_port: int | None = None

    def candidates(self, host: int) -> list[int]:
        """Returns the ports to look at on a host."""
        count = self.num_tasks[host]
        if self.first_port is not None:
            return list(range(self.first_port, self.first_port + count))
        return ports.at_random(count + _SPARE)

    def problems(self, free: Mapping[int, Collection[int]]) -> dict[int | None, str]:
        """Returns the problems by host; under None those that no host alone can solve.

        Args:
            free: The free candidates, by host.
        """
        wanted = f" from --first_port={self.first_port}" if self.first_port else ""
        return {
            host: f"lacks {need - len(free[host])} of {need} free ports{wanted}"
            for host, need in self.num_tasks.items()
            if len(free[host]) < need
        }

    def tasks(self, free: Mapping[int, Collection[int]]) -> dict[int, list[int]]:
        """Returns the ports of each host's tasks."""
        return {host: list(free[host])[:need] for host, need in self.num_tasks.items()}

    def entries(self, free: Mapping[int, Collection[int]]) -> dict[int, int]:
        """Returns nothing: every task is reached at its own port."""
        return {}


class SharedPorts:
    """A task's port is its own on every host; other hosts come in by one port each.

    Args:
        num_tasks: How many tasks each host has.
        first_port: The port by which other hosts come in; None for any.
    """

    def __init__(self, num_tasks: Mapping[int, int], first_port: int | None) -> None:
        self._num_tasks = num_tasks
        self._total = sum(num_tasks.values())
        found = ports.at_random(self._total + 2 * _SPARE)
        self._entries = found[:_SPARE] if first_port is None else [first_port]
        self._shared = [port for port in found[_SPARE:] if port != first_port]
        self._first_port = first_port

    def candidates(self, host: int) -> list[int]:
        """Returns the ports to look at on a host."""
        return [*self._entries, *self._shared]

    def problems(self, free: Mapping[int, Collection[int]]) -> dict[int | None, str]:
        """Returns the problems by host."""
        wanted = (
            "" if self._first_port is None else f" (--first_port={self._first_port})"
        )
        found: dict[int | None, str] = {
            host: f"lacks a free port for its tunnel{wanted}"
            for host in self._num_tasks
            if not set(self._entries) & set(free[host])
        }
        if not found and len(both := self._free_everywhere(free)) < self._total:
            found[None] = (
                f"only {len(both)} ports were free on every host, and the job has "
                f"{self._total} tasks: try again, or start fewer"
            )
        return found

    def tasks(self, free: Mapping[int, Collection[int]]) -> dict[int, list[int]]:
        """Returns the ports of each host's tasks; no two hosts share one."""
        left = iter(self._free_everywhere(free))
        return {
            host: [next(left) for _ in range(need)]
            for host, need in self._num_tasks.items()
        }

    def entries(self, free: Mapping[int, Collection[int]]) -> dict[int, int]:
        """Returns the port of each host's tunnel."""
        return {
            host: next(port for port in self._entries if port in free[host])
            for host in self._num_tasks
        }

    def _free_everywhere(self, free: Mapping[int, Collection[int]]) -> list[int]:
        sets = [set(free[host]) for host in self._num_tasks]
        return [port for port in self._shared if all(port in each for each in sets)]
