"""The cluster that an engine has started this process in, whichever engine it is."""

import json
from collections.abc import Mapping
from typing import Any

from tf_config import contract, slurm
from tf_config.environment import TFConfig
from tf_config.errors import ClusterError, show
from tf_config.roles import assign_roles

_HOSTS, _CURRENT_HOST = "SM_HOSTS", "SM_CURRENT_HOST"
_FIRST_PORT = 2222


def from_engine(
    environ: Mapping[str, str],
    num_ps: int | None = None,
    first_port: int | None = None,
) -> TFConfig:
    """Returns the cluster that the environment describes, and this process's task.

    Kubeflow's TFJob and Ray Train set TF_CONFIG. SageMaker and Slurm set the hosts and
    this process's place among them; the roles follow from `num_ps`.

    Args:
        environ: The environment.
        num_ps: How many of the first hosts are ps; None for none, or for what TF_CONFIG
            says.
        first_port: The first port on each host; None for the engine's default.

    Raises:
        ClusterError: If no engine describes a cluster, or what it says is invalid.
    """
    has_config = bool(environ.get(contract.TF_CONFIG, "").strip())
    if has_config and num_ps is None:
        return _from_tf_config(environ)
    if _HOSTS in environ:
        return _from_sagemaker(environ, num_ps or 0, first_port or _FIRST_PORT)
    if slurm.NODES in environ:
        return slurm.read(environ, num_ps or 0, first_port)
    if has_config:
        raise ClusterError(
            f"TF_CONFIG says which tasks are ps, and so does num_ps={num_ps}: omit one"
        )
    raise ClusterError(
        "no engine describes a cluster here: neither TF_CONFIG (Kubeflow, Ray), nor "
        f"{_HOSTS} (SageMaker), nor {slurm.NODES} (a task of srun) is set"
    )


def _from_sagemaker(
    environ: Mapping[str, str], num_ps: int, first_port: int
) -> TFConfig:
    """Reads SM_HOSTS and SM_CURRENT_HOST; the first hosts are the ps.

    Every host runs one container (docs.aws.amazon.com, SageMaker Training Toolkit,
    ENVIRONMENT_VARIABLES.md).
    """
    text = environ[_HOSTS]
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError):
        hosts = None
    if not (
        isinstance(hosts, list)
        and hosts
        and all(isinstance(each, str) for each in hosts)
    ):
        raise ClusterError(
            f'{_HOSTS} is a list of hosts such as ["algo-1", "algo-2"]; received '
            f"{show(text)}"
        )
    host = environ.get(_CURRENT_HOST)
    if host not in hosts:
        raise ClusterError(
            f"{_CURRENT_HOST} is one of {', '.join(hosts)}; received {show(host)}"
        )
    # In their own order: sorted by name, algo-10 would come before algo-2.
    return assign_roles(hosts, hosts.index(host), num_ps, first_port)


def _from_tf_config(environ: Mapping[str, str]) -> TFConfig:
    """Reads TF_CONFIG as a TFJob of Kubeflow, Ray Train or another engine has set it.

    TFJob names the chief `master` if its replica type is Master, and may have no chief at
    all: then worker 0 decides on the job's success (kubeflow.org, TFJob). Ray Train's
    TensorflowTrainer sets workers alone.
    """
    try:
        value = json.loads(environ[contract.TF_CONFIG])
    except (ValueError, RecursionError):
        # It explains what is wrong, and where.
        return TFConfig.from_environment(environ)
    if not isinstance(value, dict):
        return TFConfig.from_environment(environ)
    if "sparseCluster" in value:
        raise ClusterError(
            "TF_CONFIG has a sparseCluster, in which a task does not see the others: set "
            "enableDynamicWorker: false in the TFJob"
        )
    cluster, task = value.get("cluster"), value.get("task")
    if not (isinstance(cluster, dict) and isinstance(task, dict)):
        return TFConfig.from_environment(environ)
    return TFConfig.from_dict({**value, **_with_chief(cluster, task)})


def _with_chief(cluster: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """Names the chief: `master`, or with ps but without either, worker 0."""
    if "master" in cluster and "chief" not in cluster:
        cluster = {
            ("chief" if job == "master" else job): cluster[job] for job in cluster
        }
        if task.get("type") == "master":
            task = {**task, "type": "chief"}
    workers = cluster.get("worker")
    if not isinstance(workers, list) or len(workers) < 2:
        return {"cluster": cluster, "task": task}
    if cluster.get("ps") and not cluster.get("chief"):
        cluster = {**cluster, "chief": workers[:1], "worker": workers[1:]}
        index = task.get("index")
        if task.get("type") == "worker" and type(index) is int:
            task = {"type": "worker", "index": index - 1}
            if not index:
                task = {"type": "chief", "index": 0}
    return {"cluster": cluster, "task": task}
