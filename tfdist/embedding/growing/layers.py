"""Keras layers whose tables grow: any id, and a row for it when training first meets it."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.embedding import batch, checks
from tfdist.embedding.growing.growing_layer import GrowingLayer
from tfdist.embedding.growing.hashing import ids_of_strings
from tfdist.variables.shard_layout import DIV


@keras.saving.register_keras_serializable("tfdist")
class DynamicEmbedding(GrowingLayer):
    """An embedding of any ids. Training gives each a row when it first meets it.

    Under `ParameterServerStrategy`, an id, its row and the row's optimizer slots are on one
    ps, and memory is taken as rows are created. An id that has no row reads zeros, and
    `evaluate` and `predict` create none. The first value of a row depends on the seed,
    id and the column alone, so that neither the order of steps nor the number of ps
    matters: one worker trains as one process.

    The optimizer updates the rows of a step and no others. Prefer `Adagrad`: `Adam` corrects
    its moments by the step counter of the whole model, and a row that comes late begins with
    zero moments that are no longer corrected. Its first updates are 3 to 7 times as large.

    Call it with ids of any shape, dense or ragged, or with a list or dict of such, which
    share the table: each id travels once per step, whatever the number of features.

    Cost: for `n` distinct ids of a step, `n (8 + 2 output_dim x itemsize)` bytes. On the ps,
    a row takes its values, the optimizer's slots, and about 70 bytes (78 with
    `EvictUnseen` or `EvictRare`).

    Outside of `ParameterServerStrategy`, in one process, all `max_rows` take memory and are
    part of a checkpoint, and rows that were given up are not used again.

    Args:
        output_dim: The width of a row.
        *others: None: all other arguments are given by their names.
        max_rows: For how many rows there is room, on all ps together. Ids are dealt to the
            ps by their hash; one of them may be full a few percent before the others. Once
            it is, new ids read zeros, and are counted as refused.
        key_dtype: `"int64"`, or `"string"`, which is hashed to 63 bits: of a million
            strings, some two share a row with a probability of 5e-8.
        embeddings_initializer: Uniform, normal, truncated normal, or a constant.
        admission: The ids that get a row, `CountFilter(n)` or `ProbabilityFilter(p)` of
            `tfdist.embedding`; None for all.
        eviction: The rows that `evict()` removes, one or several of `EvictUnseen`,
            `EvictRare` and `EvictSmall` of `tfdist.embedding`.
        follow: Whether it is known of each row when it was last looked up, which
            `DeltaExport` needs. With `EvictUnseen` or `EvictRare` it is.
        seed: The seed of first rows; None to draw one, as
            `keras.utils.set_random_seed` says.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        TypeError: If an admission or eviction is of another type.
        ValueError: If a size is not positive, or the initializer needs more than a seed.
    """

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Looks up ids: `S + [output_dim]` for ids of shape S.

        Args:
            inputs: The ids.
            training: Whether ids without a row get one; by default, if a tape records.
        """
        flat = tf.nest.flatten(inputs)
        if not flat:
            raise ValueError(
                f"{self.path} takes at least one feature; received {inputs!r}"
            )
        ids = [self._ids(_values(each)) for each in flat]
        sizes = [tf.size(each) for each in ids]
        together = tf.concat([tf.reshape(each, [-1]) for each in ids], 0)
        rows = self.table.look_up(together, creates=self.creates(training))
        rows = tf.cast(rows, self.compute_dtype)
        parts = [rows] if len(flat) == 1 else tf.split(rows, sizes)
        found = [
            _shaped(part, each, self.output_dim)
            for part, each in zip(parts, flat, strict=True)
        ]
        return tf.nest.pack_sequence_as(inputs, found)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns the spec of the output."""
        self._check_spec(inputs)
        return tf.nest.map_structure(
            lambda each: keras.KerasTensor(
                (*each.shape, self.output_dim), dtype=self.compute_dtype
            ),
            inputs,
        )


@keras.saving.register_keras_serializable("tfdist")
class DynamicEmbeddingBag(GrowingLayer):
    """Looks up bags of any ids, and combines the rows of each bag.

    The table is that of `DynamicEmbedding`. Call it with a `tf.RaggedTensor` or a
    `tf.SparseTensor` of shape `[batch, any]`, or with a dense matrix whose rows are padded
    with `padding` (strings with `""`), and with optional weights, one per id.

    Cost: as `tfdist.embedding.EmbeddingBag`'s, with 8 bytes for an id. Each ps sends its distinct
    rows, or one sum for each bag, whichever takes fewer bytes in a step.

    Args:
        output_dim: The width of a row.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.
        padding: The id that pads the rows of a dense matrix of integers.
        **kwargs: Arguments of `DynamicEmbedding`.

    Raises:
        ValueError: If there is no such combiner, or `padding` is not a whole number.
    """

    def __init__(
        self,
        output_dim: int,
        combiner: str = "mean",
        *,
        padding: int = -1,
        **kwargs: Any,
    ) -> None:
        # Whoever writes (1000, 16), as for Keras's Embedding, means no combiner.
        sizes = (combiner,) if isinstance(combiner, int) else ()
        super().__init__(output_dim, *sizes, **kwargs)
        self.combiner = checks.combiner(combiner)
        self.padding = checks.padding(padding)
        # In a graph, `int` would be given a symbolic tensor.
        with tf.init_scope():
            self._id_of_nothing = int(ids_of_strings(tf.constant("")))

    @property
    def _checked(self) -> checks.Table:
        """The table that batches are checked against, which has no bounds of ids."""
        dtype = tf.as_dtype(self.variable_dtype)
        return checks.Table(None, [], self.output_dim, dtype, self.path, DIV)

    def call(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> Any:
        """Looks up a batch of bags: `[batch, output_dim]`; zeros for a bag without ids."""
        self._check_one_feature(inputs)
        bag = batch.bag(self._checked, *self._bags(inputs, weights), has_bounds=False)
        total = self.table.sum_bags(bag, self.combiner, self.creates(training))
        total.set_shape([inputs.shape[0], self.output_dim])
        return tf.cast(total, self.compute_dtype)

    def _check_one_feature(self, inputs: Any) -> None:
        if isinstance(inputs, (dict, list, tuple)):
            raise TypeError(
                f"{self.path} takes the bags of one feature, as a ragged, sparse or dense "
                f"tensor; received a {type(inputs).__name__}: call it once for each feature"
            )

    def _bags(self, inputs: Any, weights: Any) -> tuple[Any, Any]:
        """Returns ids as a ragged or sparse matrix, and their weights in its form."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self._ids(inputs.flat_values)), weights
        if isinstance(inputs, tf.SparseTensor):
            return inputs.with_values(self._ids(inputs.values)), weights
        padding = self._id_of_nothing if self.key_dtype == "string" else self.padding
        return batch.bags(self._ids(inputs), weights, padding, self.path)

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: bool | None = None
    ) -> Any:
        """Returns the spec of the output: `[batch, output_dim]`."""
        self._check_one_feature(inputs)
        self._check_spec(inputs)
        shape = (inputs.shape[0], self.output_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {
            **super().get_config(),
            "combiner": self.combiner,
            "padding": self.padding,
        }


def _values(ids: Any) -> Any:
    return ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids


def _shaped(rows: tf.Tensor, ids: Any, width: int) -> Any:
    """Gives rows the shape of their ids, with one axis more."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(rows)
    ids = tf.convert_to_tensor(ids)
    rows = tf.reshape(rows, tf.concat([tf.shape(ids), [width]], 0))
    rows.set_shape([*ids.shape, width])
    return rows
