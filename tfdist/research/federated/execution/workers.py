"""The workers of a cluster that simulate clients, each its share."""

from collections.abc import Sequence

from tfdist.cluster import status
from tfdist.cluster.membership import (
    MEMBERSHIP,
    Given,
    JoinsOnce,
    check_eager,
    worker_config_of,
)
from tfdist.cluster.settings import JobArguments, job_settings
from tfdist.local_update.join import join
from tfdist.research.federated.execution.parcel import Parcel


class OneWorker:
    """This process alone: the server, and all clients."""

    is_server = True
    num_workers = 1
    received_bytes = 0

    def share(self, clients: Sequence[int]) -> list[int]:
        """Returns all clients."""
        return list(clients)

    def to_server(self, parcel: Parcel) -> list[Parcel]:
        """Returns the parcel."""
        return [parcel]

    def from_server(self, parcel: Parcel) -> Parcel:
        """Returns the parcel."""
        return parcel


class Workers(JoinsOnce):
    """The workers of a cluster without ps, for `Simulation(workers=)`.

    Every worker runs the same program. The first one is the server.

    Args:
        cluster_resolver: The cluster of workers, and this process's task in it: a
            `tf.distribute.cluster_resolver.ClusterResolver` or a `tf_config.TFConfig`.
            Read from the environment variable TF_CONFIG by default.
        startup_timeout: How long to wait for the other workers, in seconds.
        peer_timeout: How long another worker may fail to answer before the others continue
            without it, in seconds. One that is slow, and answers, is waited for.

    Raises:
        tf_config.ClusterError: If there is no valid TF_CONFIG, or this process is no worker
            of a cluster without ps.
        StartupTimeoutError: If another worker does not answer in time.
        RuntimeError: If this process already belongs to a cluster, or was started again
            while the others continue without it.
        ValueError: If a timeout is not above 0.
    """

    def __init__(
        self,
        cluster_resolver: Given = None,
        *,
        startup_timeout: float = 60.0,
        peer_timeout: float = 30.0,
    ) -> None:
        check_eager("federated.Workers")
        config = worker_config_of(cluster_resolver, "federated.Workers")
        MEMBERSHIP.check_none()
        given: JobArguments = {
            "startup_timeout": startup_timeout,
            "peer_timeout": peer_timeout,
        }
        joined = join(config, job_settings("federated.Workers", given))
        MEMBERSHIP.joined(self)
        self._exchange, self._names = joined.exchange, joined.names
        # A worker that only sends never waits for the server. Its next messages would
        # tell a server that joins just then that it was restarted (`is_expected`).
        self._exchange.barrier()
        self._server = self._exchange.members.lead
        status.publish(config, joined.mailboxes.server)

    @property
    def is_server(self) -> bool:
        """True if this process is the server, which evaluates and writes files."""
        return self._exchange.members.me == self._server

    @property
    def num_workers(self) -> int:
        """The number of workers that take part."""
        return len(self._exchange.members.present)

    @property
    def received_bytes(self) -> int:
        """The number of bytes that this worker has received from others."""
        return self._exchange.received_bytes

    def share(self, clients: Sequence[int]) -> list[int]:
        """Returns the clients that this worker simulates: every n-th."""
        present = self._exchange.members.present
        return list(clients)[present.index(self._exchange.members.me) :: len(present)]

    def to_server(self, parcel: Parcel) -> list[Parcel]:
        """Returns, to the server, the parcels of all workers; to others, their own."""
        found = self._exchange.to_lead(parcel.pack())
        return [Parcel.unpack(each) for each in found.values()]

    def from_server(self, parcel: Parcel) -> Parcel:
        """Returns the server's parcel.

        Raises:
            RuntimeError: If the server is lost.
        """
        found = self._exchange.from_lead(parcel.pack(), self._server)
        if found is None:
            raise RuntimeError(
                f"the server of the federation, {self._names[self._server]}, is lost. Start "
                "the cluster again: with checkpoint_dir, it goes on after the last round"
            )
        return Parcel.unpack(found)
