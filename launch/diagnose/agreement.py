"""What does not fit between tasks, each of which may be well: pure decisions."""

from collections.abc import Iterator, Mapping

from launch.diagnose.finding import Finding, Level
from launch.diagnose.probe_result import ProbeResult
from tf_config import split_address

MAX_SKEW = 1.0
"""Seconds by which clocks may differ: more makes logs and checkpoints misleading."""


def between_tasks(reports: Mapping[str, ProbeResult]) -> list[Finding]:
    """Decides what is wrong between tasks.

    Args:
        reports: What was found where each task should be, by the task's name.
    """
    rules = (_places, _loopback_among_others, _versions, _clocks)
    return [finding for rule in rules for finding in rule(reports)]


def _places(reports: Mapping[str, ProbeResult]) -> Iterator[Finding]:
    owners: dict[tuple[str, int], str] = {}
    for task, report in reports.items():
        place = report.ip, split_address(report.address)[1]
        owner = owners.setdefault(place, task) if report.ip else task
        if owner != task:
            yield Finding(
                Level.WRONG,
                task,
                "address",
                f"{owner} and {task} are in the same place, {place[0]} port {place[1]}",
                "give each task a port of its own",
            )


def _loopback_among_others(reports: Mapping[str, ProbeResult]) -> Iterator[Finding]:
    elsewhere = [task for task, each in reports.items() if each.ip and not each.is_here]
    for task, report in reports.items():
        if report.is_loopback and elsewhere:
            yield Finding(
                Level.WRONG,
                task,
                "address",
                f"{report.address} means {report.ip} here, this machine to itself; but "
                f"{elsewhere[0]} is reached over the network, from where it is another",
                "write the machine's address in the network, and see that /etc/hosts "
                "does not give its name a loopback address",
            )


def _versions(reports: Mapping[str, ProbeResult]) -> Iterator[Finding]:
    tasks: dict[str, list[str]] = {}
    for task, report in reports.items():
        if report.peer is None:
            continue
        if report.peer.version is None:
            yield Finding(
                Level.UNKNOWN,
                task,
                "version",
                f"{task} does not tell its TensorFlow's version",
                "compare pip show tensorflow on its machine",
            )
            continue
        tasks.setdefault(report.peer.version, []).append(task)
    each = "; ".join(f"{version} on {', '.join(on)}" for version, on in tasks.items())
    if len(tasks) > 1:
        yield Finding(
            Level.WRONG,
            "cluster",
            "version",
            f"the versions of TensorFlow differ: {each}",
            "install one version everywhere",
        )
    elif tasks:
        yield Finding(Level.OK, "cluster", "version", f"TensorFlow {each}")


def _clocks(reports: Mapping[str, ProbeResult]) -> Iterator[Finding]:
    ahead: dict[str, float] = {"this machine": 0.0}
    uncertainty = 0.0
    for task, report in reports.items():
        if report.peer is None:
            continue
        if report.peer.clock is None:
            yield Finding(
                Level.UNKNOWN,
                task,
                "clock",
                f"{task} does not tell its time ({report.peer.silence})",
                "compare date on its machine",
            )
            continue
        ahead[task] = report.peer.clock
        uncertainty = max(uncertainty, report.peer.uncertainty)
    if len(ahead) == 1:
        return
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    skew = ahead[last] - ahead[first]
    if skew - uncertainty > MAX_SKEW:
        yield Finding(
            Level.WRONG,
            "cluster",
            "clock",
            f"the clock of {last} is {skew:.1f} s ahead of that of {first}",
            "have both keep network time: timedatectl set-ntp true",
        )
    else:
        within = max(skew, uncertainty)
        yield Finding(
            Level.OK, "cluster", "clock", f"the clocks agree to within {within:.2f} s"
        )
