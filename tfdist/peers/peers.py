"""The workers that run one script, as each of them sees the others."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class Sharers(Protocol):
    """This worker among those that share the data.

    All of them call the methods at the same time, in the same order.
    """

    @property
    def num_workers(self) -> int:
        """The number of workers that take part."""

    @property
    def num_replicas(self) -> int:
        """The number of devices that train, of all workers together."""

    @property
    def worker_index(self) -> int:
        """The place of this worker among them."""

    def gather_numbers(self, numbers: Sequence[int]) -> np.ndarray:
        """Returns the numbers of each worker: int64, a row per worker."""

    def distribute_shares(
        self, shares: tf.data.Dataset
    ) -> tf.distribute.DistributedDataset:
        """Distributes the elements of an endless dataset to local devices in turn."""


class Peers(Sharers, Protocol):
    """This worker among all that train together."""

    @property
    def is_chief(self) -> bool:
        """True if this worker writes files."""

    def gather_texts(self, text: str) -> dict[str, str]:
        """Returns the text of each worker by its name."""

    def copy_from_chief(self, variables: Sequence[Any]) -> None:
        """Sets Keras variables on every worker to the chief's values."""
