"""Looks at every host before anything starts, and says what is missing."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from launch.job import Job
from launch.remote import channel
from launch.secure import mode, stunnel
from launch.supervise import policy

PACKAGES = (
    ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    ("keras", "keras-nightly"),
    ("tfdist",),
)
"""The distributions whose versions must agree; of each, whichever is installed."""

# Those that may start without some hosts wait as long for these, after all others.
_PATIENCE = 10.0
_MOMENT = 0.1  # seconds


@dataclass(frozen=True)
class Report:
    """What a host has.

    Attributes:
        problems: What is wrong with it, each after the host's name.
        versions: The version of Python and of each of `PACKAGES` that it has.
        lacks: The modules that it lacks.
        ports: Those of the candidates that are free.
        proxies: The variables of its environment that name proxies.
        secure: What it has to close its ports: `stunnel` (its path, or ''), `version`,
            `open` (why its ports cannot be closed, or '') and `has_ipv6`; empty if
            nobody asked.
    """

    problems: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    proxies: Mapping[str, str] = field(default_factory=dict)
    secure: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Reads what `launch.remote.probe` printed.

        Raises:
            ValueError: If it is something else.
        """
        # A host's profile may print a greeting of its own before.
        value: dict[str, Any] = json.loads(text.strip().rpartition("\n")[2] or "null")
        try:
            # The patch level of Python does not matter to TensorFlow.
            python = ".".join(value["python"].split(".")[:2])
            versions = {"Python": python, **value["versions"]}
            first, last = value["ephemeral"]
            return cls(
                tuple(value["problems"]),
                {name: version for name, version in versions.items() if version},
                tuple(value["lacks"]),
                tuple(each for each in value["ports"] if not first <= each <= last),
                value["proxies"],
                value["secure"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"an answer without {error}") from None


def ask(
    connections: Sequence[Sequence[str]],
    asked: Sequence[Mapping[str, Any]],
    timeout: float,
    is_enough: Callable[[Collection[int]], bool] = lambda answered: False,
) -> list[Report]:
    """Asks every host at once; one that does not answer in time has that problem.

    Args:
        connections: The command per host that runs a line of shell there.
        asked: What to look for on each, for `launch.remote.probe`.
        timeout: Seconds to wait.
        is_enough: Whether the job could start with the hosts that have answered; then
            the others get a few seconds more.
    """
    running: list[subprocess.Popen[bytes]] = []
    waited = f"{timeout:g} s (--connect_timeout)"
    enough = f"{_PATIENCE:g} s after enough others (--min_workers)"
    late = [waited]

    def ask_one(connection: Sequence[str], asked: Mapping[str, Any]) -> Report:
        try:
            process = subprocess.Popen(
                [*connection, channel.command(channel.PROBE, asked["python"])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            return Report((f"cannot be reached: {error}",))
        running.append(process)
        try:
            request = channel.request(channel.PROBE, asked)
            output, errors = process.communicate(request, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Report((f"did not answer within {late[0]}",))
        if late[0] is enough and not output:
            return Report((f"did not answer within {late[0]}",))
        try:
            return Report.from_json(output.decode(errors="replace"))
        except ValueError:
            words = errors.decode(errors="replace").strip().splitlines()
            why = "; ".join(words[-3:])
            why = why or f"status {process.returncode}, and no message"
            return Report((f"cannot be reached, or has no {asked['python']}: {why}",))

    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        try:
            each = [
                pool.submit(ask_one, *both)
                for both in zip(connections, asked, strict=True)
            ]
            deadline = None
            while wait(each, _MOMENT).not_done:
                now = time.monotonic()
                answered = {
                    index
                    for index, one in enumerate(each)
                    if one.done() and one.result().versions
                }
                if deadline is None and is_enough(answered):
                    deadline = now + _PATIENCE
                if deadline is not None and now > deadline:
                    late[0] = enough
                    for process in running:
                        process.kill()
            return [one.result() for one in each]
        except BaseException:
            # A signal: do not wait for the answers.
            for process in running:
                process.kill()
            raise


def without_absent(
    reports: Mapping[str, Report], ports: Mapping[str, Sequence[int]], job: Job
) -> tuple[dict[str, Report], dict[str, str]]:
    """Supposes of hosts that the job can do without that they are like the others.

    Args:
        reports: What each host has.
        ports: The candidates of each.
        job: The job, with its tasks on the hosts.

    Returns:
        The reports, and why each of the hosts that were supposed did not answer.
    """
    absent = {
        host: report.problems[0]
        for host, report in reports.items()
        if not report.versions and report.problems
    }
    present = [each for host, each in reports.items() if host not in absent]
    lost = [p.task for p in job.plans if p.remote and p.remote.host in absent]
    if not present or not policy.can_spare(job.plans, lost, (), job.needed_workers):
        return dict(reports), {}
    supposed = {
        host: replace(present[0], problems=(), ports=tuple(ports[host]))
        if host in absent
        else report
        for host, report in reports.items()
    }
    return supposed, absent


def problems(
    reports: Mapping[str, Report],
    servers: Collection[str],
    ports: Sequence[str] = (),
) -> list[str]:
    """Returns all that is wrong, one line each; none if the job can start.

    Args:
        reports: What each host has.
        servers: The hosts that run a server, which needs tfdist and TensorFlow.
        ports: What is wrong with their ports.
    """
    found = [
        f"{host} {problem}"
        for host, report in reports.items()
        for problem in report.problems
    ]
    if found:
        return found  # Whatever such a host has, it could not be compared.
    found += [
        f"{host} has no {' and no '.join(report.lacks)} for its Python: install the "
        "same as on the other hosts, or choose another --python"
        for host, report in reports.items()
        if report.lacks and host in servers
    ]
    found += ports
    names = dict.fromkeys(name for each in reports.values() for name in each.versions)
    for name in names:
        has = {host: each.versions.get(name) for host, each in reports.items()}
        usual, _ = Counter(has.values()).most_common(1)[0]
        rest = next((host for host, version in has.items() if version == usual), "")
        found += [
            f"{host} has {_version(name, version)}, but {rest} has "
            f"{_version(name, usual)}: install the same on every host"
            for host, version in has.items()
            if version != usual
        ]
    return found


def insecure(reports: Mapping[str, Report]) -> list[str]:
    """Returns what the hosts lack for TLS between them, and how to mend it, per host."""
    found = []
    several = len(reports) > 1
    for host, report in reports.items():
        has, oldest = report.secure, ".".join(map(str, stunnel.OLDEST))
        if why := has["open"]:
            found.append(f"{host} cannot close TensorFlow's ports to strangers ({why})")
        if several and not has["stunnel"]:
            found.append(f"{host} has no stunnel: {mode.INSTALL}")
        elif several and _numbers(has["version"]) < stunnel.OLDEST:
            found.append(
                f"{host} has stunnel {has['version'] or 'of an unknown version'}, which is "
                f"older than {oldest}: {mode.INSTALL}"
            )
    return [*found, mode.OTHERWISE] if found else []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version else ()


def _version(name: str, version: str | None) -> str:
    return f"{name} {version}" if version else f"no {name}"
