"""A worker's share of the data of `fit`, also from the middle of it."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.local_update.local_peers import LocalPeers
from tfdist.peers.input import ShardedData


@dataclasses.dataclass(frozen=True)
class DataPlace:
    """The position of a worker in its data.

    Attributes:
        sharers: The workers among which the rows of a batch are divided, by their indices.
        opened: How many times the data was begun in this `fit`: about once per epoch.
        taken: How many batches were taken since then.
    """

    sharers: Sequence[int]
    opened: int
    taken: int


class SharingPeers:
    """The workers as `ShardedData` asks about them.

    The workers in `fixed`, unless it is None, share a batch in place of all that take
    part now.
    """

    def __init__(self, workers: LocalPeers, fixed: Sequence[int] | None = None) -> None:
        self._workers = workers
        self.fixed = fixed
        self.gather_numbers = workers.gather_numbers
        self.distribute_shares = workers.distribute_shares

    @property
    def present(self) -> list[int]:
        """The indices of the workers that share a batch."""
        return self._workers.members.present if self.fixed is None else list(self.fixed)

    @property
    def num_workers(self) -> int:
        """The number of workers that share a batch."""
        return len(self.present)

    num_replicas = num_workers

    @property
    def worker_index(self) -> int:
        """The place of this worker among them; the first one if it has none."""
        present, me = self.present, self._workers.members.me
        return present.index(me) if me in present else 0


class SharedData(ShardedData):
    """The data of one call of `fit` on this worker.

    `place` is where the others are in their data, if they began before this worker.
    """

    def __init__(
        self, adapter: Any, workers: LocalPeers, place: DataPlace | None = None
    ) -> None:
        self._sharers = SharingPeers(workers, place.sharers if place else None)
        self._place = place
        self._me = workers.members.me
        self._shared_among: list[int] = []
        self._taken = 0
        super().__init__(adapter, self._sharers)

    def place(self, uncounted: int) -> DataPlace:
        """Returns where this worker is, or the beginning of data of its own.

        It has not trained on the last `uncounted` batches yet.
        """
        if self.is_own:
            return DataPlace(self._shared_among, 1, 0)
        return DataPlace(self._shared_among, self._epoch, self._taken - uncounted)

    def _share(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        self._shared_among = self._sharers.present
        return super()._share(dataset)

    def _open_values(self) -> Any:
        place, self._place = self._place, None
        if place is None:
            return self._counted(super()._open_values(), 0, has_rows=True)
        if self._draws_again:
            self._epoch = place.opened - 1
        else:
            # A dataset that is shuffled with a seed draws another order each time.
            for _ in range(place.opened - 1):
                super()._open_values()
        values = super()._open_values()
        self._sharers.fixed = None
        # The rows of a worker that was missed when the data was divided are another's.
        has_rows = self._me in place.sharers
        return self._counted(values, place.taken, has_rows)

    def _counted(self, values: Any, skipped: int, has_rows: bool) -> Iterator[Any]:
        """Yields the shares, after those that the others took without this worker."""
        self._taken = skipped
        for _ in range(skipped):
            next(values)
        for count, total, present in values:
            self._taken += 1
            yield (count if has_rows else np.int64(0)), total, present
