"""Batches that a worker reads itself, by the lease that a step comes with.

The chief reads the dataset of leases as it reads any dataset: batch by batch, to their end
or to a checkpoint. So a lease is open until its step is sent, under way with that step, and
done once that has finished; if its worker is lost, the step goes to another, and the lease
with it. What a lease stands for, and the user's own pipeline, are a graph that is part of
the function which the workers run.
"""

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.data.leased import LeasedDataset
from tfdist.graph.functions import calls_python
from tfdist.keras.batch_structure import BatchStructure
from tfdist.parameter_server.step_graph.copies import without_seeds
from tfdist.parameter_server.step_graph.fragment import Fragment

_log = logging.getLogger("tfdist")

# Of the arrays that the functions of the pipeline use. Each function on the workers has a
# copy per step.
_MAX_CONSTANT_BYTES = 2**20
_numbers = itertools.count()


class LeasedBatches(BatchStructure):
    """The structure of batches that come as leases, and how a worker reads one.

    Args:
        dataset: The dataset.
        function: Its `read`, a `ConcreteFunction`.

    Attributes:
        leases: The dataset of leases.
        lease: The structure of a lease.
        source: The files.
    """

    def __init__(self, dataset: LeasedDataset, function: Any) -> None:
        super().__init__(dataset.element_spec)
        self.leases = dataset.leases
        self.lease = BatchStructure(self.leases.element_spec)
        self.source = dataset.source
        self._row_key = f"{self.key} by lease {next(_numbers)}"
        # With it, TensorFlow would delete the functions that it calls.
        self._function = function
        self._outputs = [each.name for each in function.outputs]
        self._specs = [tf.TensorSpec.from_tensor(each) for each in function.outputs]
        definition = function.graph.as_graph_def()
        _tf.add_functions(without_seeds(definition))
        width = len(function.inputs) - len(function.captured_inputs)
        inputs, captured = function.inputs[:width], function.inputs[width:]
        _keep(definition, captured, function.captured_inputs)
        _leave_out(definition, inputs)
        self._fragment = Fragment(definition, [each.name for each in inputs])

    @property
    def row_key(self) -> str:
        """A key of this pipeline alone, whose functions read by its leases."""
        return self._row_key

    def describe(self, rows: tf.Tensor) -> str:
        """Says what the leases in the rows of a message stand for."""
        columns = [
            np.concatenate(
                [tf.io.parse_tensor(each, spec.dtype).numpy() for each in part]
            )
            for part, spec in zip(rows.numpy().T, self.lease.present, strict=False)
        ]
        return self.source.describe(*columns)

    def read(self, lease: list[tf.Tensor]) -> list[tf.Tensor]:
        """Reads a batch, in the function being traced, and returns its tensors."""
        tensors = self._fragment.add(lease, self._outputs, "lease")
        for each, spec in zip(tensors, self._specs, strict=True):
            each.set_shape(spec.shape)
        return tensors


def leased_batches(dataset: Any) -> LeasedBatches | None:
    """Returns how the workers read a dataset, or None if the chief has to read it.

    If that is so though a source of `tfdist.data` is part of it, a line in the log says
    why, and what to do.
    """
    if not isinstance(dataset, LeasedDataset):
        if transformed := _transformation(dataset):
            _tell(
                f"{transformed} comes after its source, and needs the examples in one "
                "place",
                "leave it out, or put what it does into map; shuffle, repeat, take, "
                "skip, shard, one batch and map keep the examples on the workers",
            )
        return None
    traced = tf.function(dataset.read, autograph=False)
    function = traced.get_concrete_function(*dataset.leases.element_spec)
    if why := _why_not(function):
        _tell(*why)
        return None
    return LeasedBatches(dataset, function)


def _why_not(function: Any) -> tuple[str, str] | None:
    """Returns why workers cannot run a function, and what to do, or None if they can."""
    if calls_python(function.graph.as_graph_def()):
        return (
            "its pipeline calls Python functions, and workers run no Python of yours",
            "write what tf.py_function or tf.numpy_function does with operations of "
            "TensorFlow, or do it once and save the result",
        )
    captured = [outside for outside, _ in function.graph.captures]
    if any(each.dtype in (tf.resource, tf.variant) for each in captured):
        return (
            "its pipeline uses a variable, a table or a generator of random numbers, "
            "which exists on the chief alone",
            "make it a layer of the model, or use operations that keep nothing, such as "
            "tf.image.random_* or tf.random.uniform",
        )
    size = sum(each.dtype.size * each.shape.num_elements() for each in captured)
    if size > _MAX_CONSTANT_BYTES:
        return (
            f"its pipeline uses {size:,} bytes of arrays; up to "
            f"{_MAX_CONSTANT_BYTES:,} go to the workers with it",
            "make them part of the source",
        )
    return None


def _tell(why: str, what_to_do: str) -> None:
    _log.warning(
        "the chief reads this dataset and sends its examples to the workers: %s. To have "
        "the workers read it, %s",
        why,
        what_to_do,
    )


def _transformation(dataset: Any) -> str | None:
    """Returns the name of the transformation that follows a source, if one does."""
    for above, below in _edges(dataset):
        if isinstance(below, LeasedDataset):
            return type(above).__name__.strip("_").removesuffix("Dataset").lower()
    return None


def _edges(dataset: Any) -> Iterator[tuple[Any, Any]]:
    for each in _tf.inputs_of(dataset):
        yield dataset, each
        yield from _edges(each)


def _keep(definition: Any, inside: list[tf.Tensor], values: list[tf.Tensor]) -> None:
    """Makes constants of the tensors that a function has captured."""
    kept = {each.op.name: value for each, value in zip(inside, values, strict=True)}
    for node in definition.node:
        if node.name in kept:
            value = kept[node.name]
            node.op = "Const"
            node.ClearField("attr")
            node.attr["dtype"].type = value.dtype.as_datatype_enum
            proto = tf.make_tensor_proto(value.numpy(), value.dtype)
            node.attr["value"].tensor.CopyFrom(proto)


def _leave_out(definition: Any, inputs: list[tf.Tensor]) -> None:
    names = {each.op.name for each in inputs}
    rest = [node for node in definition.node if node.name not in names]
    del definition.node[:]
    definition.node.extend(rest)
