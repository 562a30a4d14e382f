"""Reads the definition of a cluster leniently: an error becomes a finding."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.diagnose.finding import Finding, Level, wrong
from tf_config import (
    Cluster,
    ClusterError,
    Task,
    TFConfig,
    contract,
    proxies,
    split_address,
)

PARAMETER_SERVER, MULTI_WORKER, RING = STRATEGIES = (
    "parameter_server",
    "multi_worker",
    "ring",
)
_NEEDS = {
    PARAMETER_SERVER: ("chief", "ps", "worker"),
    MULTI_WORKER: ("worker",),
    RING: ("chief", "worker"),
}


@dataclass(frozen=True)
class Definition:
    """The tasks of a cluster, as far as they could be read.

    Attributes:
        jobs: The valid addresses of each job, by the index of the task.
        findings: Findings about the rest.
    """

    jobs: Mapping[str, Mapping[int, str]]
    findings: tuple[Finding, ...]

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each task that runs a server, by the task's name."""
        return {
            f"{job}:{index}": address
            for job, tasks in self.jobs.items()
            for index, address in tasks.items()
            if job != "evaluator"  # It runs none.
        }


def from_text(text: str) -> Definition:
    """Reads a TF_CONFIG."""
    found: list[Finding] = []
    try:
        TFConfig.from_json(text)
    except ClusterError as error:
        found.append(_wrong(contract.TF_CONFIG, str(error)))
    jobs = _jobs_of(text)
    if jobs.get("evaluator"):
        found.append(
            wrong(
                "evaluator:0",
                "roles",
                "the evaluator is in the cluster: TensorFlow's own strategies wait forever "
                "for its server, but an evaluator does not run one",
                'remove "evaluator" from "cluster", but keep the "task" of the evaluator. '
                "python -m launch.task and launch.local do this for you",
            )
        )
    return Definition(jobs, tuple(found))


def from_hosts(
    hosts: Mapping[str, str], job: str | None = None, index: int | None = None
) -> Definition:
    """Reads the flags of `launch.task`: the hosts of each job, and optionally a task."""
    found: list[Finding] = []
    try:
        cluster = Cluster.from_hosts(**hosts)
        if job is not None:
            TFConfig(cluster, Task(job, 0 if index is None else index))
    except ClusterError as error:
        found.append(_wrong("flags", str(error)))
    lists = {each: text.split(",") for each, text in hosts.items() if text}
    return Definition(_addresses(lists), tuple(found))


def roles(definition: Definition, strategy: str) -> Finding:
    """Checks whether a strategy works with the jobs of the cluster."""
    jobs = [job for job, tasks in definition.jobs.items() if tasks]
    needs = _NEEDS[strategy]
    missing = [job for job in needs if job not in jobs]
    idle = [job for job in ("ps",) if job in jobs and job not in needs]
    has = f"{strategy} needs {' and '.join(needs)}; the cluster has "
    has += " and ".join(jobs) or "no task"
    if missing:
        advice = f"add a {' and a '.join(missing)}, or choose another strategy"
        return wrong("cluster", "roles", has, advice)
    if idle:
        advice = f"remove the {idle[0]}, or choose {PARAMETER_SERVER}"
        return wrong("cluster", "roles", has, advice)
    return Finding(Level.OK, "cluster", "roles", has)


def proxy(definition: Definition, environ: Mapping[str, str]) -> list[Finding]:
    """Checks whether the environment sends traffic between tasks through a proxy."""
    hosts = [split_address(each)[0] for each in definition.addresses.values()]
    found = proxies.proxied(hosts, environ)
    if not found:
        return []
    (setting,) = proxies.exception_for(hosts, environ).items()
    return [
        wrong(
            "cluster",
            "proxy",
            f"{proxies.proxy(environ)} is set, so TensorFlow would connect to "
            f"{', '.join(found)} through a proxy, and hang",
            f"export {'='.join(setting)} on every machine, or start the tasks with "
            "launch.task or launch.local, which set it",
        )
    ]


def _wrong(check: str, message: str) -> Finding:
    advice = "correct it on every machine: all tasks must have the same addresses"
    return wrong("cluster", check, message, advice)


def _jobs_of(text: str) -> dict[str, dict[int, str]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        # `from_text` reports it. Deeply nested JSON raises RecursionError.
        return {}
    cluster = value.get("cluster") if isinstance(value, dict) else None
    return _addresses(cluster) if isinstance(cluster, dict) else {}


def _addresses(jobs: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    return {
        job: {
            index: address
            for index, address in enumerate(addresses)
            if _is_address(address)
        }
        for job, addresses in jobs.items()
        if isinstance(addresses, Sequence) and not isinstance(addresses, str)
    }


def _is_address(address: object) -> bool:
    with contextlib.suppress(ClusterError):
        return bool(split_address(address))  # type: ignore[arg-type]
    return False
