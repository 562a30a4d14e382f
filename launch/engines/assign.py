"""Which host runs which task: a pure decision."""

from collections import Counter
from collections.abc import Sequence

from tf_config import Task

_ORDER = ("ps", "worker", "chief", "evaluator")


def assign(tasks: Sequence[Task], links: Sequence[float]) -> dict[Task, int]:
    """Returns the index of the host of each task.

    Each ps sends and receives what all workers do, so ps share no host as long as there
    are enough, and get the hosts with the best links. The other tasks go where the
    fewest are, workers first. Hosts that are equal are taken in the order in which they
    were given.

    Args:
        tasks: The tasks of the cluster.
        links: The bandwidth of each host, in any unit; equal if unknown.

    >>> tasks = [Task("chief", 0), *(Task(job, i) for job in ("ps", "worker") for i in (0, 1))]
    >>> {str(task): host for task, host in assign(tasks, [10, 25, 10]).items()}
    {'ps:0': 1, 'ps:1': 0, 'worker:0': 2, 'worker:1': 0, 'chief:0': 1}
    """
    hosts = range(len(links))
    busy: Counter[int] = Counter()
    found = {}
    for task in sorted(tasks, key=lambda each: (_ORDER.index(each.job), each.index)):
        if task.job == "ps":
            host = min(hosts, key=lambda each: (busy[each], -links[each]))
        else:
            host = min(hosts, key=lambda each: busy[each])
        busy[host] += 1
        found[task] = host
    return found
