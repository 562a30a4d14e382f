"""A program in every worker of a cluster, without a launcher."""

import os
import subprocess
import sys
from collections.abc import Collection
from typing import Any

import tf_config

from .addresses import free_addresses
from .deadline import PROGRAM_DEADLINE


def run_workers(
    workers: int, *command: Any, only: Collection[int] = (), stopped: Any = None
) -> tuple[list[str], dict[int, str]]:
    """Run a program in each worker.

    Args:
        workers: How many the cluster has. One alone has no cluster.
        command: The program and its arguments.
        only: The workers that run; by default all of them.
        stopped: A worker that does not end by itself.

    Returns:
        The addresses of all, and what each worker that ended wrote to stderr.
    """
    addresses = free_addresses(workers)
    cluster = tf_config.Cluster(worker=tuple(addresses))
    processes = {}
    for index in only or range(workers):
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
        env.pop("TF_CONFIG", None)
        if workers > 1:
            task = tf_config.Task("worker", index)
            env["TF_CONFIG"] = tf_config.TFConfig(cluster, task).to_json()
        processes[index] = subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        return addresses, {
            index: process.communicate(timeout=PROGRAM_DEADLINE)[1]
            for index, process in processes.items()
            if index != stopped
        }
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
