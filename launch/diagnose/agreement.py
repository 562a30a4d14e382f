"""Disagreements between tasks that may each be healthy: pure decisions."""

from collections.abc import Iterator, Mapping

from launch.diagnose.finding import Finding, Level, unknown, wrong
from launch.diagnose.probe_result import ProbeResult
from tf_config import split_address

MAX_SKEW = 1.0
"""Seconds by which clocks may differ before logs and checkpoints mislead."""


def between_tasks(reports: Mapping[str, ProbeResult]) -> list[Finding]:
    """Decides what is wrong between tasks."""
    rules = (_places, _loopback_among_others, _versions, _clocks)
    return [finding for rule in rules for finding in rule(reports)]


def _places(reports: Mapping[str, ProbeResult]) -> Iterator[Finding]:
    owners: dict[tuple[str, int], str] = {}
    for task, report in reports.items():
        # By IP address, since two names may belong to one machine.
        place = report.ip, split_address(report.address)[1]
        owner = owners.setdefault(place, task) if report.ip else task
        if owner != task:
            yield wrong(
                task,
                "address",
                f"{owner} and {task} have the same address, {place[0]} port {place[1]}",
                "give each task its own port",
            )


def _loopback_among_others(reports: Mapping[str, ProbeResult]) -> Iterator[Finding]:
    elsewhere = [task for task, each in reports.items() if each.ip and not each.is_here]
    for task, report in reports.items():
        if report.is_loopback and elsewhere:
            yield wrong(
                task,
                "address",
                f"{report.address} means {report.ip} here, which only this machine can "
                f"reach; but {elsewhere[0]} is on another machine",
                "use the machine's network address, and check that /etc/hosts does not map "
                "its name to a loopback address",
            )


def _versions(reports: Mapping[str, ProbeResult]) -> Iterator[Finding]:
    tasks: dict[str, list[str]] = {}
    for task, report in reports.items():
        if report.peer is None:
            continue
        if report.peer.version is None:
            yield unknown(
                task,
                "version",
                f"{task} does not report its TensorFlow version",
                "compare the output of pip show tensorflow on its machine",
            )
            continue
        tasks.setdefault(report.peer.version, []).append(task)
    each = "; ".join(f"{version} on {', '.join(on)}" for version, on in tasks.items())
    if len(tasks) > 1:
        yield wrong(
            "cluster",
            "version",
            f"the TensorFlow versions differ: {each}",
            "install the same version everywhere",
        )
    elif tasks:
        yield Finding(Level.OK, "cluster", "version", f"TensorFlow {each}")


def _clocks(reports: Mapping[str, ProbeResult]) -> Iterator[Finding]:
    # Clocks are measured against that of this machine.
    ahead: dict[str, float] = {"this machine": 0.0}
    uncertainty = 0.0
    for task, report in reports.items():
        if report.peer is None:
            continue
        if report.peer.clock is None:
            yield unknown(
                task,
                "clock",
                f"{task} does not report its clock ({report.peer.silence})",
                "compare the output of date on its machine",
            )
            continue
        ahead[task] = report.peer.clock
        uncertainty = max(uncertainty, report.peer.uncertainty)
    if len(ahead) == 1:
        return
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    skew = ahead[last] - ahead[first]
    # A slow answer makes a clock uncertain, and is no evidence that it is wrong.
    if skew - uncertainty > MAX_SKEW:
        yield wrong(
            "cluster",
            "clock",
            f"the clock of {last} is {skew:.1f} s ahead of the clock of {first}",
            "synchronize both with network time: timedatectl set-ntp true",
        )
    else:
        within = max(skew, uncertainty)
        yield Finding(
            Level.OK, "cluster", "clock", f"the clocks agree to within {within:.2f} s"
        )
