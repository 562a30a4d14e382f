"""From the places that Ray has given to tasks to the job that runs there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from launch.engines.engine import EngineError
from launch.engines.hosts import Host
from launch.engines.layout import Layout
from launch.job.job import Job
from launch.job.plan import task_name
from tf_config import Task
from tf_config.address import bracketed


@dataclass(frozen=True)
class Place:
    """The place where Ray runs a task.

    Attributes:
        node: Ray's id of the node.
        address: The address for the other nodes.
        python: The interpreter of Ray's processes there.
        connect: The command that runs a line of shell there, its last argument.
    """

    node: str
    address: str
    python: str
    connect: tuple[str, ...]


Places = Mapping[str, Place]
"""The place of each task, by its name."""


def examples(tasks: Sequence[Task], python: str) -> dict[str, Place]:
    """Returns places on nodes that do not exist: one per ps, and one for the others."""
    nodes = [f"node{task.index if task.job == 'ps' else ''}" for task in tasks]
    return {
        task_name(task): Place(node, node, python, (node,))
        for task, node in zip(tasks, nodes, strict=True)
    }


def layout(tasks: Sequence[Task], places: Places) -> Layout:
    """Returns which task is on which node, in the order of the tasks."""
    nodes = {places[task_name(task)].node: places[task_name(task)] for task in tasks}
    index = {node: number for number, node in enumerate(nodes)}
    addresses = [place.address for place in nodes.values()]
    names = [
        # Several nodes of a test share a machine.
        address if addresses.count(address) == 1 else f"{address}/{node[:8]}"
        for node, address in zip(nodes, addresses, strict=True)
    ]
    return Layout(
        [Host(name) for name in names],
        [bracketed(each) for each in addresses],
        {task: index[places[task_name(task)].node] for task in tasks},
    )


def connections(tasks: Sequence[Task], places: Places) -> list[tuple[str, ...]]:
    """Returns a command per node that runs a line there, in the order of `layout`."""
    found: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        place = places[task_name(task)]
        found.setdefault(place.node, place.connect)
    return [*found.values()]


def python(places: Places) -> str:
    """Returns the interpreter of Ray's processes."""
    found = {place.python: place.address for place in places.values()}
    if len(found) > 1:
        (one, here), (other, there), *_ = found.items()
        raise EngineError(
            f"Ray runs {one} on {here}, but {other} on {there}: give --python, an "
            "interpreter that every node has"
        )
    return next(iter(found))


def with_actors(job: Job, places: Places) -> Job:
    """Starts each task through its own actor, where Ray shows it its own GPUs."""
    plans = [
        replace(plan, remote=replace(plan.remote, connect=places[plan.name].connect))
        if plan.remote
        else plan
        for plan in job.plans
    ]
    return replace(job, plans=tuple(plans))
