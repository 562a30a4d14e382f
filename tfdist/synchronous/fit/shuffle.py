"""One order of the data on all workers, where they would shuffle each their own way.

Every worker keeps its own rows of each batch. Were the batches not the same on all,
some examples would be seen twice in an epoch, and others not at all.
"""

import random
import zlib
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf


class ReorderedPyDataset(keras.utils.PyDataset):
    """A `PyDataset` whose batches come in an order that follows from a seed.

    Args:
        source: The dataset, of a known number of batches.
        seed: The same on all workers.
    """

    def __init__(self, source: keras.utils.PyDataset, seed: int) -> None:
        super().__init__(
            source.workers, source.use_multiprocessing, source.max_queue_size
        )
        self._source = source
        self._random = random.Random(seed)
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
        """Tells the source."""
        self._source.on_epoch_begin()

    # Its threads or processes are started before an epoch begins, with the order as it
    # is then.
    def on_epoch_end(self) -> None:
        """Tells the source, and draws the order of the next epoch."""
        self._source.on_epoch_end()
        self._order = self._draw()


def shuffles_arrays(adapter: Any) -> bool:
    """Whether a Keras data adapter draws an order of arrays for each epoch."""
    return bool(getattr(adapter, "_shuffle", False))


def reorder_py_dataset(adapter: Any, seed: int) -> None:
    """Has a Keras data adapter shuffle a `PyDataset` by a seed, if it shuffles one."""
    source = getattr(adapter, "py_dataset", None)
    if source is None or not adapter.shuffle or source.num_batches is None:
        return
    adapter.shuffle = False
    adapter.py_dataset = ReorderedPyDataset(source, seed)
    if adapter.enqueuer is not None:
        adapter.enqueuer.shuffle = False
        adapter.enqueuer.py_dataset = adapter.py_dataset


def seeds_of(source: Any) -> tuple[int, bool]:
    """Returns a checksum of the seeds of a dataset's shuffles, and if one has none."""
    seeds = _tf.shuffle_seeds(source) if isinstance(source, tf.data.Dataset) else []
    pairs = zip(seeds[::2], seeds[1::2], strict=True)
    checksum = zlib.crc32(",".join(map(str, seeds)).encode())
    return checksum, any(pair == (0, 0) for pair in pairs)


def with_agreed_shuffles(dataset: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """Gives each `shuffle` of a dataset a seed that follows from `seed`.

    Cost: the dataset's graph is serialized, with the arrays in it.
    """
    graph = tf.compat.v1.GraphDef.FromString(_tf.dataset_graph(dataset).numpy())
    bodies = [(graph.node, "")]
    bodies += [(each.node_def, ":output:0") for each in graph.library.function]
    for nodes, suffix in bodies:
        for node in [each for each in nodes if each.op.startswith("Shuffle")]:
            seed += 1
            constant = nodes.add(name=f"{node.name}_agreed_seed", op="Const")
            constant.attr["dtype"].type = tf.int64.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(seed, tf.int64))
            # The newer versions of the operation take the generator of this process,
            # and this one makes its own from the seeds.
            node.op = "ShuffleDataset"
            seeds = [constant.name + suffix] * 2
            node.input[2:] = seeds
    serialized = tf.constant(graph.SerializeToString())
    seeded = _tf.dataset_from_graph(serialized, dataset.element_spec)
    return seeded.with_options(dataset.options())
