"""Waiting for the ps and the workers, with a deadline and a name for each."""

import tf_config
from tfdist.connect import wait_for


def wait_for_servers(cluster: tf_config.Cluster, timeout: float) -> None:
    """Waits until every ps and every worker accepts connections.

    Args:
        cluster: The cluster whose ps and workers to wait for.
        timeout: How long to wait for all of them together, in seconds.

    Raises:
        StartupTimeoutError: If one does not answer in time; names all such.
    """
    servers = [t for t in cluster.tasks() if t.job in ("ps", "worker")]
    wait_for(
        {task: cluster.address(task) for task in servers},
        timeout,
        "Start each of them (python -m launch.task, or python -m launch.local for a "
        "whole cluster on one machine), check the addresses in TF_CONFIG, or give "
        "ParameterServerStrategy a longer startup_timeout",
    )
