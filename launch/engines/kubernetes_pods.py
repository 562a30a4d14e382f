"""The pod of each task: a pure function of the user's request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.engines.engine import EngineError
from launch.remote import greeting, listener

LAUNCHER = "launcher"
"""The role of the pod that supervises the tasks in the others."""

JOB_VARIABLE = "LAUNCHER_KUBERNETES_JOB"
"""Tells the command that it runs in a pod of the job, and the job's name."""

PORT = 2222
"""The port of TensorFlow in each pod."""

END_FILE = "/run/tfdist/end.json"
"""The launcher pod's note of the end; Kubernetes keeps it next to the exit status."""

LOG_PREFIX = "tfdist-logs-"
"""The prefix of the launcher pod's log directory, which goes with the pod."""

_KEY_DIRECTORY = "/run/tfdist/key"
_KEY = "key"
_GRACE = 30  # seconds beyond the user's grace period
_DAY = 86_400.0
# They would take a task out of its pod's network, or the job's decisions away.
_REFUSED = (
    *("hostNetwork", "hostPID", "hostIPC", "hostname", "subdomain", "restartPolicy"),
    *("initContainers", "ephemeralContainers", "terminationGracePeriodSeconds"),
    *("setHostnameAsFQDN", "dnsPolicy", "hostUsers", "hostAliases", "hostnameOverride"),
)
_REFUSED_OF_CONTAINER = (
    *("name", "image", "command", "args", "ports", "terminationMessagePath"),
    *("restartPolicy", "livenessProbe", "startupProbe", "lifecycle"),
)


@dataclass(frozen=True)
class Pods:
    """The pods of a job: their common parts, and their differences by role.

    Attributes:
        name: The job's name.
        image: The image of every pod.
        command: The command of the launcher's pod.
        python: The interpreter in the image.
        grace_period: Seconds that a task may take to end.
        patience: Seconds that a pod waits without a launcher.
        work_dir: The working directory; '' for the image's own.
        env: Variables for every pod.
        resources: The requests of the pods of each role, from `resources_of`.
        ps_node_selector: The labels of nodes for ps.
        extra: A part of a pod's `spec`, merged into every pod.
    """

    name: str
    image: str
    command: Sequence[str]
    python: str = "python"
    grace_period: float = 10.0
    patience: float = 1800.0
    work_dir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ps_node_selector: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def secret(self) -> str:
        """The name of the Secret with the job's key."""
        return f"{self.name}-key"

    def labels(self, role: str = "") -> dict[str, str]:
        """Returns the labels of the job's objects, and of those of one role."""
        found = {
            "app.kubernetes.io/managed-by": "tfdist-launch",
            "app.kubernetes.io/instance": self.name,
        }
        if role:
            found["app.kubernetes.io/component"] = role
        return found

    def render(
        self, role: str, *, index: int | None = None, hostname: str = ""
    ) -> dict[str, Any]:
        """Returns the template of the pods of a role: `LAUNCHER`, or a job of the cluster.

        The launcher has no index, and no name in the network: nobody calls it.
        """
        spec: dict[str, Any] = {
            # As `podFailurePolicy` requires: a Job replaces the whole pod.
            "restartPolicy": "Never",
            "subdomain": self.name,
            # Otherwise the tasks get variables for every Service of the namespace.
            "enableServiceLinks": False,
            # Nothing in the pods talks to Kubernetes.
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": round(min(self.grace_period, _DAY))
            + _GRACE,
            "containers": [self._container(role, index)],
            "volumes": [
                {"name": "launcher-key", "secret": {"secretName": self.secret}}
            ],
        }
        if hostname:
            spec["hostname"] = hostname
        if role == "ps":
            spec |= self._ps_placement()
        merged = _merge(spec, self.extra)
        return {"metadata": {"labels": self.labels(role)}, "spec": merged}

    def _container(self, role: str, index: int | None) -> dict[str, Any]:
        key = {greeting.KEY_FILE: f"{_KEY_DIRECTORY}/{_KEY}"}
        if role == LAUNCHER:
            command = self.command
            own = {JOB_VARIABLE: self.name}
        else:
            command = (self.python, "-m", "launch.remote.listener")
            own = {
                **{listener.JOB: role, listener.INDEX: str(index)},
                **{listener.PATIENCE: f"{self.patience:g}"},
            }
        env = {"PYTHONUNBUFFERED": "1", **self.env, **key, **own}
        found: dict[str, Any] = {
            "name": role,
            "image": self.image,
            "command": [_literal(each) for each in command],
            "env": [{"name": k, "value": _literal(v)} for k, v in env.items()],
            "terminationMessagePath": END_FILE,
            # A program that failed before it wrote the file: the end of its log says
            # why.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": "launcher-key", "mountPath": _KEY_DIRECTORY, "readOnly": True}
            ],
        }
        if self.work_dir:
            found["workingDir"] = self.work_dir
        if asked := self.resources.get(role):
            found["resources"] = asked
        return found

    def _ps_placement(self) -> dict[str, Any]:
        # Each ps sends and receives what all workers do, so they rather share no node.
        term = {
            "labelSelector": {"matchLabels": self.labels("ps")},
            "topologyKey": "kubernetes.io/hostname",
        }
        weighted = {"weight": 100, "podAffinityTerm": term}
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}
        found: dict[str, Any] = {"affinity": {"podAntiAffinity": rule}}
        if self.ps_node_selector:
            found["nodeSelector"] = dict(self.ps_node_selector)
        return found


def resources_of(
    cpus: str | None, memory: str | None, gpus: int = 0, gpu_resource: str = ""
) -> dict[str, Any]:
    """Returns a container's `resources`; {} if nothing is asked for.

    >>> resources_of("2", "4Gi")
    {'requests': {'cpu': '2', 'memory': '4Gi'}, 'limits': {'memory': '4Gi'}}
    """
    requests, limits = {}, {}
    if cpus:
        requests["cpu"] = cpus
    if memory:
        requests["memory"] = limits["memory"] = memory
    if gpus:
        # Kubernetes takes the limit of such a resource for the request too.
        limits[gpu_resource] = str(gpus)
    found = {"requests": requests, "limits": limits}
    return {name: value for name, value in found.items() if value}


def check_extra(extra: Any) -> Mapping[str, Any]:
    """Returns a part of a pod's `spec` that can be merged into the pods."""
    if not isinstance(extra, Mapping):
        raise EngineError(
            "a pod's spec is a mapping, such as tolerations: [...]; received "
            f"{type(extra).__name__}"
        )
    containers = extra.get("containers", [{}])
    if not (
        isinstance(containers, Sequence)
        and len(containers) == 1
        and isinstance(containers[0], Mapping)
    ):
        raise EngineError(
            "containers has one entry in a part of a pod's spec: what to add to the "
            "task's own container"
        )
    for part, refused in (
        (extra, _REFUSED),
        (containers[0], _REFUSED_OF_CONTAINER),
    ):
        for name in part:
            if name in refused:
                why = (
                    "with it, TensorFlow's port would be open on the node"
                    if name == "hostNetwork"
                    else "the launcher decides that"
                )
                raise EngineError(f"a pod cannot have {name} ({why}): omit it")
    return extra


def _merge(spec: Any, extra: Any) -> Any:
    """Adds to a rendered part: mappings by key, lists at their end.

    >>> _merge({"a": [1], "b": {"c": 2}}, {"a": [3], "b": {"d": 4}})
    {'a': [1, 3], 'b': {'c': 2, 'd': 4}}
    """
    if isinstance(spec, Mapping) and isinstance(extra, Mapping):
        found = dict(spec)
        for name, value in extra.items():
            if name == "containers":
                found[name] = [_merge(spec[name][0], value[0])]
            else:
                found[name] = _merge(spec[name], value) if name in spec else value
        return found
    if isinstance(spec, list) and isinstance(extra, list):
        return [*spec, *extra]
    return extra


def _literal(text: str) -> str:
    """Returns a text that Kubernetes does not take for references to variables.

    >>> _literal("$(HOME) costs $5")
    '$$(HOME) costs $$5'
    """
    return text.replace("$", "$$")
