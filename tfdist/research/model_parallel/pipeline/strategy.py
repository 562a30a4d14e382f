"""`PipelineStrategy`: one model whose layers are on several devices or workers."""

import contextlib
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tf_config import contract
from tfdist.cluster.liveness.peers import naming_lost_peers
from tfdist.cluster.liveness.watched_workers import WatchedWorkers
from tfdist.cluster.membership import MEMBERSHIP, Given, JoinsOnce, check_eager
from tfdist.cluster.one_script import chief_of, connect_to_workers
from tfdist.cluster.settings import (
    JobArguments,
    JobSettings,
    job_settings,
    takes_job_arguments,
)
from tfdist.keras.distributed_data import DistributesForFit
from tfdist.research.model_parallel.pipeline import arguments
from tfdist.research.model_parallel.pipeline.devices import (
    devices_here,
    devices_of_workers,
)
from tfdist.research.model_parallel.pipeline.driver import PipelineDriver
from tfdist.research.model_parallel.pipeline.extended import PipelineExtended
from tfdist.research.model_parallel.plan import LayerPlan

_WHO = "PipelineStrategy"


if TYPE_CHECKING:
    from typing_extensions import Unpack


class PipelineStrategy(JoinsOnce, DistributesForFit, tf.distribute.Strategy):
    """Trains a model whose layers are on several devices, a batch in microbatches.

    A functional or Sequential model, created and compiled in `scope()`, is cut into
    stages. Each stage has the variables of its layers, and their optimizer slots, on a
    device of its own. A batch is split into microbatches that pass through the stages
    forward and backward in the order of a schedule, so that stages compute at the same
    time; then the optimizer runs once, with the gradients of the whole batch.

    A step equals one process's step on the same batch, to rounding, except for what
    depends on how a batch is divided: BatchNormalization takes the statistics of each
    microbatch, and dropout draws for each. Values that layers assign in a step, as the
    averages of BatchNormalization, become the mean over replicas.

    The parts of layers that `tfdist.research.split_layers` has split are on the device of their
    stage and on those that follow it, or where a plan has them.

    Under TF_CONFIG the script runs on the chief, and the stages are on the workers
    (`python -m launch.local --num_ps=0 --num_workers=2 --program=coordinator`).
    Otherwise they are on the logical devices of this process.

    Cost: with K stages and M microbatches stages idle for `(K - 1) / (M + K - 1)` of the
    time, if they take equally long. The bytes of each tensor that crosses a cut go
    forward, and as many backward. With R replicas, each weight and its slots are on one
    of them (ZeRO, stage 1): in a step each device sends and receives about
    `2 (R - 1) / R` times the bytes of its stage's weights, as in a ring all-reduce.

    Args:
        stages: "auto" for as many consecutive stages as devices, or their number: cut so
            that a step takes least time, simulated with costs and links that are
            estimated, with about the memory that equal stages need;
            a list with a list of layer names for each stage; or a plan of
            `tfdist.research.place_layers`, whose first device is the first one here, and so on.
            A device to which a plan goes back has several stages.
        microbatches: The number of microbatches, M. A batch of fewer rows has a
            microbatch per row; of rows that M does not divide, the first microbatches
            have one more, and each counts by its rows.
        schedule: "gpipe": all microbatches forward, then all backward. "1f1b": a stage
            goes backward as soon as it can, which bounds the activations that it keeps;
            the loss must then be one that separates over examples.
        recompute: Whether to compute activations again on the way back, and to keep only
            what crosses a cut: a third more work for less memory.
        devices: The names of logical devices of this process. By default, the workers of
            the cluster, or all devices of this process.
        replicas: How many pipelines share a batch, each with `microbatches` parts of it
            and with as many devices: the first ones, those that follow, and so on.
        max_staleness: How many steps old the results of another stage may be. 0: those of
            the same step, which gives one process's results. 1: no stage waits for
            another, so there is no bubble; each computes another batch, and its gradients
            are some steps old: those of stage k of K by 2 (K - 1 - k) steps. 2 or more: a
            result has a whole step to travel, and gradients are twice as old. At the end
            of an epoch, and before a checkpoint, all batches pass through all stages:
            each is counted and updates each weight once. All stages but the last compute
            activations again, with or without `recompute`.
        cluster_resolver: The cluster of a chief, which this process is, and workers: a
            `tf.distribute.cluster_resolver.ClusterResolver` or a `tf_config.TFConfig`.
            Read from the environment variable TF_CONFIG by default, if it is set and there
            are no `devices`.
        **job: The arguments of all strategies: `startup_timeout`, `peer_timeout`,
            `checkpoints` or `checkpoint_dir`.

    Raises:
        PipelineError: If an argument is not as described.
        tf_config.ClusterError: If TF_CONFIG is not that of a chief with workers.
        StartupTimeoutError: If a worker does not respond in time.

    References:
        Huang et al., "GPipe: efficient training of giant neural networks using pipeline
        parallelism", NeurIPS 2019; Rajbhandari et al., "ZeRO: memory optimizations toward
        training trillion parameter models", SC 2020, section 5.1; Narayanan et al.,
        "PipeDream", SOSP 2019, for 1F1B; Huo, Gu and Huang, "Training neural networks
        using features replay", NeurIPS 2018, for `max_staleness`.
    """

    @takes_job_arguments
    def __init__(
        self,
        stages: int | str | Sequence[Sequence[str]] | LayerPlan = "auto",
        microbatches: int = 4,
        schedule: str = "gpipe",
        recompute: bool = False,
        devices: Sequence[str] | None = None,
        *,
        replicas: int = 1,
        max_staleness: int = 0,
        cluster_resolver: Given = None,
        **job: "Unpack[JobArguments]",
    ) -> None:
        self.given_stages = arguments.checked_stages(stages)
        self.microbatches = arguments.checked_microbatches(microbatches)
        self.schedule = arguments.checked_schedule(schedule)
        self.recompute = arguments.checked_recompute(recompute)
        self.max_staleness = arguments.checked_staleness(max_staleness)
        self.replicas = arguments.checked_replicas(replicas, self.max_staleness)
        settings = job_settings(_WHO, job)
        arguments.check_one_place(devices, cluster_resolver)
        self.workers: Any = None
        has_cluster = cluster_resolver or os.environ.get(contract.TF_CONFIG)
        if devices is None and has_cluster:
            self.workers = _StageWorkers(self, cluster_resolver, settings)
            available = self.workers.devices
        else:
            available = devices_here(devices)
        self.replica_devices = arguments.replicas_of(available, self.replicas)
        of_stages = arguments.devices_of(self.given_stages, self.replica_devices)
        self.stage_devices = of_stages
        used = dict.fromkeys(e for devices in of_stages for e in devices)
        super().__init__(PipelineExtended(self, list(used)))
        self.checkpoints = settings.checkpoints
        self.fit_driver = PipelineDriver(self)

    is_chief = True
    """True: the program runs in one process."""

    def barrier(self) -> None:
        """Returns at once: no other process runs the program."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of each stage, that of its first replica."""
        return tuple(each[0] for each in self.stage_devices)

    def stages_of(self, model: keras.Model) -> list[list[str]]:
        """Returns the names of the layers in each stage of a model that is built."""
        return self.fit_driver.pipeline(model).layer_names

    def parts_of(self, model: keras.Model) -> dict[str, list[str]]:
        """Returns the devices of the parts of each layer that is split, by its name."""
        return self.fit_driver.pipeline(model).parts


class _StageWorkers:
    """Connects to the workers, and watches them."""

    def __init__(
        self, strategy: tf.distribute.Strategy, given: Given, settings: JobSettings
    ) -> None:
        check_eager(_WHO)
        config = chief_of(given, _WHO)
        settings.need_all_workers(len(config.cluster.worker))
        MEMBERSHIP.check_none()
        addresses = connect_to_workers(config, settings.startup_timeout, _WHO)
        MEMBERSHIP.joined(strategy)
        self.devices = devices_of_workers([each.device for each in addresses])
        self._watched = WatchedWorkers(addresses, settings.peer_timeout)
        weakref.finalize(strategy, self._watched.stop).atexit = False

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call that needs the workers: if one is lost, it fails or the process exits."""
        with naming_lost_peers(self._watched.lost), self._watched.call():
            yield
