"""`LocalUpdateStrategy`: a model on every worker, and a mix of them now and then."""

from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from tf_config import TFConfig
from tfdist._support.wire_dtype import checked_wire_dtype
from tfdist.cluster import status
from tfdist.cluster.board import Board
from tfdist.cluster.membership import (
    MEMBERSHIP,
    Given,
    JoinsOnce,
    check_eager,
    worker_config_of,
)
from tfdist.cluster.settings import (
    JobArguments,
    job_settings,
    min_workers_of,
    takes_job_arguments,
)
from tfdist.keras.distributed_data import DistributesForFit
from tfdist.local_update import arguments
from tfdist.local_update.compression import NARROW
from tfdist.local_update.driver import LocalUpdateDriver
from tfdist.local_update.join import Joined, addresses, join
from tfdist.local_update.local_peers import LocalPeers
from tfdist.local_update.mix import MixSettings
from tfdist.local_update.mixing import Mean, Mixing

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LocalUpdateStrategy(
    JoinsOnce, DistributesForFit, tf.distribute.OneDeviceStrategy
):
    """Trains a model on every worker, and mixes the models after every H local steps.

    Every worker runs the same script. A Keras 3 model that is built and compiled in
    `scope()` trains with its own `fit`: each worker takes steps on its rows of each batch,
    with an optimizer state of its own. After `local_steps` of them, and at the end of
    `fit`, models are mixed. `batch_size` and the batches of a dataset are the whole
    cluster's. A worker uses its first GPU, or its CPU.

    What is mixed: the trainable weights, and the floating-point ones that training only
    updates, such as the statistics of `BatchNormalization`. The state of the optimizer,
    seeds and integers are each worker's own.

    A worker that is lost leaves, and the others continue. One that does not answer is waited
    for until `peer_timeout` has passed. If its script is started again, it takes part in
    the `fit` that runs from the next mix on, with the model of the others.

    Cost: for `Mean`, 2(n-1)/n times the bytes of the model in and out of each of n workers
    per mix; synchronous training moves as much in every step.

    Args:
        local_steps: After how many steps models are mixed: H. With `Mean()`, SGD and 1,
            this is synchronous training, to rounding.
        mixing: `tfdist.mixing.Mean()`, `tfdist.mixing.Gossip(topology)`, or a policy with
            the same methods.
        outer_optimizer: A Keras optimizer that takes the change since the last mix for a
            gradient (DiLoCo, arXiv 2311.08105). None: the mean is the new model.
        cluster_resolver: The cluster of workers, optionally with a chief, and this
            process's task in it: a `tf.distribute.cluster_resolver.ClusterResolver` or a
            `tf_config.TFConfig`. Read from the environment variable TF_CONFIG by default.
        wire_dtype: "bfloat16" or "int8", in which trainable weights travel: a half or a
            quarter of the bytes, and 0.4% for the scales of int8. What rounding loses is
            added to the next message (error feedback). With `Mean`, the change since the
            last mix travels; with `Gossip`, models do, and their distance stays above what
            rounding loses. None: all their bits.
        overlap: Whether models are mixed while the next H steps run, so that no worker
            waits for the network unless a mix takes longer than they do. The model θ
            becomes mixed + (θ - s), where s is this worker's model when the mix began: H
            steps later than without (CoCoD-SGD, Shen et al., IJCAI 2019). The last mix of
            `fit` is waited for.
        fragments: With `overlap`, in how many parts of about equal size a model is mixed,
            one after the other, H/F steps apart: F. Each part is some whole variables, is
            mixed once per round of H steps, and takes the mix over when the next part's
            begins: H/F steps later, rather than H (Streaming DiLoCo, arXiv 2501.18512).
            Bytes per round are the same; the end of `fit` takes those of one model at most.
            With an outer optimizer, each part has a copy of it, which clips by its own norm.
        **job: The arguments of all strategies: `startup_timeout`, `peer_timeout` and
            `min_workers`. The others continue without a worker that does not answer within
            `peer_timeout`, while there are `min_workers`, 1 by default. One that is slow,
            and answers, is waited for; a message that takes longer counts as no answer.

    Raises:
        tf_config.ClusterError: If there is no valid TF_CONFIG, or this process is neither
            the chief nor a worker of a cluster without ps.
        StartupTimeoutError: If another task does not answer in time.
        TypeError: If an argument has another type.
        ValueError: If `local_steps` is below 1, if `mixing` does not fit the number of
            workers, if `outer_optimizer` does not fit `mixing`, if `wire_dtype` is
            another one, or if `fragments` is not from 1 to `local_steps`, or is above 1
            without `overlap`, if a timeout is not above 0, or if there is a directory
            for checkpoints. By `fit`, if there are more fragments
            than variables, if the outer optimizer cannot be copied, or if the model's own
            keeps a moving average under `Mean`.
        RuntimeError: If this process already has such a strategy, or is in graph mode. By
            `fit`, if it was started again and cannot take part, or the others have given
            it up.
        TooFewWorkersError: By `fit`, if fewer than `min_workers` workers are left.
    """

    @takes_job_arguments
    def __init__(
        self,
        local_steps: int,
        mixing: Mixing | None = None,
        outer_optimizer: keras.optimizers.Optimizer | None = None,
        cluster_resolver: Given = None,
        *,
        wire_dtype: str | None = None,
        overlap: bool = False,
        fragments: int = 1,
        **job: "Unpack[JobArguments]",
    ) -> None:
        # All arguments before the join: an error after it would leave the others waiting.
        name = "LocalUpdateStrategy"
        check_eager(name)
        given = job_settings(name, job)
        arguments.check_no_checkpoints(given.checkpoints)
        local_steps = arguments.checked_local_steps(local_steps)
        wire_dtype = checked_wire_dtype(wire_dtype, NARROW)
        overlap = arguments.checked_overlap(overlap)
        fragments = arguments.checked_fragments(fragments, overlap, local_steps)
        config = worker_config_of(cluster_resolver, name)
        mixing = Mean() if mixing is None else mixing
        workers = len(addresses(config))
        mixing = arguments.checked_mixing(mixing, workers)
        needed = min_workers_of(given.min_workers, workers, default=1)
        settings = MixSettings(
            local_steps=local_steps,
            mixing=mixing,
            outer_optimizer=arguments.checked_outer_optimizer(outer_optimizer, mixing),
            wire_dtype=wire_dtype,
            overlap=overlap,
            fragments=fragments,
        )
        MEMBERSHIP.check_none()
        joined = join(config, given, may_come_back=True)
        joined.exchange.needed = needed
        super().__init__(_device())
        MEMBERSHIP.joined(self)
        self._take_part(config, joined, settings)

    def _take_part(
        self, config: TFConfig, joined: Joined, settings: MixSettings
    ) -> None:
        """Makes this process's part in the exchanges what `fit` trains with."""
        self._exchange = joined.exchange
        self._workers = LocalPeers(self._exchange, joined.names)
        self.fit_driver = LocalUpdateDriver(self, joined, self._workers, settings)
        self.board = Board(addresses(config), config.task)
        status.publish(config, joined.mailboxes.server)

    @property
    def num_workers(self) -> int:
        """The number of workers that take part now."""
        return self._workers.num_workers

    @property
    def num_replicas(self) -> int:
        """The same: each worker has one replica."""
        return self._workers.num_workers

    @property
    def input_contexts(self) -> list[tf.distribute.InputContext]:
        """The input pipeline of this worker, also while others are away."""
        workers = self._workers.num_all
        return [tf.distribute.InputContext(workers, self._workers.members.me, workers)]

    @property
    def is_chief(self) -> bool:
        """True if this process writes files: the first worker that takes part."""
        return self._workers.is_chief

    def barrier(self) -> None:
        """Waits until every worker that takes part has reached this call.

        One that was started again passes it until `fit` has let it in: the others may
        have passed it long ago.
        """
        if not self.fit_driver.is_coming_back:
            self._exchange.barrier(is_quiet=False)

    @property
    def received_bytes(self) -> int:
        """The bytes of models and numbers that this worker has received from others."""
        return self._exchange.received_bytes


def _device() -> str:
    return "/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0"
