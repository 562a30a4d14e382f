"""The cluster that a doctor is shown, read leniently: what is wrong is a finding."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.diagnose.finding import Finding, Level
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
    """Who is said to be in the cluster.

    Attributes:
        jobs: The addresses of each job that are addresses, by the task's index.
        findings: What is wrong with the rest.
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
    """Reads the text of a TF_CONFIG."""
    found: list[Finding] = []
    try:
        TFConfig.from_json(text)
    except ClusterError as error:
        found.append(_wrong(contract.TF_CONFIG, str(error)))
    jobs = _jobs_of(text)
    if jobs.get("evaluator"):
        found.append(
            Finding(
                Level.WRONG,
                "evaluator:0",
                "roles",
                "the evaluator is inside the cluster: TensorFlow's own strategies wait "
                "for ever for its server, and it runs none",
                'take "evaluator" out of "cluster"; its own "task" stays as it is. '
                "python -m launch.task and launch.local do so",
            )
        )
    return Definition(jobs, tuple(found))


def from_hosts(
    hosts: Mapping[str, str], job: str | None = None, index: int | None = None
) -> Definition:
    """Reads the flags of `launch.task`: the hosts of each job, and maybe a task."""
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
    """Says whether the jobs are those that a strategy works with."""
    jobs = [job for job, tasks in definition.jobs.items() if tasks]
    needs = _NEEDS[strategy]
    missing = [job for job in needs if job not in jobs]
    idle = [job for job in ("ps",) if job in jobs and job not in needs]
    has = f"{strategy} works with {' and '.join(needs)}; the cluster has "
    has += " and ".join(jobs) or "no task"
    if missing:
        advice = f"add a {' and a '.join(missing)}, or choose another strategy"
        return Finding(Level.WRONG, "cluster", "roles", has, advice)
    if idle:
        advice = f"leave the {idle[0]} out, or choose {PARAMETER_SERVER}"
        return Finding(Level.WRONG, "cluster", "roles", has, advice)
    return Finding(Level.OK, "cluster", "roles", has)


def proxy(definition: Definition, environ: Mapping[str, str]) -> list[Finding]:
    """Says whether a proxy stands between a task in this environment and the others."""
    hosts = [split_address(each)[0] for each in definition.addresses.values()]
    found = proxies.proxied(hosts, environ)
    if not found:
        return []
    (setting,) = proxies.exception_for(hosts, environ).items()
    return [
        Finding(
            Level.WRONG,
            "cluster",
            "proxy",
            f"{proxies.proxy(environ)} names a proxy, through which TensorFlow would "
            f"reach {', '.join(found)}, and hang",
            f"export {'='.join(setting)} on every machine, or start the tasks by "
            "launch.task or launch.local, which do so",
        )
    ]


def _wrong(check: str, message: str) -> Finding:
    advice = "mend it on every machine: each task reads the same addresses"
    return Finding(Level.WRONG, "cluster", check, message, advice)


def _jobs_of(text: str) -> dict[str, dict[int, str]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
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
    try:
        split_address(address)  # type: ignore[arg-type]
    except ClusterError:
        return False
    return True
