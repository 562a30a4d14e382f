"""Values with their masks, and rows of gradients, as a flat list of tensors and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf


@dataclass(frozen=True)
class Recipe:
    """How to make values of tensors again.

    Attributes:
        structures: For each value what `tf.nest` makes it of, or None for no value.
        masked: Whether each value has a mask, which is the tensor after it.
        specs: The specs of the tensors.
    """

    structures: tuple[Any, ...]
    masked: tuple[bool, ...]
    specs: tuple[tf.TensorSpec, ...]


def unpacked(values: Sequence[Any]) -> tuple[list[tf.Tensor], Recipe]:
    """Returns the tensors of some values, each a tensor, `IndexedSlices` or None."""
    tensors: list[tf.Tensor] = []
    structures: list[Any] = []
    masked: list[bool] = []
    for each in values:
        mask = None if each is None else _tf.mask_of(each)
        masked.append(mask is not None)
        if each is None:
            structures.append(None)
            continue
        found = tf.nest.flatten(each, expand_composites=True)
        structures.append(each if len(found) > 1 else "tensor")
        tensors += found + ([mask] if mask is not None else [])
    specs = tuple(tf.TensorSpec(each.shape, each.dtype) for each in tensors)
    kept = tuple(
        tf.type_spec_from_value(each) if isinstance(each, tf.IndexedSlices) else each
        for each in structures
    )
    return tensors, Recipe(kept, tuple(masked), specs)


def packed(tensors: Sequence[tf.Tensor], recipe: Recipe) -> list[Any]:
    """Returns the values that were unpacked."""
    rest = iter(tensors)
    values: list[Any] = []
    for structure, has_mask in zip(recipe.structures, recipe.masked, strict=True):
        if structure is None:
            values.append(None)
        elif isinstance(structure, tf.TypeSpec):
            count = len(tf.nest.flatten(structure, expand_composites=True))
            parts = [next(rest) for _ in range(count)]
            values.append(tf.nest.pack_sequence_as(structure, parts, True))
        else:
            # A copy, for its mask is an attribute.
            values.append(tf.identity(next(rest)) if has_mask else next(rest))
        if has_mask:
            _tf.set_mask(values[-1], next(rest))
    return values
