"""An endless dataset that the workers read themselves.

A finite dataset is read by the chief, so that every example is seen exactly once. An
endless one has no such count to keep, and then its batches need not cross the network.
"""

from typing import Any

import tensorflow as tf

from tfdist import _tf

# The arrays of `from_tensor_slices` are part of the graph. Larger ones stay with the
# chief, which sends batches in place of a copy of them all to each worker.
MAX_GRAPH_BYTES = 64 * 2**20

_PYTHON_OPS = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})


class WorkerInput:
    """The dataset, on every worker: worker i of W takes every W-th batch, from the i-th.

    So the batches of all workers together are those of the dataset, also where its
    shuffling has a fixed seed. Each worker runs the whole pipeline for its share.

    Args:
        graph: Of the dataset, serialized, an eager tensor. As a constant of the
            workers' function it would be folded, and with it the dataset.
        element_spec: Of its batches.
        coordinator: Of the workers.
        num_workers: Their number.
        is_tuned: Whether TensorFlow is to tune the pipeline. A worker runs no step while
            it deletes an iterator, and that may take as long as a pause of the tuner
            (`deletion`). Without, `AUTOTUNE` stands for a fixed number of calls.
    """

    def __init__(
        self,
        graph: tf.Tensor,
        element_spec: Any,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        num_workers: int,
        is_tuned: bool,
    ) -> None:
        self._graph = graph
        self._element_spec = element_spec
        self._coordinator = coordinator
        self._num_workers = num_workers
        self._options = tf.data.Options()
        self._options.autotune.enabled = is_tuned
        self._iterators: Any = None

    @classmethod
    def of(
        cls,
        dataset: tf.data.Dataset,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        num_workers: int,
    ) -> "WorkerInput | None":
        """The dataset for the workers, or None if the chief has to read it.

        It has to for a dataset that ends, one that calls Python functions of this
        process, and one whose graph is larger than `MAX_GRAPH_BYTES`.
        """
        if dataset.cardinality() != tf.data.INFINITE_CARDINALITY:
            return None
        graph = _tf.dataset_graph(dataset)
        definition = graph.numpy()
        if len(definition) > MAX_GRAPH_BYTES or _calls_python(definition):
            return None
        is_tuned = dataset.options().autotune.enabled is True
        return cls(graph, dataset.element_spec, coordinator, num_workers, is_tuned)

    @property
    def iterator_spec(self) -> tf.TypeSpec:
        """The type spec of one worker's iterator."""
        return tf.data.IteratorSpec(self._element_spec)

    @property
    def iterators(self) -> Any:
        """One iterator a worker, as an argument of a scheduled function."""
        if self._iterators is None:
            datasets = self._coordinator.create_per_worker_dataset(self._make)
            self._iterators = iter(datasets)
        return self._iterators

    def _make(self) -> tf.data.Dataset:
        dataset = _tf.dataset_from_graph(self._graph, self._element_spec)
        shard = dataset.shard(
            self._num_workers,
            tf.distribute.coordinator.experimental_get_current_worker_index(),
        )
        return shard.prefetch(tf.data.AUTOTUNE).with_options(self._options)


def _calls_python(graph: bytes) -> bool:
    definition = tf.compat.v1.GraphDef.FromString(graph)
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes.extend(function.node_def)
    return any(node.op in _PYTHON_OPS for node in nodes)
