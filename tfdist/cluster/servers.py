"""Waits for the ps and the workers, with a deadline."""

import tf_config
from tfdist.cluster.startup import wait_for


def wait_for_servers(
    cluster: tf_config.Cluster, timeout: float, min_workers: int | None = None
) -> tuple[tf_config.Task, ...]:
    """Waits until every ps and enough workers answer as TensorFlow servers.

    They have `timeout` seconds together. Returns the workers that do not answer yet.

    Raises:
        StartupTimeoutError: If a task does not answer in time; names all that did not.
    """
    return wait_for(
        servers_of(cluster),
        timeout,
        "Start each of them (python -m launch.task, or python -m launch.local for a "
        "whole cluster on one machine), check the addresses in TF_CONFIG, or give "
        "ParameterServerStrategy a longer startup_timeout. `python -m launch.doctor` "
        "says more about each",
        servers=True,
        min_workers=min_workers,
    )


def servers_of(cluster: tf_config.Cluster) -> dict[tf_config.Task, str]:
    """Returns the address of each ps and worker."""
    servers = [t for t in cluster.tasks() if t.job in ("ps", "worker")]
    return {task: cluster.address(task) for task in servers}
