"""The objects of a job of Kubernetes, as plain data: a pure function.

A Service gives the pods their names in the network, a NetworkPolicy closes them to all
others, a Secret has the job's key, and one Job per task keeps its pod running. Every version
of Kubernetes has these.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.engines.engine import EngineError
from launch.engines.kubernetes_pods import LAUNCHER, PORT, Pods
from launch.job.plan import task_name, tasks_of
from tf_config import Task

OLDEST_WITH_POLICY = (1, 31)
"""The first version of Kubernetes whose Jobs have a stable `podFailurePolicy`."""

RETRIED = (137, 143)
"""The exit statuses of a launcher that was killed with its pod."""

_INDEX = "tfdist-launch/index"
# The launcher counts losses. Kubernetes must not lose patience before it does.
_MANY = 100_000
_LONGEST_HOSTNAME = 63


@dataclass(frozen=True)
class KubernetesJob:
    """A job as it is submitted.

    Attributes:
        pods: Its pods.
        counts: How many tasks there are of each job of the cluster.
        key: The job's key.
        has_failure_policy: Whether Kubernetes tells an error from a lost pod.
        max_restarts: How often the launcher's own pod may be lost.
        namespace: The namespace; '' for that of the user's context.
        connect_timeout: Seconds within which every pod must run.
        min_workers: How many pods of workers must run; None for all.
    """

    pods: Pods
    counts: Mapping[str, int]
    key: str
    has_failure_policy: bool = True
    max_restarts: int = 5
    namespace: str = ""
    connect_timeout: float = 300.0
    min_workers: int | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.pods.name


def hostname(name: str, task: Task) -> str:
    """Returns the name that a task's pod has in the network of its job, and its Job.

    >>> hostname("mnist", Task("ps", 1))
    'mnist-ps-1'
    """
    return f"{name}-{task.job}-{task.index}"


def task_of(pod: Mapping[str, Any]) -> str:
    """Returns the short name of a pod's task, or `LAUNCHER`, from its metadata."""
    labels = pod["metadata"].get("labels", {})
    role = labels.get("app.kubernetes.io/component", "")
    if role == LAUNCHER:
        return LAUNCHER
    annotations = pod["metadata"].get("annotations") or {}
    return task_name(Task(role, int(annotations.get(_INDEX, "0"))))


def render(job: KubernetesJob) -> list[dict[str, Any]]:
    """Returns the objects in the order of their creation."""
    _check_names(job)
    every = tasks_of(job.counts)
    first, last = every, []
    if job.min_workers is not None:
        # Kubernetes has room for pods in the order in which they come.
        first = [each for each in every if each.job != "worker"]
        last = [each for each in every if each.job == "worker"]
    found = [
        *(_secret(job), _policy(job), _service(job)),
        *(_job(job, each) for each in first),
        _job_of(job, f"{job.name}-{LAUNCHER}", LAUNCHER, job.pods.render(LAUNCHER)),
        *(_job(job, each) for each in last),
    ]
    _check_text(found)
    return found


def _object(
    job: KubernetesJob, version: str, kind: str, name: str, role: str = ""
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": job.pods.labels(role)}
    if job.namespace:
        metadata["namespace"] = job.namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _secret(job: KubernetesJob) -> dict[str, Any]:
    data = {"key": base64.b64encode(job.key.encode()).decode()}
    made = _object(job, "v1", "Secret", job.pods.secret)
    return made | {"type": "Opaque", "data": data}


def _policy(job: KubernetesJob) -> dict[str, Any]:
    ours = {"matchLabels": job.pods.labels()}
    return _object(job, "networking.k8s.io/v1", "NetworkPolicy", job.name) | {
        "spec": {
            "podSelector": ours,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": ours}]}],
        }
    }


def _service(job: KubernetesJob) -> dict[str, Any]:
    return _object(job, "v1", "Service", job.name) | {
        "spec": {
            # Headless: the name of a pod leads to the pod itself, on any port.
            "clusterIP": "None",
            # A task needs the others before it is ready itself.
            "publishNotReadyAddresses": True,
            "selector": job.pods.labels(),
            "ports": [{"name": "tensorflow", "port": PORT}],
        }
    }


def _job(job: KubernetesJob, task: Task) -> dict[str, Any]:
    name = hostname(job.name, task)
    template = job.pods.render(task.job, index=task.index, hostname=name)
    template["metadata"]["annotations"] = {_INDEX: str(task.index)}
    return _job_of(job, name, task.job, template)


def _job_of(
    job: KubernetesJob, name: str, role: str, template: Mapping[str, Any]
) -> dict[str, Any]:
    limit = job.max_restarts if role == LAUNCHER else _MANY
    spec: dict[str, Any] = {"backoffLimit": min(limit, _MANY), "template": template}
    if job.has_failure_policy:
        spec["podFailurePolicy"] = _failures(role)
    return _object(job, "batch/v1", "Job", name, role) | {"spec": spec}


def _failures(container: str) -> dict[str, Any]:
    """Returns rules that retry a task after a lost machine, and not after an error."""
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {
                "action": "FailJob",
                "onExitCodes": {
                    "containerName": container,
                    "operator": "NotIn",
                    "values": list(RETRIED),
                },
            },
        ]
    }


def _check_names(job: KubernetesJob) -> None:
    if not re.fullmatch("[a-z].*", job.name):
        raise EngineError(
            f"Kubernetes needs a job's name to begin with a letter; received "
            f"{job.name!r}: choose another --name"
        )
    names = [hostname(job.name, task) for task in tasks_of(job.counts)]
    longest = max([*names, f"{job.name}-{LAUNCHER}"], key=len)
    if len(longest) > _LONGEST_HOSTNAME:
        raise EngineError(
            f"{longest} has {len(longest)} characters, and the name of a pod in the "
            f"network has at most {_LONGEST_HOSTNAME}: choose a shorter --name"
        )


def _check_text(value: Any) -> None:
    """Checks that every string can be sent."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise EngineError(
                f"{value!r} has bytes that are no UTF-8, and Kubernetes takes text only: "
                "write it in UTF-8"
            ) from None
        if "\0" in value:
            raise EngineError(f"{value!r} has a zero byte: omit it")
    elif isinstance(value, dict):
        for name, each in value.items():
            _check_text(name)
            _check_text(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_text(each)
