"""Datasets of `tf.data`: their graphs, files, seeds, and where an iterator is."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist._support.types import GraphDef, Nest


def dataset_graph(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns the graph of a dataset, a serialized `GraphDef`."""
    return tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=0,  # warn, and carry on
        # Or else the graph would name devices of the process that made it.
        strip_device_assignment=True,
    )


def dataset_from_graph(graph: tf.Tensor, element_spec: Any) -> tf.data.Dataset:
    """Returns the dataset of a graph, on the device that runs this."""
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return tf.data.experimental.from_variant(variant, element_spec)


def of_this_cluster(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset, or a copy if it was made before this process joined its cluster.

    Connecting to a cluster renames the local devices. A dataset made before that is
    bound to the old name and cannot be iterated; a copy from its graph can.
    """
    here = tf.DeviceSpec.from_string(tf.identity(0).device)
    variant = tf.data.experimental.to_variant(dataset)
    if tf.DeviceSpec.from_string(variant.device).job == here.job:
        return dataset
    return dataset_from_graph(dataset_graph(dataset), dataset.element_spec)


def captured_by(dataset: tf.data.Dataset) -> Iterator[tf.Tensor]:
    """Yields the captures of functions of a dataset, and of those that it reads."""
    for function in dataset._functions():
        yield from function.function.captured_inputs
    for each in dataset._inputs():
        yield from captured_by(each)


def iterator_state(iterator: tf.data.Iterator) -> tf.Tensor:
    """Returns the position of an iterator of a dataset, with its buffers: a variant.

    Raises:
        tf.errors.OpError: If a dataset of its pipeline cannot tell.
    """
    return tf.raw_ops.SerializeIterator(
        resource_handle=_resource_of(iterator),
        external_state_policy=1,  # leave the state of random operations out
    )


def restore_iterator(iterator: tf.data.Iterator, state: tf.Tensor) -> None:
    """Brings an iterator of the same dataset to where another was.

    Raises:
        tf.errors.OpError: If it is not the same.
    """
    tf.raw_ops.DeserializeIterator(
        resource_handle=_resource_of(iterator), serialized=state
    )


def _resource_of(iterator: tf.data.Iterator) -> tf.Tensor:
    (resource,) = tf.nest.flatten(iterator, expand_composites=True)
    return resource


def shard_files(dataset: tf.data.Dataset, shards: int, index: int) -> tf.data.Dataset:
    """Returns the part of a dataset that reads every `shards`-th file."""
    specs = [
        # A dataset passes ragged and sparse tensors on as variants.
        spec if isinstance(spec, tf.TensorSpec) else tf.TensorSpec(None, tf.variant)
        for spec in tf.nest.flatten(dataset.element_spec)
    ]
    policy = dataset.options().experimental_distribute.auto_shard_policy
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=shards,
        index=index,
        auto_shard_policy=policy.value,
        num_replicas=shards,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    sharded = tf.data.experimental.from_variant(variant, dataset.element_spec)
    return sharded.with_options(dataset.options())


def batch_size_of(dataset: tf.data.Dataset) -> int | None:
    """Returns the number of examples in a batch of a dataset, or None."""
    shapes = [
        getattr(spec, "shape", tf.TensorShape(None))
        for spec in tf.nest.flatten(dataset.element_spec)
    ]
    sizes = {shape[0] if shape.rank else None for shape in shapes}
    if None not in sizes:
        return sizes.pop() if len(sizes) == 1 else None
    variant = tf.data.experimental.to_variant(dataset)
    size = int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
    return None if size < 0 else size


def draws_at_random(dataset: tf.data.Dataset) -> bool:
    """Returns True if two readings of a dataset may give different elements."""
    if dataset.options().deterministic is False:
        return True
    if _has_function_of(dataset, "Random") or _has_function_of(dataset, "PyFunc"):
        return True
    return any(draws_at_random(each) for each in dataset._inputs())


def parts_before_draws(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the inputs of a dataset that it draws from, and that do not draw.

    There are none if Python makes elements of one, or datasets are elements of one.
    """
    if not draws_at_random(dataset):
        specs = tf.nest.flatten(dataset.element_spec)
        holds_datasets = any(isinstance(each, tf.data.DatasetSpec) for each in specs)
        return [] if holds_datasets else [dataset]
    if _has_function_of(dataset, "PyFunc"):
        return []
    parts = [parts_before_draws(each) for each in dataset._inputs()]
    return [part for each in parts for part in each] if all(parts) else []


def _has_function_of(dataset: tf.data.Dataset, kind: str) -> bool:
    return any(
        kind in op.type
        for function in dataset._functions()
        for op in function.function.graph.get_operations()
    )


def random_seeds(dataset: tf.data.Dataset) -> list[int]:
    """Returns the two seeds of each `shuffle` and `random`, and of operations that draw.

    Both are 0 if it has none. Seeds of datasets that its functions make are among them,
    but no draws of a function that uses a variable or a table: its graph cannot be changed.
    """
    seeds = []
    # By their names, since the classes are private; other datasets have seeds, too.
    if type(dataset).__name__ in ("_ShuffleDataset", "_RandomDataset"):
        seeds += [int(dataset._seed), int(dataset._seed2)]
    for function in dataset._functions():
        captured = function.function.captured_inputs
        uses_resource = any(each.dtype == tf.resource for each in captured)
        for op in function.function.graph.get_operations():
            if op.type.startswith("Shuffle"):
                values = [tf.get_static_value(op.inputs[i]) for i in (2, 3)]
                seeds += [0 if value is None else int(value) for value in values]
            elif {"seed", "seed2"} <= set(op.node_def.attr) and not uses_resource:
                seeds += [op.get_attr("seed"), op.get_attr("seed2")]
    for each in dataset._inputs():
        seeds += random_seeds(each)
    return seeds


def inputs_of(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the datasets that a dataset reads."""
    return list(dataset._inputs())


def definitions_of(dataset: tf.data.Dataset) -> list[GraphDef]:
    """Returns the `GraphDef` of each function of a dataset alone."""
    return [f.function.graph.as_graph_def() for f in dataset._functions()]


def bytes_of_arrays(dataset: tf.data.Dataset) -> int:
    """Returns the size of the arrays that a dataset itself holds, in bytes."""
    held = [each for f in dataset._functions() for each in f.function.captured_inputs]
    held += getattr(dataset, "_tensors", [])
    return sum(
        each.dtype.size * each.shape.num_elements()
        for each in held
        if isinstance(each, tf.Tensor) and each.shape.num_elements()
    )


class SameDataset(tf.data.Dataset):
    """A dataset with the elements of another one, for classes that know more of it."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        super().__init__(tf.data.experimental.to_variant(dataset))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Nest:
        """The structure of type specs of an element."""
        return self._dataset.element_spec
