"""Endless datasets that the workers read themselves.

The chief reads a finite dataset, so that every example is used exactly once. An endless
dataset has no such count to keep, so its batches need not cross the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.graph.functions import calls_python, shares_a_job
from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.feed.sources import Source, tensors_of

# The graph contains the arrays of `from_tensor_slices`. If they are larger than this,
# the chief reads the dataset and sends batches instead of a copy of all arrays per
# worker.
MAX_GRAPH_BYTES = 64 * 2**20


@dataclass(eq=False)
class WorkerInput(Source):
    """The dataset on every worker: worker i of W takes every W-th batch from the i-th.

    The batches of all workers together are those of the dataset, even if it shuffles
    with a fixed seed. Each worker runs the whole pipeline to produce its share. Batches that
    come from a job of tf.data service by its name are each worker's own already. Where a
    function made a pipeline for each worker, that runs its own, which its replicas share.

    Args:
        graphs: The serialized graph of the dataset, or those of the workers' pipelines: an
            eager tensor. As a constant in the workers' function, it would be folded, and
            the dataset with it.
        element_spec: The element spec of the dataset.
        coordinator: The coordinator of the workers.
        num_workers: The number of workers; with several devices each, of replicas.
        is_shared: Whether the workers share the batches without doing anything for it.
        is_tuned: Whether TensorFlow tunes the pipeline. A worker runs no step while it
            deletes an iterator, which can take as long as the tuner pauses (see
            `tfdist.keras.deletion`). Untuned, `AUTOTUNE` means a fixed number of calls.
    """

    graphs: tf.Tensor
    element_spec: Nest
    coordinator: tf.distribute.coordinator.ClusterCoordinator
    num_workers: int
    is_shared: bool
    is_tuned: bool

    def __post_init__(self) -> None:
        super().__init__(BatchStructure(self.element_spec))
        self._options = tf.data.Options()
        self._options.autotune.enabled = self.is_tuned
        self._iterators: Any = None

    @classmethod
    def of(
        cls,
        dataset: tf.data.Dataset,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        num_workers: int,
    ) -> "WorkerInput | None":
        """Returns the dataset for the workers, or None if the chief must read it.

        The chief must read a dataset that ends, one that calls Python functions of this
        process, and one whose graph is larger than `MAX_GRAPH_BYTES`.
        """
        pipelines = getattr(dataset, "pipelines", (dataset,))
        if any(p.cardinality() != tf.data.INFINITE_CARDINALITY for p in pipelines):
            return None
        # The graphs: a dataset itself belongs to this process.
        graphs = tf.stack([_tf.dataset_graph(each) for each in pipelines])
        parse = tf.compat.v1.GraphDef.FromString
        definitions = [parse(graph) for graph in graphs.numpy()]
        is_large = sum(each.ByteSize() for each in definitions) > MAX_GRAPH_BYTES
        if is_large or any(map(calls_python, definitions)):
            return None
        # Unset means tuned to TensorFlow. Here, the user has to ask for it.
        is_tuned = dataset.options().autotune.enabled is True
        is_shared = any(map(shares_a_job, definitions))
        return cls(
            graphs, dataset.element_spec, coordinator, num_workers, is_shared, is_tuned
        )

    def spec(self, steps: int, tickets: Sequence[tf.TensorSpec] = ()) -> tf.TypeSpec:
        """Returns the spec of one worker's iterator, regardless of the number of steps."""
        return tf.data.IteratorSpec(self.element_spec)

    def part(self, argument: Nest, first: int | tf.Tensor, steps: int) -> Nest:
        """Returns the iterator."""
        return argument

    def tensors(
        self,
        argument: Nest,
        step: int | tf.Tensor,
        tickets: Sequence[tf.TensorSpec] = (),
    ) -> list[tf.Tensor]:
        """Returns the tensors of the next batch."""
        return tensors_of(self.structure, next(argument))

    @property
    def iterators(self) -> Nest:
        """One iterator per worker, as an argument of a scheduled function."""
        if self._iterators is None:
            datasets = self.coordinator.create_per_worker_dataset(self._make)
            self._iterators = iter(datasets)
        return self._iterators

    def _make(self) -> tf.data.Dataset:
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        # Replicas that read one graph. The replicas of a worker are consecutive.
        sharers = self.num_workers // self.graphs.shape[0]
        graph = self.graphs[index // sharers]
        dataset = _tf.dataset_from_graph(graph, self.element_spec)
        if not self.is_shared:
            dataset = dataset.shard(sharers, index % sharers)
        return dataset.prefetch(tf.data.AUTOTUNE).with_options(self._options)
