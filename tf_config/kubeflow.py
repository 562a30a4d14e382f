"""The cluster of a TFJob of Kubeflow, and others that come as a TF_CONFIG.

TFJob names the chief `master` if its replica type is Master, and may have no chief at
all: then worker 0 decides on the job's success (kubeflow.org, TFJob). Ray Train's
TensorflowTrainer sets a TF_CONFIG with workers alone.
"""

import json
from collections.abc import Mapping
from typing import Any

from tf_config import contract
from tf_config.environment import TFConfig
from tf_config.errors import ClusterError


def read(environ: Mapping[str, str]) -> TFConfig:
    """Reads TF_CONFIG as an engine has set it.

    Raises:
        ClusterError: If it is invalid, or does not have all addresses.
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
