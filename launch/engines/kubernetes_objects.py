"""The objects of a job of Kubernetes, as plain data: a pure function.

A Service gives the pods their names in the network, a NetworkPolicy closes them to all
others, a Secret has the job's key, and Jobs keep the pods running.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launch.engines.engine import EngineError
from launch.engines.kubernetes_pods import LAUNCHER, PORT, Pods
from launch.plan import task_name
from tf_config import JOBS, Task

INDEXED, PLAIN, JOBSET = "indexed", "plain", "jobset"
"""The forms of a job: one indexed Job per role, one Job per task, or a JobSet."""

OLDEST_INDEXED = (1, 31)
"""The first version of Kubernetes whose Jobs have a stable `podFailurePolicy`."""

RETRIED = (137, 143)
"""The exit statuses of a launcher that was killed with its pod."""

_INDEX = "tfdist-launch/index"
_RANK = "batch.kubernetes.io/job-completion-index"  # Where Kubernetes gives one.
# The launcher counts losses. Kubernetes must not lose patience before it does.
_MANY = 100_000
_LONGEST_HOSTNAME = 63


@dataclass(frozen=True)
class KubernetesJob:
    """A job as it is submitted.

    Attributes:
        pods: Its pods.
        counts: How many tasks there are of each job of the cluster.
        form: One of the forms above.
        key: The job's key.
        max_restarts: How often the launcher's own pod may be lost.
        namespace: The namespace; '' for that of the user's context.
        connect_timeout: Seconds within which every pod must run.
        min_workers: How many pods of workers must run; None for all.
    """

    pods: Pods
    counts: Mapping[str, int]
    form: str
    key: str
    max_restarts: int = 5
    namespace: str = ""
    connect_timeout: float = 300.0
    min_workers: int | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.pods.name


def hostname(name: str, task: Task, form: str) -> str:
    """Returns the name that a task's pod has in the network of its job.

    Args:
        name: The job's name.
        task: The task.
        form: The form of the job.

    >>> hostname("mnist", Task("ps", 1), INDEXED)
    'mnist-ps-1'
    """
    between = "-0" if form == JOBSET else ""
    return f"{name}-{task.job}{between}-{task.index}"


def tasks(counts: Mapping[str, int]) -> list[Task]:
    """Returns the tasks of a cluster, by job and index."""
    return [Task(job, i) for job in JOBS for i in range(counts.get(job, 0))]


def task_of(pod: Mapping[str, Any]) -> str:
    """Returns the short name of a pod's task, or `LAUNCHER`, from its metadata.

    Args:
        pod: A pod as Kubernetes describes it.
    """
    labels = pod["metadata"].get("labels", {})
    role = labels.get("app.kubernetes.io/component", "")
    if role == LAUNCHER:
        return LAUNCHER
    annotations = pod["metadata"].get("annotations") or {}
    index = annotations.get(_INDEX) or annotations.get(_RANK) or "0"
    return task_name(Task(role, int(index)))


def render(job: KubernetesJob) -> list[dict[str, Any]]:
    """Returns the objects, in the order in which they are to be created.

    Raises:
        EngineError: If a pod would get a name that the network does not allow.
    """
    _check_names(job)
    made = [_secret(job), _policy(job)]
    if job.form == JOBSET:
        return [*made, _jobset(job)]
    jobs = [_plain(job, each) for each in tasks(job.counts)]
    if job.form == INDEXED:
        roles = [role for role in JOBS if job.counts.get(role)]
        jobs = [
            _object(job, "batch/v1", "Job", f"{job.name}-{role}", role)
            | {"spec": _indexed(job, role)}
            for role in roles
        ]
    launcher = _object(job, "batch/v1", "Job", f"{job.name}-{LAUNCHER}", LAUNCHER)
    jobs.append(launcher | {"spec": _launcher(job)})
    if job.min_workers is not None:
        # Kubernetes has room for pods in the order in which they come.
        jobs.sort(key=lambda each: _role(each) == "worker")
    return [*made, _service(job), *jobs]


def _role(made: Mapping[str, Any]) -> str:
    found: str = made["metadata"]["labels"]["app.kubernetes.io/component"]
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
            "clusterIP": "None",
            # A task needs the others before it is ready itself.
            "publishNotReadyAddresses": True,
            "selector": job.pods.labels(),
            "ports": [{"name": "tensorflow", "port": PORT}],
        }
    }


def _jobset(job: KubernetesJob) -> dict[str, Any]:
    roles = [*(role for role in JOBS if job.counts.get(role)), LAUNCHER]
    made = _object(job, "jobset.x-k8s.io/v1alpha2", "JobSet", job.name)
    return made | {
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": job.name,
                "publishNotReadyAddresses": True,
            },
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [LAUNCHER]},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {
                    "name": role,
                    "replicas": 1,
                    "template": {
                        "metadata": {"labels": job.pods.labels(role)},
                        "spec": _launcher(job)
                        if role == LAUNCHER
                        else _indexed(job, role),
                    },
                }
                for role in roles
            ],
        }
    }


def _indexed(job: KubernetesJob, role: str) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": job.counts[role],
        "parallelism": job.counts[role],
        "backoffLimit": _MANY,
        "podFailurePolicy": _failures(role),
        "template": job.pods.render(role),
    }


def _plain(job: KubernetesJob, task: Task) -> dict[str, Any]:
    name = hostname(job.name, task, PLAIN)
    template = job.pods.render(task.job, index=task.index, hostname=name)
    template["metadata"]["annotations"] = {_INDEX: str(task.index)}
    made = _object(job, "batch/v1", "Job", name, task.job)
    return made | {"spec": {"backoffLimit": _MANY, "template": template}}


def _launcher(job: KubernetesJob) -> dict[str, Any]:
    spec: dict[str, Any] = {"backoffLimit": min(job.max_restarts, _MANY)}
    if job.form != PLAIN:
        spec |= {"completionMode": "Indexed", "completions": 1, "parallelism": 1}
        spec["podFailurePolicy"] = _failures(LAUNCHER)
    return {**spec, "template": job.pods.render(LAUNCHER)}


def _failures(container: str) -> dict[str, Any]:
    """Returns the rules by which a lost machine is retried, and an error is not."""
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
    names = [hostname(job.name, task, job.form) for task in tasks(job.counts)]
    longest = max([*names, f"{job.name}-{LAUNCHER}"], key=len)
    if len(longest) > _LONGEST_HOSTNAME:
        raise EngineError(
            f"{longest} has {len(longest)} characters, and the name of a pod in the "
            f"network has at most {_LONGEST_HOSTNAME}: choose a shorter --name"
        )
