"""Looks at every host before anything starts, and says what is missing."""

import json
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from launch.job.job import Job
from launch.remote import channel
from launch.secure import mode, stunnel
from launch.supervise import policy

PACKAGES = (
    ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    ("keras", "keras-nightly"),
    ("tfdist",),
)
"""The distributions whose versions must agree; of each, whichever is installed."""

# Extra seconds for optional hosts after all others have answered.
_PATIENCE = 10.0
_MOMENT = 0.1  # seconds
_NOT_REACHED = 255  # ssh's own status; any other is that of the command.


@dataclass(frozen=True)
class HostReport:
    """The resources of a host.

    Attributes:
        problems: The problems of a host, each after its name.
        versions: The version of Python and of each of `PACKAGES` that it has.
        lacks: The modules that it lacks.
        ports: The free candidates.
        proxies: The variables of its environment that name proxies.
        secure: What it has to close its ports: `stunnel` (its path, or ''), `version`,
            `open` (why its ports cannot be closed, or '') and `has_ipv6`; empty if
            nobody asked.
        gpus: How many NVIDIA GPUs it has.
        visible_gpus: How many of them TensorFlow uses; None if nobody asked.
        origins: The files of packages, by their names.
    """

    problems: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    proxies: Mapping[str, str] = field(default_factory=dict)
    secure: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 0
    visible_gpus: int | None = None
    origins: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> "HostReport":
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
                *(value["gpus"], value.get("visible_gpus"), value["origins"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"an answer without {error}") from None


def _ask(
    connection: Sequence[str], asked: Mapping[str, Any], timeout: float, enough: Event
) -> HostReport:
    """Asks a host, which has a problem if it does not answer before enough others have."""
    command = [*connection, channel.command(channel.PROBE, asked["python"])]
    request: bytes | None = channel.request(channel.PROBE, asked)
    pipe, deadline = subprocess.PIPE, time.monotonic() + timeout
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        return HostReport((f"cannot be reached: {error}",))
    while True:
        try:
            output, errors = process.communicate(request, _MOMENT)
            break
        except subprocess.TimeoutExpired:
            request = None  # It is on its way.
        if enough.is_set() or time.monotonic() > deadline:
            process.kill()
            process.communicate()
            late = f"{timeout:g} s (--connect_timeout)"
            if enough.is_set():
                late = f"{_PATIENCE:g} s after enough others (--min_workers)"
            return HostReport((f"did not answer within {late}",))
    try:
        return HostReport.from_json(output.decode(errors="replace"))
    except ValueError:
        words = errors.decode(errors="replace").strip().splitlines()
        why = "; ".join(words[-3:])
        why = why or f"status {process.returncode}, and no message"
        found = f"cannot be reached, or has no {asked['python']}"
        if process.returncode == _NOT_REACHED:
            found, (*ssh, host, _) = "cannot be reached", command
            if "-T" in ssh:  # The options after it are the launcher's own.
                ssh = ssh[: ssh.index("-T")]
            why += f"; try {shlex.join([*ssh, host])} true"
        return HostReport((f"{found}: {why}",))


def ask(
    job: Job | None,
    connections: Mapping[str, Sequence[str]],
    asked: Mapping[str, Mapping[str, Any]],
    timeout: float,
) -> tuple[dict[str, HostReport], dict[str, str]]:
    """Asks every host at once; one that does not answer in time has that problem.

    Once the job could start with those that have answered, the others get a few seconds
    more. Optional hosts that stay silent are assumed to look like the others. Returns
    the report of each host, and the reason of each silent one. Without a job, it waits for
    all of them.
    """
    enough = Event()
    with ThreadPoolExecutor(max(1, len(connections))) as pool:
        try:
            answers = {
                host: pool.submit(_ask, each, asked[host], timeout, enough)
                for host, each in connections.items()
            }
            deadline = None
            while wait(answers.values(), _MOMENT).not_done:
                silent = [
                    host
                    for host, each in answers.items()
                    if not (each.done() and each.result().versions)
                ]
                if deadline is None and _can_spare(job, silent):
                    deadline = time.monotonic() + _PATIENCE
                if deadline is not None and time.monotonic() > deadline:
                    enough.set()
        except BaseException:
            # A signal: do not wait for the answers.
            enough.set()
            raise
    reports = {host: each.result() for host, each in answers.items()}
    return without_absent(reports, {h: each["ports"] for h, each in asked.items()}, job)


def _can_spare(job: Job | None, hosts: Collection[str]) -> bool:
    if job is None:
        return False
    lost = job.tasks_on(hosts)
    return policy.can_spare(job.plans, lost, (), job.needed_workers)


def without_absent(
    reports: Mapping[str, HostReport],
    ports: Mapping[str, Sequence[int]],
    job: Job | None,
) -> tuple[dict[str, HostReport], dict[str, str]]:
    """Supposes of hosts that the job can do without that they are like the others."""
    absent = {
        host: report.problems[0]
        for host, report in reports.items()
        if not report.versions and report.problems
    }
    present = [each for host, each in reports.items() if host not in absent]
    if not present or not _can_spare(job, absent):
        return dict(reports), {}
    supposed = {
        host: replace(present[0], problems=(), ports=tuple(ports[host]))
        if host in absent
        else report
        for host, report in reports.items()
    }
    return supposed, absent


def problems(
    reports: Mapping[str, HostReport],
    servers: Collection[str],
    ports: Sequence[str] = (),
) -> list[str]:
    """Returns all that is wrong, one line each; none if the job can start."""
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


def insecure(reports: Mapping[str, HostReport]) -> list[str]:
    """Returns the obstacles to TLS between the hosts, with their remedies, per host."""
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
