"""A structure of values, with masks and rows of gradients, as a flat list of tensors and back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.pipeline.devices import on

_as_written = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Recipe:
    """How to make values of tensors again.

    Attributes:
        structure: What `tf.nest` makes of the values.
        kinds: For each value its type, None for no value, or "tensor".
        masked: Whether each value has a mask, which is the tensor after it.
    """

    structure: Any
    kinds: tuple[Any, ...]
    masked: tuple[bool, ...]
    specs: tuple[tf.TensorSpec, ...]


def unpacked(values: Any) -> tuple[list[tf.Tensor], Recipe]:
    """Returns the tensors of some values, each a tensor, `IndexedSlices` or None."""
    tensors: list[tf.Tensor] = []
    kinds: list[Any] = []
    masks: list[Any] = []
    for each in tf.nest.flatten(values):
        mask = None if each is None else _tf.mask_of(each)
        masks.append(mask)
        if isinstance(each, tf.IndexedSlices):
            kinds.append(tf.type_spec_from_value(each))
        else:
            kinds.append(None if each is None else "tensor")
        if each is not None:
            tensors += tf.nest.flatten(each, expand_composites=True)
        if mask is not None:
            tensors.append(mask)
    structure = tf.nest.map_structure(lambda _: None, values)
    masked = tuple(mask is not None for mask in masks)
    specs = tuple(tf.TensorSpec(each.shape, each.dtype) for each in tensors)
    return tensors, Recipe(structure, tuple(kinds), masked, specs)


def packed(tensors: Sequence[tf.Tensor], recipe: Recipe) -> Any:
    """Returns the values that were unpacked."""
    rest = iter(tensors)
    values: list[Any] = []
    for kind, has_mask in zip(recipe.kinds, recipe.masked, strict=True):
        if kind is None:
            values.append(None)
        elif isinstance(kind, tf.TypeSpec):
            count = len(tf.nest.flatten(kind, expand_composites=True))
            parts = [next(rest) for _ in range(count)]
            values.append(tf.nest.pack_sequence_as(kind, parts, True))
        else:
            # A copy, for its mask is an attribute.
            values.append(tf.identity(next(rest)) if has_mask else next(rest))
        if has_mask:
            _tf.set_mask(values[-1], next(rest))
    return tf.nest.pack_sequence_as(recipe.structure, values)


class StageFunction:
    """Computes values from values on the device of a stage, traced at its first call.

    A function of its own, so that many steps share one trace. It takes and returns a
    structure of tensors, with their masks, and of None.
    """

    def __init__(self, device: str, compute: Callable[[Any], Any]) -> None:
        self._device, self._compute = device, compute
        self._traced: Any = None
        self._results: Recipe | None = None

    def __call__(self, values: Any) -> Any:
        """Adds the computation to the function that is being traced."""
        tensors, recipe = unpacked(values)
        if self._traced is None:

            @_as_written
            def on_tensors(*tensors: tf.Tensor) -> list[tf.Tensor]:
                results = self._compute(packed(tensors, recipe))
                given, self._results = unpacked(results)
                return given

            self._traced = _tf.function(on_tensors, recipe.specs)
        # What follows, such as the optimizer's update, is placed where its inputs are.
        with on(self._device):
            copies = [tf.identity(each) for each in self._traced(*tensors)]
        assert self._results is not None
        return packed(copies, self._results)
