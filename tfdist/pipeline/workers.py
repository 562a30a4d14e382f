"""The workers of a cluster whose devices have the stages, and their health."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

import tf_config
from tf_config import contract
from tfdist.cluster import status
from tfdist.cluster.health import NO_ANSWER, Server, problem_of
from tfdist.cluster.membership import MEMBERSHIP, check_eager, config_of
from tfdist.cluster.startup import wait_for
from tfdist.liveness.last_resort import LastResort
from tfdist.liveness.peers import WHAT_TO_DO, PeerWatch, naming_lost_peers
from tfdist.pipeline.devices import devices_of_workers

_ADVICE = (
    "Start each of them (python -m launch.task, or python -m launch.local for a whole "
    "cluster on one machine), check the addresses in TF_CONFIG, or pass a longer "
    "startup_timeout to PipelineStrategy"
)


def has_cluster() -> bool:
    """Whether TF_CONFIG names a cluster."""
    return bool(os.environ.get(contract.TF_CONFIG))


class Workers:
    """Connects to the workers, and watches them.

    Args:
        strategy: The strategy that this process joins the cluster for.
        startup_timeout: How long to wait for the workers, in seconds.
        peer_timeout: How long a worker may fail to respond afterwards, in seconds.

    Attributes:
        devices: The devices of the workers, in their order.
    """

    def __init__(
        self, strategy: Any, startup_timeout: float, peer_timeout: float
    ) -> None:
        check_eager("PipelineStrategy")
        config = _chief()
        MEMBERSHIP.check_none()
        tasks = [each for each in config.cluster.tasks() if each.job == "worker"]
        addresses = {each: config.cluster.address(each) for each in tasks}
        wait_for(addresses, startup_timeout, _ADVICE, servers=True)
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(config.cluster.cluster_spec()),
            job_name=config.task.job,
            task_index=config.task.index,
            make_master_device_default=False,
        )
        MEMBERSHIP.joined(strategy)
        status.publish_here(config)
        self.devices = devices_of_workers([each.device for each in tasks])
        self._servers = {task: Server(address) for task, address in addresses.items()}
        self._last_resort = LastResort()
        self._watch = PeerWatch(addresses, peer_timeout, self._check, self._lost)
        weakref.finalize(strategy, self._watch.stop).atexit = False

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call that needs the workers: if one is lost, it fails or the process exits."""
        with naming_lost_peers(self._watch.lost), self._last_resort.call():
            yield

    def _lost(self, what: str, is_back: Callable[[], bool]) -> bool:
        return self._last_resort.lost(f"PeerLostError: {what}. {WHAT_TO_DO}", is_back)

    def _check(self, worker: tf_config.Task, seconds: float) -> None:
        problem = problem_of(self._servers[worker].ask(seconds))
        if problem == NO_ANSWER:
            raise tf.errors.DeadlineExceededError(None, None, problem)
        if problem:
            raise tf.errors.UnavailableError(None, None, problem)


def _chief() -> tf_config.TFConfig:
    config = config_of(None, "--num_ps=0 --num_workers=2 --program=coordinator")
    jobs = config.cluster.jobs()
    if config.cluster.has_parameter_servers or "worker" not in jobs:
        raise tf_config.ClusterError(
            "PipelineStrategy needs a chief and workers, and no ps; received the jobs "
            f"{', '.join(jobs)}"
        )
    if config.task.job != "chief":
        raise tf_config.ClusterError(
            f"PipelineStrategy runs on the chief alone; this task is {config.task}. A "
            "worker runs `python -m tfdist.server`, which python -m launch.task and "
            "python -m launch.local start for you with --program=coordinator"
        )
    return config
