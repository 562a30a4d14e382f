"""The cluster of a step of Slurm: the tasks of one `srun` (slurm.schedmd.com, srun(1))."""

import itertools
import re
from collections.abc import Mapping

from tf_config.environment import TFConfig
from tf_config.errors import ClusterError, show
from tf_config.roles import assign_roles

NODES, TASKS = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
_RANK, _NODE, _JOB = "SLURM_PROCID", "SLURM_NODEID", "SLURM_JOB_ID"
_DISTRIBUTION = "SLURM_DISTRIBUTION"

_NODES = r"(?:[^,\[\]\s]+|\[[0-9,-]+\])+"
_PART = re.compile(r"([^\[\]]*)(?:\[([0-9,-]+)\])?")
_MOST = 100_000
# Jobs share nodes, so each has ports of its own, below those of outgoing connections.
_PORTS, _PORTS_OF_A_JOB = range(10_000, 32_000), 64


def read(environ: Mapping[str, str], num_ps: int, first_port: int | None) -> TFConfig:
    """Reads the nodes of the step, the number of its tasks on each, and this rank.

    Args:
        environ: The environment of a task of `srun`.
        num_ps: How many tasks are ps; they are on the first nodes.
        first_port: The first port on each node; None for one that the job's id gives.

    Raises:
        ClusterError: If the variables are malformed or do not fit together, or the tasks
            are too few.
    """
    nodes = expand_nodes(environ[NODES])
    counts = expand_counts(environ.get(TASKS, f"1(x{len(nodes)})"))
    if len(counts) != len(nodes):
        raise ClusterError(
            f"{TASKS}={environ.get(TASKS)} is for {len(counts)} nodes, and "
            f"{NODES}={environ[NODES]} has {len(nodes)}"
        )
    hosts = _hosts(nodes, counts, environ.get(_DISTRIBUTION, "block"))
    rank = _number(environ, _RANK)
    node = _number(environ, _NODE)
    if rank >= len(hosts) or node >= len(nodes) or hosts[rank] != nodes[node]:
        raise ClusterError(
            f"{_RANK}={rank} is not on the node that {_NODE}={node} says: let srun "
            "distribute the tasks as block or cyclic"
        )
    if first_port is None:
        blocks = len(_PORTS) // _PORTS_OF_A_JOB
        block = _number(environ, _JOB) % blocks
        first_port = _PORTS.start + block * _PORTS_OF_A_JOB
    return assign_roles(hosts, rank, num_ps, first_port)


def expand_nodes(text: str) -> list[str]:
    """Expands a node list, in Slurm's order.

    >>> expand_nodes("n[2,10],gpu-[08-10]-x,login")
    ['n2', 'n10', 'gpu-08-x', 'gpu-09-x', 'gpu-10-x', 'login']

    Raises:
        ClusterError: If it is malformed.
    """
    found: list[str] = []
    # A comma within brackets does not separate nodes.
    for names in re.split(r",(?![^\[]*\])", text):
        if not re.fullmatch(_NODES, names):
            raise ClusterError(
                f"a list of nodes is written n[1-3,7],login; received {show(text)}"
            )
        parts = [
            _expand_part(prefix, ranges, text)
            for prefix, ranges in _PART.findall(names)
        ]
        # One more than are allowed shows that there are more.
        some = itertools.islice(itertools.product(*parts), _MOST + 1 - len(found))
        found += map("".join, some)
        _check_number(len(found), text)
    return found


def expand_counts(text: str) -> list[int]:
    """Expands the number of tasks on each node.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        ClusterError: If it is malformed.
    """
    found: list[int] = []
    for each in text.split(","):
        match = re.fullmatch(r"([1-9][0-9]{0,5})(?:\(x([1-9][0-9]{0,5})\))?", each)
        if match is None:
            raise ClusterError(f"{TASKS} is written 2(x3),1; received {show(text)}")
        found += [int(match[1])] * int(match[2] or 1)
        _check_number(sum(found), text)
    return found


def _check_number(number: int, text: str) -> None:
    if number > _MOST:
        raise ClusterError(f"{show(text)} are more than {_MOST} nodes or tasks")


def _expand_part(prefix: str, ranges: str, text: str) -> list[str]:
    if not ranges:
        return [prefix]
    found: list[str] = []
    for each in ranges.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", each)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ClusterError(f"{show(text)} has the range {show(each)}: write 1-3")
        first, last = int(match[1]), int(match[2] or match[1])
        _check_number(len(found) + last - first, text)
        # Leading zeros are part of the name.
        width = len(match[1])
        found += [f"{prefix}{number:0{width}}" for number in range(first, last + 1)]
    return found


def _hosts(nodes: list[str], counts: list[int], distribution: str) -> list[str]:
    """Returns the node of each rank."""
    way = distribution.partition(":")[0].partition(",")[0]
    pairs = list(zip(nodes, counts, strict=True))
    if way == "block":
        return [node for node, count in pairs for _ in range(count)]
    if way == "cyclic":
        return [
            node for turn in range(max(counts)) for node, count in pairs if turn < count
        ]
    raise ClusterError(
        f"{_DISTRIBUTION}={distribution} does not say which task is on which node: use "
        "srun --distribution=block or cyclic"
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not re.fullmatch("[0-9]{1,12}", text):
        raise ClusterError(
            f"{name} is a number that srun sets for each task; received "
            f"{show(environ.get(name))}"
        )
    return int(text)
