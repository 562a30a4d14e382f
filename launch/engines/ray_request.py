"""Requests to Ray: resources, files to ship, and missing resources. Pure functions."""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.engines.engine import EngineError
from launch.job.plan import Program

STRICT_SPREAD, SPREAD, PACK = "STRICT_SPREAD", "SPREAD", "PACK"
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_GIB = 2**30

Bundle = Mapping[str, float]
"""The needs of one task, by Ray's names: CPU, GPU, memory in bytes."""


@dataclass(frozen=True)
class PlacementGroup:
    """Tasks that Ray places together: one placement group, with one bundle per task.

    Attributes:
        tasks: Their names.
        bundle: The resources of each task; tasks of `worker:*` also need `gpus`.
        gpus: The GPUs of each worker.
        apart: Whether each of them wants a node of its own.
    """

    tasks: tuple[str, ...]
    bundle: Bundle
    gpus: int = 0
    apart: bool = False

    def bundles(self) -> list[dict[str, float]]:
        """Returns the resources of each task, in the order of the tasks."""
        of_worker = {"GPU": self.gpus} if self.gpus else {}
        return [
            {**self.bundle, **(of_worker if task.startswith("worker") else {})}
            for task in self.tasks
        ]

    def strategy(self, nodes: Sequence[Bundle]) -> str:
        """Returns Ray's name of how the tasks are to be placed."""
        if not self.apart:
            return PACK
        (bundle, *_) = self.bundles()
        enough = sum(_fits(bundle, node) for node in nodes) >= len(self.tasks)
        # For more nodes than there are, Ray would wait forever.
        return STRICT_SPREAD if enough else SPREAD


@dataclass(frozen=True)
class RayRequest:
    """The request of a job to Ray.

    Attributes:
        address: The cluster, as `ray.init` takes it.
        groups: Its tasks. The job gets all of them or none.
        runtime_env: The environment that Ray prepares on a node before its first task.
        timeout: Seconds within which Ray must have reserved everything.
        later: Workers that the job can start without, each alone; any of them may be
            the first that Ray has room for.
        may_grow: Whether the job takes them in when it runs already.
    """

    address: str
    groups: tuple[PlacementGroup, ...]
    runtime_env: Mapping[str, Any]
    timeout: float
    later: tuple[PlacementGroup, ...] = ()
    may_grow: bool = False


def groups(
    tasks: Sequence[str], bundle: Bundle, gpus: int
) -> tuple[PlacementGroup, ...]:
    """Returns the placement groups of a cluster.

    A group has one strategy, and ps want the opposite of workers: each ps a node of its
    own, since it sends and receives what all workers do, and the workers as few nodes as
    possible. The chief and the evaluator go with the workers.

    >>> for group in groups(["chief", "ps:0", "ps:1", "worker:0"], {"CPU": 1}, 1):
    ...     print(group.tasks, group.bundles(), group.apart)
    ('ps:0', 'ps:1') [{'CPU': 1}, {'CPU': 1}] True
    ('chief', 'worker:0') [{'CPU': 1}, {'CPU': 1, 'GPU': 1}] False
    """
    every_ps = tuple(each for each in tasks if each.startswith("ps"))
    others = tuple(each for each in tasks if each not in every_ps)
    found = [
        PlacementGroup(every_ps, bundle, apart=True),
        PlacementGroup(others, bundle, gpus),
    ]
    return tuple(each for each in found if each.tasks)


def without(
    tasks: Sequence[str], min_workers: int | None, bundle: Bundle, gpus: int
) -> tuple[list[str], tuple[PlacementGroup, ...]]:
    """Returns the tasks that a job needs, and the workers that may come later.

    >>> needed, later = without(["ps:0", "worker:0", "worker:1"], 1, {"CPU": 1}, 0)
    >>> needed, [group.tasks for group in later]
    (['ps:0', 'worker:0'], [('worker:1',)])
    """
    workers = [each for each in tasks if each.startswith("worker")]
    spare = workers[len(workers) if min_workers is None else min_workers :]
    return (
        [each for each in tasks if each not in spare],
        tuple(PlacementGroup((each,), bundle, gpus) for each in spare),
    )


def missing(
    asked: Sequence[PlacementGroup], nodes: Sequence[Bundle], free: Mapping[str, float]
) -> str:
    """Returns the requested resources of a job that a cluster does not have.

    >>> missing(groups(["worker:0", "worker:1"], {"CPU": 1}, 1), [{"CPU": 8}], {"CPU": 8})
    'it needs 2 GPU, and the cluster has 0'
    """
    bundles = [bundle for group in asked for bundle in group.bundles()]
    total: Counter[str] = Counter()
    for bundle in bundles:
        total.update(bundle)
    found = []
    for name, need in total.items():
        has = sum(node.get(name, 0) for node in nodes)
        most = max((node.get(name, 0) for node in nodes), default=0)
        one = max(bundle.get(name, 0) for bundle in bundles)
        if need > has:
            found.append(
                f"it needs {amount(name, need)}, and the cluster has "
                f"{_number(name, has)}"
            )
        elif one > most:
            found.append(
                f"a task needs {amount(name, one)}, and no node has more than "
                f"{_number(name, most)}"
            )
        elif need > free.get(name, 0):
            found.append(
                f"it needs {amount(name, need)}, and of the cluster's "
                f"{_number(name, has)} only {_number(name, free.get(name, 0))} "
                "are free"
            )
    return "; ".join(found) or (
        "it needs " + describe(asked) + ", and no nodes have room for that"
    )


def describe(asked: Sequence[PlacementGroup]) -> str:
    """Returns the request of a job, in words.

    >>> describe(groups(["chief", "ps:0", "ps:1"], {"CPU": 2}, 0))
    '2 x (2 CPU) on different nodes and 1 x (2 CPU)'
    """
    words = []
    for group in asked:
        kinds = Counter(
            " and ".join(amount(name, each) for name, each in bundle.items())
            for bundle in group.bundles()
        )
        apart = " on different nodes" if group.apart and len(group.tasks) > 1 else ""
        words += [f"{count} x ({kind}){apart}" for kind, count in kinds.items()]
    return " and ".join(words)


def amount(name: str, value: float) -> str:
    """Returns an amount with its name: `2 CPU`, `4 GiB of memory`."""
    return f"{_number(name, value)}{' of' if name == 'memory' else ''} {name}"


def _number(name: str, value: float) -> str:
    return f"{value / _GIB:.4g} GiB" if name == "memory" else f"{value:g}"


def memory(text: str) -> int:
    """Reads an amount of memory, and returns its bytes.

    >>> memory("4G"), memory("512M")
    (4294967296, 536870912)
    """
    found = re.fullmatch(r"([0-9]{1,12})([KMGT]?)", text)
    if not found or not int(found[1]):
        raise EngineError(
            f"--memory={text!r} is no amount of memory: write bytes, or a number with a "
            "unit, such as 512M or 4G"
        )
    return int(found[1]) << _UNITS[found[2]]


def _fits(bundle: Bundle, node: Bundle) -> bool:
    return all(node.get(name, 0) >= need for name, need in bundle.items())


def runtime_env(
    text: str | None, work_dir: str | None, ours: Sequence[str]
) -> dict[str, Any]:
    """Returns the runtime_env of a job, which ships the current directory.

    Args:
        text: The user's, as a JSON object or the name of a file with one.
        work_dir: A directory that the nodes have; then nothing is shipped.
        ours: Directories that the job writes here.
    """
    given = {} if text is None else _parse(text)
    if work_dir is not None and "working_dir" in given:
        raise EngineError(
            "--work_dir is a directory that the nodes have, and working_dir of "
            "--runtime_env one that is shipped: give one of them"
        )
    if work_dir is not None or "working_dir" in given:
        return given
    # These files of the job are of no use there, and change while they are shipped.
    inside = [os.path.relpath(each) for each in ours]
    excluded = [f"/{each}" for each in inside if not each.startswith("..")]
    excludes = [*given.get("excludes", []), *excluded]
    return {**given, "working_dir": os.getcwd(), "excludes": excludes}


def as_shipped(program: Program) -> Program:
    """Returns the program as it is found in the directory that is shipped."""
    if not os.path.isabs(program.script):
        return program
    path = os.path.relpath(program.script)
    return program if path.startswith("..") else replace(program, script=path)


def _parse(text: str) -> dict[str, Any]:
    value, content = None, text
    try:
        if not text.lstrip().startswith("{"):
            with open(text, encoding="utf-8") as file:
                content = file.read()
        value = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(
            f"--runtime_env={text!r}: {error}; write a JSON object, or the name of a "
            "file with one"
        ) from None
    if not isinstance(value, dict) or not isinstance(value.get("excludes", []), list):
        raise EngineError(
            'a runtime_env is a JSON object, such as {"pip": ["rich"]}, and excludes in '
            f"it a list; received --runtime_env={text!r}"
        )
    return value
