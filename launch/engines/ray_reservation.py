"""Reserves the resources of a job in a Ray cluster: all of them, or none."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from launch.engines import ray_request
from launch.engines.engine import EngineError
from launch.engines.ray_request import PACK, PlacementGroup

# Two jobs may each hold what the other waits for.
_HOLD_TIMEOUT = 20.0  # seconds
_MOMENT = 0.1
_READY = "CREATED"


class Reservation:
    """The placement groups of a job, from their creation to their removal.

    They go with the process that made them, however it ends.

    Args:
        groups: The groups that are needed.
        timeout: Seconds within which Ray must have reserved it.
        is_over: Asked now and then whether to stop waiting.
        source: The place where the user sets the timeout, for errors.

    Raises:
        EngineError: If Ray cannot reserve everything in time.
    """

    def __init__(
        self,
        groups: Sequence[PlacementGroup],
        timeout: float,
        is_over: Callable[[], bool] = lambda: False,
        source: str = "--timeout",
    ) -> None:
        self._groups = list(groups)
        self._held: list[Any] = []
        self._pending: list[Any] = []
        self._later: list[PlacementGroup] = []
        deadline = time.monotonic() + timeout
        while not self._try(deadline, is_over):
            self.release()
            if time.monotonic() > deadline or is_over():
                raise EngineError(self._missing(timeout, source))
            # At random, or two jobs would ask and give up at the same times again.
            pause = random.uniform(0, _HOLD_TIMEOUT)
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))

    def _try(self, deadline: float, is_over: Callable[[], bool]) -> bool:
        """Waits for all groups; gives up if some are held for long, and others wait."""
        from ray.util.placement_group import placement_group

        nodes = alive_nodes()
        self._held = [
            placement_group(group.bundles(), strategy=group.strategy(nodes))
            for group in self._groups
        ]
        since = None
        while True:
            ready = [_is_ready(each) for each in self._held]
            now = time.monotonic()
            if all(ready):
                return True
            since = (since or now) if any(ready) else None
            if since and now - since > _HOLD_TIMEOUT:
                return False
            if now > deadline or is_over():
                return False
            time.sleep(_MOMENT)

    def _missing(self, timeout: float, source: str) -> str:
        import ray

        time.sleep(_MOMENT)  # The released nodes are free again.
        nodes = alive_nodes()
        lack = ray_request.missing(self._groups, nodes, ray.available_resources())
        return (
            f"Ray could not reserve what the job needs within {timeout:g} s ({source}): "
            f"{lack}. The cluster has {_count(nodes)}: ask for fewer tasks, or less for "
            "each, or let it wait longer for others to end or nodes to come (--timeout)"
        )

    def ask_later(self, later: Sequence[PlacementGroup]) -> None:
        """Asks Ray for groups of one task each, all alike, which it need not have now."""
        from ray.util.placement_group import placement_group

        self._later = list(later)
        self._pending = [
            placement_group(group.bundles(), strategy=PACK) for group in later
        ]

    @property
    def num_granted(self) -> int:
        """The number of later groups that Ray has reserved and nobody has taken yet."""
        return sum(map(_is_ready, self._pending))

    def take(self) -> None:
        """Takes over Ray's reservations of the later groups, the first tasks first."""
        for each in [each for each in self._pending if _is_ready(each)]:
            self._pending.remove(each)
            self._held.append(each)
            self._groups.append(self._later.pop(0))

    def give_up_later(self) -> None:
        """Asks for no more than there is."""
        from ray.util.placement_group import remove_placement_group

        for group in self._pending:
            remove_placement_group(group)
        self._pending = []

    @property
    def tasks(self) -> list[str]:
        """The tasks that have a place."""
        return [task for group in self._groups for task in group.tasks]

    def options(self, task: str) -> dict[str, Any]:
        """Returns the place and the resources of a task, as options of an actor."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        held, group = next(
            (held, group)
            for held, group in zip(self._held, self._groups, strict=True)
            if task in group.tasks
        )
        index = group.tasks.index(task)
        bundle = group.bundles()[index]
        options: dict[str, Any] = {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                held,
                placement_group_bundle_index=index,
                placement_group_capture_child_tasks=False,
            ),
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
        }
        if "memory" in bundle:
            options["memory"] = bundle["memory"]
        return options

    def release(self) -> None:
        """Gives everything back; the actors on it end."""
        from ray.util.placement_group import remove_placement_group

        for group in [*self._held, *self._pending]:
            remove_placement_group(group)
        self._held, self._pending = [], []


def _is_ready(group: Any) -> bool:
    from ray.util.placement_group import placement_group_table

    return bool(placement_group_table(group)["state"] == _READY)


def answers(asked: Sequence[Any], seconds: float, source: str) -> list[Any]:
    """Returns the first answers of actors that have just been made.

    Preparing their environment may take longer than finding the nodes. `source` is where the
    user sets the time, for errors.

    Raises:
        EngineError: If Ray does not start them in time.
    """
    import ray

    try:
        return list(ray.get(asked, timeout=seconds))
    except ray.exceptions.GetTimeoutError:
        raise EngineError(
            f"Ray has reserved what is needed, but did not start the processes within "
            f"{seconds:.0f} s: see its logs on the nodes, or raise {source}"
        ) from None
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"Ray cannot start the processes: {one_line(error)}"
        ) from None


def one_line(error: BaseException) -> str:
    """Returns what an error of Ray says, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:1000] or type(error).__name__


def alive_nodes() -> list[dict[str, float]]:
    """Returns the total resources of each node of the cluster."""
    import ray

    return [each["Resources"] for each in ray.nodes() if each["Alive"]]


def _count(nodes: Sequence[ray_request.Bundle]) -> str:
    words = [
        " and ".join(
            ray_request.amount(name, node.get(name, 0))
            for name in ("CPU", "GPU", "memory")
            if node.get(name)
        )
        for node in nodes
    ]
    kinds = [f"{words.count(each)} x ({each})" for each in dict.fromkeys(words)]
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    return f"{count}: {', '.join(kinds)}" if kinds else "no nodes"
