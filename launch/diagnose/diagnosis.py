"""Diagnoses: the fault of each task and its remedy. Pure decisions."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from launch.diagnose.finding import Finding, Level, unknown, wrong
from launch.diagnose.probe_result import ProbeOutcome, ProbeResult

_OUTCOMES = {
    ProbeOutcome.NO_SUCH_HOST: (
        "address",
        "the host of {address} cannot be resolved here ({detail})",
        "correct the name, or add it to the DNS or to /etc/hosts on every machine",
    ),
    ProbeOutcome.LOOKUP_SLOW: (
        "address",
        "looking up the host of {address} took too long",
        "check that the servers in /etc/resolv.conf answer, or write IP addresses",
    ),
    ProbeOutcome.REFUSED: (
        "port",
        "nothing listens on {address}",
        "start the task on that machine; if it is running, its log says why it does not "
        "listen. A firewall that rejects connections looks the same",
    ),
    ProbeOutcome.UNREACHABLE: (
        "port",
        "{address} cannot be reached ({detail})",
        "check that the machine is on and reachable, and that no firewall in between "
        "drops packets to the port",
    ),
    ProbeOutcome.SILENT: (
        "server",
        "{address} accepts connections but does not respond{because}",
        "if it is the task, it is stopped (run kill -CONT on its process) or it hangs "
        "(restart it); if not, give the task another port",
    ),
    ProbeOutcome.STRANGER: (
        "server",
        "another program listens on {address}{because}",
        "give the task another port, or stop that program",
    ),
    ProbeOutcome.NOT_TENSORFLOW: (
        "server",
        "an HTTP/2 server that is not TensorFlow's listens on {address}{because}",
        "give the task another port, or stop that program",
    ),
}


def each_task(
    reports: Mapping[str, ProbeResult], processes: Mapping[str, str] | None = None
) -> list[Finding]:
    """Decides what is wrong with each task."""
    processes = processes or {}
    addresses = {task: report.address for task, report in reports.items()}
    found: list[Finding] = []
    for task, report in reports.items():
        if report.peer is None:
            found.append(_no_server(task, report, processes.get(task, "")))
        else:
            found += _server(task, report, addresses)
    return found


def _no_server(task: str, report: ProbeResult, process: str) -> Finding:
    check, found, advice = _OUTCOMES[report.outcome]
    because = f" ({report.detail})" if report.detail else ""
    found = found.format(address=report.address, detail=report.detail, because=because)
    if report.outcome == ProbeOutcome.STRANGER and "stunnel" in process:
        return wrong(
            task,
            check,
            f"the job's stunnel listens on {report.address}, and {task} does not behind it",
            "see the task's log: it is starting, or has ended. Leave stunnel running",
        )
    if process:
        found += f"; it is {process}"
    return wrong(task, check, found, advice)


def _server(
    task: str, report: ProbeResult, ours: Mapping[str, str]
) -> Iterator[Finding]:
    peer = report.peer
    assert peer is not None
    if peer.task != task:
        yield wrong(
            task,
            "task",
            f"the server on {report.address} is {peer.task}, not {task}",
            "start each task with its own --job_name and --task_index, and list the "
            "addresses in the same order on every machine",
        )
    else:
        yield Finding(Level.OK, task, "task", f"a TensorFlow server answers as {task}")
    yield _definition(task, peer.tf_config, peer.silence, ours)


def _definition(
    task: str, text: str | None, silence: str, ours: Mapping[str, str]
) -> Finding:
    theirs = None if text is None else _addresses_of(text)
    if theirs is None:
        why = silence or "only a task that tfdist started or joined reports them"
        return unknown(
            task,
            "cluster definition",
            f"{task} does not report the addresses it was given ({why})",
            "run python -m tf_config --check with its TF_CONFIG, and compare",
        )
    if theirs == ours:
        return Finding(
            Level.OK, task, "cluster definition", "it was given the same addresses"
        )
    return wrong(
        task,
        "cluster definition",
        f"{task} was given different addresses: {_difference(ours, theirs)}",
        "restart it with the same addresses as the other tasks; if it belongs to another "
        "cluster, give this cluster other ports",
    )


def _addresses_of(text: str) -> dict[str, str] | None:
    try:
        cluster: dict[str, Any] = json.loads(text)["cluster"]
        return {
            f"{job}:{index}": address
            for job, addresses in cluster.items()
            for index, address in enumerate(addresses)
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        # The text comes from another machine, and may be anything.
        return None


def _difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    for task in [*ours, *theirs]:
        if ours.get(task) != theirs.get(task):
            return (
                f"to that task, {task} is {theirs.get(task, 'not in the cluster')}; here it "
                f"is {ours.get(task, 'not in the cluster')}"
            )
    raise AssertionError("the definitions are equal")
