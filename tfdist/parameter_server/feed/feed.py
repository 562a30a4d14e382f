"""Feeds the batches of a dataset to the workers."""

import collections
import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.cluster.liveness.step_error import reason, saying
from tfdist.data.record_places import source_error
from tfdist.data.source_files import SourceFiles
from tfdist.keras.batch_structure import BatchStructure, as_element
from tfdist.keras.deletion import delete_in_background
from tfdist.parameter_server.feed.leased_batches import LeasedBatches, LeaseReaders
from tfdist.parameter_server.feed.sources import ChiefBatches
from tfdist.parameter_server.feed.worker_input import WorkerInput

_log = logging.getLogger("tfdist")


@dataclass(eq=False)
class FedBatch:
    """One batch on its way to a worker.

    Attributes:
        row: The batch, serialized by its source.
        feed: The feed that it comes from, which also has the next batches.
        output: The remote value of the result, once requested ahead of time.
    """

    row: tf.Tensor
    feed: "Feed"
    output: Any = field(default=None)


@dataclass(eq=False)
class Feed(Iterator[FedBatch]):
    """Reads a dataset batch by batch; every batch is read exactly once.

    Args:
        rows: The dataset as serialized rows. The chief starts to read it when the first
            batch is requested. Its iterator is made at once, as Keras's is: the next one
            of a dataset that shuffles has another order.
        source: The source that takes batches out of them: the rows may be leases.
        worker_input: The same dataset as the workers read it; None if they cannot.
        otherwise: Returns the rows and the source of the same dataset by leases if these
            are not, or the other way; None if there is only one way.
        leased_files: The files of the leases, as they were when the iteration began.

    Attributes:
        taken: How many batches were taken, including those that `start_at` skipped.
        steps_requested: How many steps to take next; None for `steps_per_execution`.
        is_shown: Whether somebody sees the logs of the steps before the epoch ends.
        is_first: Whether the next steps are the first of an epoch, each of whose logs
            somebody sees.
        is_last: Whether the next steps are the last of the epoch; None if that is not
            known, or nobody sees the logs of each.
    """

    rows: tf.data.Dataset
    source: ChiefBatches
    worker_input: WorkerInput | None = None
    otherwise: Callable[[], tuple[tf.data.Dataset, ChiefBatches]] | None = None
    leased_files: SourceFiles | None = None

    def __post_init__(self) -> None:
        self._ahead: collections.deque[FedBatch] = collections.deque()
        self._executor = _tf.new_executor()
        self._batches: Iterator[Any] | None = None
        self._unread: Iterator[Any] | None = None
        if self.worker_input is None:
            with _tf.executor_scope(self._executor):
                self._unread = iter(self.rows)
        self.taken = 0
        self.steps_requested: int | None = None
        self.is_shown = True
        self.is_first = False
        self.is_last: bool | None = None

    def __del__(self) -> None:
        if self._batches is not None:
            # The deletion may take as long as TensorFlow's tuner pauses, and the epoch
            # is over.
            delete_in_background([self.__dict__.pop("_batches")])

    def start_at(
        self,
        batches: int,
        state: tf.Tensor | None,
        put_back: np.ndarray | None,
        is_by_lease: bool,
    ) -> None:
        """Starts where an earlier feed of this dataset stopped.

        In the way of that feed, until this iteration ends: what it had read ahead, and what
        its shuffle buffers hold, are batches or leases.

        Args:
            batches: How many batches the earlier feed had read.
            state: Its `state()`. Without it, the batches are read and discarded.
            put_back: The batches to yield again first, as rows of `bytes`.
            is_by_lease: Whether its rows were leases.
        """
        if is_by_lease != self.is_by_lease:
            if self.otherwise is not None:
                self.rows, self.source = self.otherwise()
            else:
                _log.warning(
                    "the dataset differs from that of the checkpoint, whose workers %s; "
                    "reading it from its start up to the checkpoint",
                    "read by leases" if is_by_lease else "were sent their batches",
                )
                state = put_back = None
        self._batches = self._resumed(state) or iter(self.rows.skip(batches))
        rows = [] if put_back is None else list(put_back)
        self._ahead.extend(FedBatch(tf.constant([list(row)]), self) for row in rows)
        self.taken = batches - len(rows)

    @property
    def is_by_lease(self) -> bool:
        """True if the rows are leases."""
        return isinstance(self.source, LeasedBatches)

    @property
    def size(self) -> int:
        """The number of batches of the dataset; negative if not known."""
        return int(self.rows.cardinality())

    @property
    def is_at_end(self) -> bool:
        """True if no batch is left. It may have to read one to know."""
        return not self.peek(1)

    @property
    def files(self) -> str:
        """A digest that changes with the files of the leases; "" without any."""
        return self.leased_files.digest if self.leased_files else ""

    @property
    def ahead(self) -> list[tf.Tensor]:
        """The rows of the batches that were read but not taken yet."""
        return [batch.row for batch in self._ahead]

    @property
    def read(self) -> int:
        """The number of batches read, including those that `start_at` skipped."""
        return self.taken + len(self._ahead)

    def _resumed(self, state: tf.Tensor | None) -> Iterator[Any] | None:
        if state is None:
            return None
        iterator = iter(self.rows)
        try:
            _tf.restore_iterator(iterator, state)
        except tf.errors.OpError as error:
            _log.warning(
                "the dataset differs from that of the checkpoint, so its state cannot "
                "be restored; reading it from its start up to the checkpoint: %s",
                error,
            )
            return None
        return iterator

    def state(self) -> tf.Tensor | None:
        """Returns the state of the dataset's iterator, or None if it has none to save.

        The iterator has already passed the batches in `ahead`.
        """
        if self.worker_input is not None:
            return None
        try:
            return _tf.iterator_state(self._begin())
        except tf.errors.OpError:
            return None

    def __next__(self) -> FedBatch:
        (batch,) = self.take(1)
        return batch

    def _begin(self) -> Iterator[Any]:
        if self._batches is None:
            # One that was never read has no tuner, and is deleted at once.
            self._batches, self._unread = self._unread or iter(self.rows), None
        return self._batches

    def peek(self, count: int) -> list[FedBatch]:
        """Returns the next batches, at most `count`, without taking them."""
        if len(self._ahead) < count:
            self._read(count - len(self._ahead))
        return list(itertools.islice(self._ahead, count))

    def _read(self, count: int) -> None:
        """Reads the next `count` batches, or as many as are left."""
        # TensorFlow's iterator waits for everything on its thread's executor. All
        # threads share one by default, so a read would wait for the slowest worker's
        # step.
        with _tf.executor_scope(self._executor):
            try:
                for row in itertools.islice(self._begin(), count):
                    self._ahead.append(FedBatch(row, self))
            except tf.errors.OpError as error:
                message = str(error.message)
                short = saying(error, reason(message))
                raise (source_error(message) or short) from None

    def take(self, count: int) -> list[FedBatch]:
        """Takes the next `count` batches, or as many as are left.

        Raises:
            StopIteration: If no batch is left.
            SourceError: If none is, and a file has changed since the first one.
        """
        batches = self.peek(count)
        if not batches:
            # A shuffle may have had all leases long before the workers read by them.
            if self.leased_files is not None:
                self.leased_files.check()
            raise StopIteration
        for _ in batches:
            self._ahead.popleft()
        self.taken += len(batches)
        return batches


@dataclass(eq=False)
class FedDataset:
    """A dataset for the steps of a cluster. Each iteration starts from its beginning."""

    dataset: tf.data.Dataset
    coordinator: tf.distribute.coordinator.ClusterCoordinator
    num_workers: int
    readers: LeaseReaders

    def __post_init__(self) -> None:
        self._leased = self.readers.of(self.dataset)
        self._sent = ChiefBatches(BatchStructure(self.dataset.element_spec))
        # Traced once here, not in every iteration: TensorFlow registers a traced
        # function with every task and waits, holding the GIL, even for one that does
        # not respond.
        self._rows: dict[ChiefBatches, tf.data.Dataset] = {}
        self._rows_of(self._source())

    @property
    def element_spec(self) -> Nest:
        """The structure of type specs of a batch."""
        return self._sent.structure.specs

    def __iter__(self) -> Feed:
        source = self._source()
        rows = self._rows_of(source)
        worker_input = otherwise = files = None
        if self._leased is None:
            worker_input = WorkerInput.of(
                self.dataset, self.coordinator, self.num_workers
            )
        elif self._leased.auto_leased is not None:
            other = self._sent if source is self._leased else self._leased
            otherwise = functools.partial(self._rows_and_source, other)
        # The files are noted when the iteration begins: a checkpoint compares them.
        if isinstance(source, LeasedBatches):
            files = source.files_now()
        return Feed(rows, source, worker_input, otherwise, files)

    def _source(self) -> ChiefBatches:
        """Returns the next iteration's source: files may come and go between them."""
        if self._leased is not None and self.readers.can_read(self._leased):
            return self._leased
        return self._sent

    def _rows_and_source(
        self, source: ChiefBatches
    ) -> tuple[tf.data.Dataset, ChiefBatches]:
        return self._rows_of(source), source

    def _rows_of(self, source: ChiefBatches) -> tf.data.Dataset:
        if source not in self._rows:
            if isinstance(source, LeasedBatches):
                dataset = _tf.of_this_cluster(source.leases)
            else:
                dataset = self.dataset = _tf.of_this_cluster(self.dataset)

            def row(*batch: Any) -> tf.Tensor:
                return source.row(as_element(batch))

            self._rows[source] = dataset.map(row)
        return self._rows[source]
