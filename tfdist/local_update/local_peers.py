"""The workers of local updates, as `tfdist.peers` asks about them."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.local_update.exchange import Exchange
from tfdist.local_update.message import bytes_of
from tfdist.local_update.rejoin import RejoinError

_DIFFERS = (
    "this worker was started again, and calls fit in another way than the others did: with "
    "other data, other arguments or another model. Run the same script, with the same "
    "seeds, on all workers"
)


@dataclasses.dataclass
class StartRecord:
    """Values that workers told each other as `fit` started, in order.

    Attributes:
        numbers: For each time, the numbers of each worker.
        texts: For each time, the text of each worker by its name.
    """

    numbers: list[list[list[int]]] = dataclasses.field(default_factory=list)
    texts: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def next_numbers(self, columns: int) -> np.ndarray:
        """Removes and returns the first numbers: int64, a row per worker.

        Raises:
            RejoinError: If they told none any more, or more or fewer.
        """
        table = np.array(self.numbers.pop(0) if self.numbers else [], np.int64)
        if table.ndim != 2 or table.shape[1] != columns:
            raise RejoinError(_DIFFERS)
        return table

    def next_texts(self) -> dict[str, str]:
        """Removes and returns the first texts.

        Raises:
            RejoinError: If they told none any more.
        """
        if not self.texts:
            raise RejoinError(_DIFFERS)
        return self.texts.pop(0)


class LocalPeers:
    """The workers that take part, with what checks, shards and copies need."""

    def __init__(self, exchange: Exchange, names: Sequence[str]) -> None:
        self._exchange = exchange
        self.members = exchange.members
        self._names = names
        self._record: StartRecord | None = None
        self._replayed: StartRecord | None = None

    @contextlib.contextmanager
    def starting(self, record: StartRecord, replays: bool) -> Iterator[None]:
        """Notes what workers tell each other as `fit` starts, or goes by what they told.

        A worker that comes back while `fit` runs is told what the others told each
        other then, and what it would have said itself is compared with it. `record` is
        an empty one to fill, or another worker's, which this one `replays`.
        """
        self._record, self._replayed = (
            record,
            copy.deepcopy(record) if replays else None,
        )
        try:
            yield
        finally:
            self.started()

    def started(self) -> None:
        """Ends what `starting` began."""
        self._record = self._replayed = None

    @property
    def num_workers(self) -> int:
        """The number of workers that take part."""
        return len(self.members.present)

    num_replicas = num_workers

    @property
    def num_all(self) -> int:
        """The number of all workers, including those that do not take part."""
        return len(self._names)

    @property
    def worker_index(self) -> int:
        """The place of this worker among them."""
        return self.members.present.index(self.members.me)

    @property
    def worker_names(self) -> list[str]:
        """Their names, in the order of their places."""
        return [self._names[each] for each in self.members.present]

    @property
    def is_chief(self) -> bool:
        """True if this worker writes files: the first of those that take part."""
        return self.members.lead == self.members.me

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns the numbers of each worker: int64, a row per worker."""
        own = np.array(numbers, np.int64)
        if self._replayed is not None:
            return np.stack([*self._replayed.next_numbers(len(own)), own])
        table = np.stack(list(self._exchange.gather(own).values()))
        if self._record is not None:
            self._record.numbers.append(table.tolist())
        return table

    def gather_texts(self, text: str) -> dict[str, str]:
        """Returns the text of each worker by its name."""
        if self._replayed is not None:
            again = f"{self._names[self.members.me]}, started again"
            return {**self._replayed.next_texts(), again: text}
        found = self._exchange.gather(np.frombuffer(text.encode(), np.uint8))
        # A worker that a text ends must not end before the others have read its own.
        self._exchange.gather(_NONE)
        texts = {self._names[i]: bytes(each).decode() for i, each in found.items()}
        if self._record is not None:
            self._record.texts.append(texts)
        return texts

    def distribute_shares(self, shares: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the dataset: this process has one device."""
        return shares

    def copy_from_chief(self, variables: Sequence[Any]) -> None:
        """Sets Keras variables on every worker to the chief's values.

        Cost: one message of all of them to each other worker.
        """
        if self._replayed is not None:
            return  # It takes them over as they are now.
        lead = self.members.lead
        arrays = [np.asarray(each.numpy()) for each in variables]
        flat = np.concatenate([bytes_of(each) for each in arrays] or [_NONE])
        found = self._exchange.gather(flat if self.is_chief else _NONE)
        if lead not in found:
            return  # It was lost, and everybody keeps its own.
        ends = np.cumsum([each.nbytes for each in arrays]).tolist()
        for variable, old, end in zip(variables, arrays, ends, strict=True):
            value = found[lead][end - old.nbytes : end].view(old.dtype)
            variable.assign(value.reshape(old.shape))


_NONE = np.zeros(0, np.uint8)
