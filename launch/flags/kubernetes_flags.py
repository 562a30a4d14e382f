"""The flags of `launch.kubernetes`, and the meaning of their values."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from launch.engines.engine import EngineError
from launch.engines.kubernetes_client import MISSING
from launch.engines.kubernetes_pods import (
    JOB_VARIABLE,
    LAUNCHER,
    check_extra,
    resources_of,
)
from launch.flags import engine_flags
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.secure import mode

_ROLES = ("ps", "worker", "chief")
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_QUANTITY = r"[0-9]+(\.[0-9]+)?([EPTGMk]i?|m)?"
# A pod that takes the place of another may have to fetch its image first.
_STARTUP_TIMEOUT = 300.0  # seconds
_LAUNCHER_CPUS, _LAUNCHER_MIB, _CONNECTION_MIB = "250m", 256, 32


def check(values: Flags) -> None:
    """Checks the values that no parser can reject by itself."""
    engine_flags.check(values, ["checkpoint_dir", "log_dir", "python"])
    if values.image is None:
        raise UsageError(
            "--image is missing: give an image with the script, tfdist and TensorFlow"
        )
    if JOB_VARIABLE in os.environ:
        return
    if not values.image.strip() or re.search(r"\s", values.image):
        raise UsageError(
            f"--image must name an image, without spaces; received {values.image!r}"
        )
    engine_flags.check_work_dir(values.work_dir)
    if values.namespace and not re.fullmatch(_LABEL, values.namespace):
        raise UsageError(
            f"--namespace={values.namespace!r}: a namespace has 1 to 63 lower-case "
            "letters, digits and hyphens, with a letter or digit at both ends"
        )
    for role in _ROLES:
        for what in ("cpus", "memory"):
            name = f"{what}_per_{role}"
            value = values[name].value
            if value is not None and not re.fullmatch(_QUANTITY, value):
                raise UsageError(
                    f"--{name} must be a number, with a unit if need be: 2, 500m or 4Gi; "
                    f"received {value!r}"
                )


def labels(words: Sequence[str]) -> dict[str, str]:
    """Returns labels of nodes."""
    found = {}
    for each in words:
        label, has_value, value = each.partition("=")
        is_label = re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9][\w.-]*", label)
        if not (is_label and has_value):
            raise UsageError(
                f"--ps_node_selector={each!r}: write LABEL=VALUE, a label of the nodes; "
                "LABEL= is one without a value"
            )
        found[label] = value
    return found


def resources(values: Flags, counts: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Returns the requests of the pods of each role."""
    found = {
        role: resources_of(
            values[f"cpus_per_{role}"].value,
            values[f"memory_per_{role}"].value,
            values.gpus_per_worker if role == "worker" else 0,
            values.gpu_resource,
        )
        for role in _ROLES
    }
    memory = _LAUNCHER_MIB + _CONNECTION_MIB * sum(counts.values())
    found[LAUNCHER] = resources_of(_LAUNCHER_CPUS, f"{memory}Mi")
    return {**found, "evaluator": found["chief"]}


def protection(values: Flags) -> str:
    """Returns the protection besides a NetworkPolicy's firewall."""
    resolved = mode.resolve(values.secure)
    return mode.TLS if resolved == mode.TLS else mode.POLICY


def pod_spec(values: Flags) -> Mapping[str, Any]:
    """Returns the user's part of every pod."""
    if values.pod_spec is None:
        return {}
    try:
        import yaml
    except ImportError:
        raise EngineError(MISSING) from None
    try:
        with open(values.pod_spec, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"--pod_spec={values.pod_spec!r}: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{values.pod_spec} is no YAML: {error}") from None
    # The fields themselves the API server checks.
    return check_extra(found or {})


def define() -> Flags:
    """Returns all flags of the command."""
    values = Flags()
    values.text("image", None, "The image of every pod.")
    values.text("namespace", None, "The namespace; by default that of the context.")
    values.text(
        "context", None, "The context of the kubeconfig; by default the current one."
    )
    values.text("python", "python", "The Python interpreter in the image.")
    values.text(
        "work_dir", None, "The working directory; by default that of the image."
    )
    values.text("gpu_resource", "nvidia.com/gpu", "What Kubernetes calls the GPUs.")
    values.text(
        "pod_spec",
        None,
        "YAML file with a part of a pod's spec that every pod gets: tolerations, "
        "nodeSelector, imagePullSecrets, volumes; and under containers, in one "
        "entry, what its container gets: volumeMounts, envFrom.",
    )
    for role in _ROLES:
        who = "the chief, and of the evaluator" if role == "chief" else f"each {role}"
        values.text(f"cpus_per_{role}", None, f"CPUs of {who}: 2 or 500m.")
        values.text(f"memory_per_{role}", None, f"Memory of {who}: 4Gi.")
    values.integer("gpus_per_worker", 0, "GPUs of each worker.", lower_bound=0)
    values.repeated(
        "ps_node_selector",
        [],
        "LABEL=VALUE of the nodes for ps, such as those with the best network links. "
        "Repeat the flag for more.",
    )
    values.switch(
        "pod_failure_policy",
        None,
        "Let Kubernetes tell an error of the program from a lost pod, as it can from 1.31 "
        "on. By default found out from the server; --dry_run supposes that it can.",
    )
    engine_flags.define_env(values)
    engine_flags.define(values, 300.0, "every pod must run")
    values.set_default("startup_timeout", _STARTUP_TIMEOUT)
    return values
