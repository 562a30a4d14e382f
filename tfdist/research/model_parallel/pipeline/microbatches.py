"""The form of a batch, its microbatches, and their results put together again."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.keras.batch_structure import BatchStructure
from tfdist.research.model_parallel.pipeline.errors import PipelineError
from tfdist.research.model_parallel.splitting.split import ranges


def bounds(rows: int, microbatches: int) -> list[tuple[int, int]]:
    """Returns the first row and the end of each microbatch.

    A batch of fewer rows than microbatches has as many microbatches as rows. Where rows
    are left over, the first microbatches have one more.
    """
    return ranges(rows, min(rows, microbatches))


def replicas_of(microbatches: int, replicas: int) -> list[int]:
    """Returns the replica that computes each microbatch: consecutive ones.

    >>> replicas_of(5, 2)
    [0, 0, 0, 1, 1]
    """
    return [each * replicas // microbatches for each in range(microbatches)]


def rows_of(values: Nest) -> int:
    """Returns the number of rows of a batch, all of whose values have equally many."""
    counts = []
    for each in keras.tree.flatten(values):
        if each is None:
            continue
        if isinstance(each, tf.SparseTensor | tf.RaggedTensor):
            raise PipelineError(
                f"a batch has a {type(each).__name__}, which a pipeline cannot split into "
                "microbatches. Make it dense (tf.sparse.to_dense, or "
                "ragged_tensor.to_tensor) in the dataset"
            )
        counts.append(each.shape[0] if each.shape.rank else None)
    if None in counts or len(set(counts)) != 1 or not counts[0]:
        raise PipelineError(
            "a pipeline splits a batch by its first axis, which all of x, y and "
            f"sample_weight must have with the same length; received {counts}"
        )
    return int(counts[0])


def part_of(values: Nest, start: int, end: int) -> Any:
    """Returns some rows of each value in a structure."""
    return keras.tree.map_structure(
        lambda each: None if each is None else each[start:end], values
    )


def joined(parts: Sequence[Nest]) -> Nest:
    """Returns one tensor of the rows of several, with their mask if they have one."""
    if parts[0].shape.rank == 0:
        raise PipelineError(
            "an output of the model has no axis of examples: a number of the whole batch "
            "does not follow from those of its microbatches. Return one per example, and "
            "compute its mean in a loss"
        )
    whole = tf.concat(parts, 0) if len(parts) > 1 else tf.identity(parts[0])
    masks = [_tf.mask_of(each) for each in parts]
    if masks[0] is not None:
        _tf.set_mask(whole, tf.concat(masks, 0))
    return whole


def carried(value: Nest) -> Nest:
    """Returns a copy of a tensor and its mask on the device of the current scope."""
    if value is None:
        return None
    copy = tf.identity(value)
    if (mask := _tf.mask_of(value)) is not None:
        _tf.set_mask(copy, tf.identity(mask))
    return copy


class Form:
    """The structure of a batch, which packs a flat list of tensors.

    Functions that are traced keep it, so it has no tensor.

    Attributes:
        rows: How many rows the batch has.
        specs: The specs of its tensors, with any number of rows: as in one process, where
            Keras does not know the size of a batch, on which it depends what it reports
            of several losses.
        key: Equal for batches of equal form and number of rows.
    """

    def __init__(self, batch: Nest, tensors: Sequence[tf.Tensor]) -> None:
        self._structure = BatchStructure.of_batch(batch)
        self.rows = rows_of(tensors)
        self.specs = list(self._structure.present)
        self.key = repr((self.rows, self._structure.key))

    def batch(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Returns a batch of this form."""
        return self._structure.pack(tensors)


def tensors_of(batch: Nest) -> list[Any]:
    """Returns the present parts of a batch, as tensors."""
    # In the order of `BatchStructure`, which Keras's own trees may not have.
    leaves = tf.nest.flatten(batch)
    return [_as_tensor(each) for each in leaves if _is_present(each)]


def _is_present(value: Nest) -> bool:
    return value is not None and not isinstance(value, tf.experimental.Optional)


def _as_tensor(value: Nest) -> Nest:
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        return value
    return tf.convert_to_tensor(value)
