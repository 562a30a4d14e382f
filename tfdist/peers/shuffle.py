"""One shuffle order, and the same draws, of the data on all workers.

Every worker keeps its own rows of each batch. If batches differed between workers, an
epoch would contain some examples twice and others not at all.
"""

import random
import zlib
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf

_WITH_SEEDS = ("Shuffle", "RandomDataset")


class Draws:
    """Random numbers that start again when a program sets its seed again."""

    def __init__(self) -> None:
        self._mark: Any = None
        self._count = 0

    def draw(self, seed: Any, mark: Any) -> int:
        """Returns 30 bits that depend on the seed, and on how many it gave before.

        Args:
            seed: Anything with a `repr` of its own.
            mark: Equal to the last call's until the program sets its seed again.
        """
        self._count = self._count + 1 if mark == self._mark else 0
        self._mark = mark
        return random.Random(f"{seed} {self._count}").getrandbits(30)


class ReorderedPyDataset(keras.utils.PyDataset):
    """A `PyDataset` whose batches are shuffled with a seed.

    The source has a known number of batches. The seed is equal on all workers; `epochs`
    came before.
    """

    def __init__(
        self, source: keras.utils.PyDataset, seed: int, epochs: int = 0
    ) -> None:
        super().__init__(
            source.workers, source.use_multiprocessing, source.max_queue_size
        )
        self._source = source
        self._random = random.Random(seed)
        for _ in range(epochs + 1):
            self._order = self._draw()

    def _draw(self) -> list[int]:
        order = list(range(len(self._source)))
        self._random.shuffle(order)
        return order

    def __len__(self) -> int:
        return len(self._source)

    @property
    def num_batches(self) -> int | None:
        """The number of batches of the source."""
        return self._source.num_batches

    def __getitem__(self, index: int) -> Any:
        return self._source[self._order[index]]

    def on_epoch_begin(self) -> None:
        """Forwards the call to the source."""
        self._source.on_epoch_begin()

    # Not in `on_epoch_begin`: Keras starts the reading threads or processes before it calls
    # that, and they copy the order.
    def on_epoch_end(self) -> None:
        """Forwards the call to the source, and draws the order of the next epoch."""
        self._source.on_epoch_end()
        self._order = self._draw()


def shuffles_arrays(adapter: Any) -> bool:
    """Returns True if a Keras data adapter shuffles arrays in each epoch."""
    return bool(getattr(adapter, "_shuffle", False))


def reorder_py_dataset(adapter: Any, seed: int, epochs: int) -> None:
    """Makes a Keras data adapter that shuffles a `PyDataset` use a seed."""
    source = getattr(adapter, "py_dataset", None)
    if source is None or not adapter.shuffle or source.num_batches is None:
        return
    # Keras would shuffle the reordered batches again, with each process's own generator.
    adapter.shuffle = False
    adapter.py_dataset = ReorderedPyDataset(source, seed, epochs)
    # Keras would advance Python's generator too, so that a seed set again is a change.
    random.random()
    if adapter.enqueuer is not None:
        adapter.enqueuer.shuffle = False
        adapter.enqueuer.py_dataset = adapter.py_dataset


def seeds_of(source: Any) -> tuple[int, bool]:
    """Returns a checksum of a dataset's seeds, and whether something has no seed."""
    seeds = _tf.random_seeds(source) if isinstance(source, tf.data.Dataset) else []
    pairs = zip(seeds[::2], seeds[1::2], strict=True)
    checksum = zlib.crc32(",".join(map(str, seeds)).encode())
    return checksum, any(pair == (0, 0) for pair in pairs)


def with_agreed_seeds(dataset: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """Returns a dataset whose random parts have a seed derived from `seed`.

    That is each `shuffle` and `random`, and each operation of `tf.random` that keeps a state.

    The dataset is the user's, and already built: only its graph can still be changed.

    Cost: serializes the dataset's graph, including the arrays in it.
    """
    graph = tf.compat.v1.GraphDef.FromString(_tf.dataset_graph(dataset).numpy())
    bodies = [(graph.node, "")]
    # In a function, an input names an output of a node, and not the node alone.
    bodies += [(each.node_def, ":output:0") for each in graph.library.function]
    for nodes, suffix in bodies:
        for node in [each for each in nodes if {"seed", "seed2"} <= set(each.attr)]:
            seed += 1
            node.attr["seed"].i = node.attr["seed2"].i = seed
        for node in [each for each in nodes if each.op.startswith(_WITH_SEEDS)]:
            seed += 1
            constant = nodes.add(name=f"{node.name}_agreed_seed", op="Const")
            constant.attr["dtype"].type = tf.int64.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(seed, tf.int64))
            seeds = [constant.name + suffix] * 2
            if node.op.startswith("Random"):
                node.input[:2] = seeds
                continue
            # The newer versions of the operation use a generator resource of the process
            # that built the dataset. The first version makes its own from the seeds.
            node.op = "ShuffleDataset"
            node.input[2:] = seeds
    serialized = tf.constant(graph.SerializeToString())
    seeded = _tf.dataset_from_graph(serialized, dataset.element_spec)
    return seeded.with_options(dataset.options())
