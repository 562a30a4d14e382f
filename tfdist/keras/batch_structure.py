"""Flattens a batch into a tuple of the values that it holds, and packs it again."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist._support.types import Nest


class BatchStructure:
    """The nested structure of a batch, which may lack targets or weights.

    Where a batch has no targets or weights, Keras has an `Optional` and `specs` None.
    """

    def __init__(self, element_spec: Nest) -> None:
        self.specs = tf.nest.map_structure(
            lambda spec: None if isinstance(spec, tf.OptionalSpec) else spec,
            element_spec,
        )
        self._leaves = tf.nest.flatten(self.specs)

    @property
    def key(self) -> str:
        """A key that is equal for structures which can share a traced function."""
        return repr(self.specs)

    @property
    def present(self) -> tuple[Nest, ...]:
        """The type specs of the values in a batch."""
        return tuple(spec for spec in self._leaves if spec is not None)

    @property
    def has_varying_rows(self) -> bool:
        """True if a batch holds ragged or sparse values: rows of varying length."""
        return any(not isinstance(spec, tf.TensorSpec) for spec in self.present)

    @property
    def has_fixed_rows(self) -> bool:
        """True if every batch has the same number of rows, known from its specs."""
        return any(
            isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0]
            for spec in self.present
        )

    def flatten(self, batch: Nest) -> tuple[Nest, ...]:
        """Returns the values in a batch that are not None."""
        pairs = zip(tf.nest.flatten(batch), self._leaves, strict=True)
        return tuple(leaf for leaf, spec in pairs if spec is not None)

    def pack(self, present: Sequence[Nest]) -> Nest:
        """Returns the batch that holds these values."""
        rest = iter(present)
        leaves = [None if spec is None else next(rest) for spec in self._leaves]
        return tf.nest.pack_sequence_as(self.specs, leaves)

    @classmethod
    def of_batch(cls, batch: Nest) -> "BatchStructure":
        """Returns the structure of such batches with any number of examples."""
        return cls(tf.nest.map_structure(_spec_of_any_rows, batch))


def as_element(arguments: tuple[Nest, ...]) -> Nest:
    """Returns the element that `map` passes to a function as these arguments."""
    return arguments if len(arguments) != 1 else arguments[0]


def _spec_of_any_rows(value: object) -> Nest:
    if value is None:
        return tf.OptionalSpec(None)
    return of_any_rows(tf.type_spec_from_value(value))


def of_any_rows(spec: tf.TypeSpec) -> Nest:
    """Returns the spec of tensors with any number of rows, as a batch may have."""
    # The last batch of a dataset is often smaller. It should not cost another trace.
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec
