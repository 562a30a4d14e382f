"""The workers of a cluster whose devices have the stages, and their health."""

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Any

from tf_config import contract
from tfdist.cluster.membership import MEMBERSHIP, check_eager
from tfdist.cluster.one_script import chief_of, connect_to_workers
from tfdist.liveness.peers import naming_lost_peers
from tfdist.liveness.watched_workers import WatchedWorkers
from tfdist.pipeline.devices import devices_of_workers

_WHO = "PipelineStrategy"


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
        check_eager(_WHO)
        config = chief_of(None, _WHO)
        MEMBERSHIP.check_none()
        addresses = connect_to_workers(config, startup_timeout, _WHO)
        MEMBERSHIP.joined(strategy)
        self.devices = devices_of_workers([each.device for each in addresses])
        self._watched = WatchedWorkers(addresses, peer_timeout)
        weakref.finalize(strategy, self._watched.stop).atexit = False

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call that needs the workers: if one is lost, it fails or the process exits."""
        with naming_lost_peers(self._watched.lost), self._watched.call():
            yield
