"""A chief that alone runs the script, on workers that are servers: it connects to them."""

import tensorflow as tf

import tf_config
from tfdist.cluster import status
from tfdist.cluster.lost_variables import losing_variables
from tfdist.cluster.membership import (
    CHIEF_AND_WORKERS,
    Given,
    command_of,
    config_of,
)
from tfdist.cluster.startup import wait_for


def chief_of(given: Given, who: str) -> tf_config.TFConfig:
    """Returns the configuration of a chief with workers and without ps."""
    config = config_of(given, CHIEF_AND_WORKERS, is_chief=True)
    command = command_of(CHIEF_AND_WORKERS, config)
    jobs = config.cluster.jobs()
    if config.cluster.has_parameter_servers or "worker" not in jobs:
        raise tf_config.ClusterError(
            f"{who} needs a chief and workers, and no ps; received the jobs "
            f"{', '.join(jobs)}. {command}"
        )
    if config.task.job != "chief":
        raise tf_config.ClusterError(
            f"{who} runs on the chief alone; this task is {config.task}. A worker runs "
            f"`python -m tfdist.server`, which a launcher starts for you. {command}"
        )
    return config


def connect_to_workers(
    config: tf_config.TFConfig, startup_timeout: float, who: str
) -> dict[tf_config.Task, str]:
    """Waits for the workers, connects to them, and returns their addresses."""
    workers = [each for each in config.cluster.tasks() if each.job == "worker"]
    addresses = {each: config.cluster.address(each) for each in workers}
    advice = (
        "Start each of them (python -m launch.task, or python -m launch.local for a "
        "whole cluster on one machine), check the addresses in TF_CONFIG, or pass a "
        f"longer startup_timeout to {who}"
    )
    wait_for(addresses, startup_timeout, advice, servers=True)
    with losing_variables(who):
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(config.cluster.cluster_spec()),
            job_name=config.task.job,
            task_index=config.task.index,
            make_master_device_default=False,
        )
    status.publish_here(config)
    return addresses
