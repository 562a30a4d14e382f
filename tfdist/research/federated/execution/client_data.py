"""Examples of each client, from one set of arrays that is split or from a function."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.research.federated.execution import checks


class RoundData(NamedTuple):
    """The examples of some clients in shared arrays, and the rows of each client."""

    examples: Nest
    rows: dict[int, np.ndarray]


class SplitData:
    """Arrays of all examples, and the rows that each client has."""

    def __init__(self, examples: Nest, split: Sequence[np.ndarray]) -> None:
        arrays = checks.arrays_of(examples, 0)
        rows = checks.count(arrays, 0)
        self._split = [np.asarray(each, np.int64) for each in split]
        for client, mine in enumerate(self._split):
            if mine.size and not (mine.min() >= 0 and mine.max() < rows):
                raise ValueError(
                    f"there are examples 0 to {rows - 1}; the split gives client {client} "
                    f"{mine.min()} to {mine.max()}"
                )
        self._examples = tf.nest.map_structure(tf.constant, arrays)
        self.num_clients = len(self._split)
        self.with_data = [
            client for client, mine in enumerate(self._split) if len(mine)
        ]

    def of(self, clients: Collection[int]) -> RoundData:
        """Returns the examples of some clients."""
        return RoundData(self._examples, {each: self._split[each] for each in clients})


class FunctionData:
    """Examples that a function returns from a client's number, when it needs them."""

    def __init__(self, examples_of: Callable[[int], Nest], num_clients: int) -> None:
        self._examples_of = examples_of
        self.num_clients = num_clients
        self.with_data = list(range(num_clients))

    def of(self, clients: Collection[int]) -> RoundData:
        """Returns the examples of some clients, one after the other in the same arrays."""
        parts = [checks.arrays_of(self._examples_of(each), each) for each in clients]
        kind = checks.kind_of(parts[0])
        for part in parts:
            checks.check_kind(checks.kind_of(part), kind)
        sizes = [
            checks.count(part, each) for part, each in zip(parts, clients, strict=True)
        ]
        ends = np.cumsum(sizes)
        rows = {
            each: np.arange(end - size, end)
            for each, size, end in zip(clients, sizes, ends, strict=True)
        }
        examples = tf.nest.map_structure(lambda *each: np.concatenate(each), *parts)
        return RoundData(examples, rows)


def client_data(examples: Nest, split: Any) -> SplitData | FunctionData:
    """Returns the data that the arguments of `Simulation` describe."""
    is_number = isinstance(split, int | np.integer) and not isinstance(split, bool)
    if callable(examples) and is_number and split > 0:
        return FunctionData(examples, int(split))
    if isinstance(examples, tuple | list) and not is_number and len(split):
        return SplitData(examples, split)
    raise TypeError(
        "a simulation takes arrays (x, y) and their split, row numbers for each client; or "
        "a function from a client's number to its examples, and the number of clients. "
        f"Received {type(examples).__name__} and {type(split).__name__}"
    )
