"""Keras layers whose tables are sharded over the parameter servers."""

from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.embedding import batch, checks
from tfdist.embedding.aggregated_lookup import (
    LookupBytesCounter,
    embedding_lookup_sparse_with_distributed_aggregation,
)
from tfdist.placement.partitioners import FixedShardsPartitioner, Partitioner
from tfdist.variables.creation import partition_variables
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.shard_layout import DIV
from tfdist.variables.variable import ParameterServerVariable


@keras.saving.register_keras_serializable("tfdist")
class Embedding(keras.layers.Embedding):
    """A `keras.layers.Embedding` whose rows are sharded over the ps.

    It has the weights of the Keras layer, and each layer loads what the other has saved.
    The table is one Keras variable. Its rows are on all ps, and so are the slots that an
    optimizer adds to them.

    A step moves each row that it looks up once, and its gradient. The optimizer updates
    these rows, and leaves the others and their slots unchanged. With SGD and Adagrad the
    result equals that of a dense gradient. With Momentum, RMSprop and Adam it does not:
    a row that is not looked up keeps its momentum for the next time, while the dense
    optimizer continues to move the row by it. Weight decay is dense: it reads and writes
    every row on its ps in every step.

    Cost: for `n` distinct ids, `2 n (output_dim x itemsize)` bytes per step, whatever
    `input_dim` is. Outside a `ParameterServerStrategy`, it behaves as the Keras layer.

    Args:
        input_dim: The number of rows of the table.
        output_dim: The width of a row.
        partitioner: How to split the rows; evenly over all ps by default.
        partition_strategy: `"div"` gives each ps contiguous rows; `"mod"` puts row `i` on
            shard `i % n`. If the first rows are looked up most, as with words sorted by
            frequency, `"mod"` loads all ps equally.
        **kwargs: Arguments of `keras.layers.Embedding`.

    Raises:
        TypeError: If `partitioner` is not a function.
        ValueError: If there is no such layout.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *args: Any,
        partitioner: Partitioner | None = None,
        partition_strategy: str = DIV,
        **kwargs: Any,
    ) -> None:
        self.partitioner = checks.partitioner(partitioner)
        self.partition_strategy = checks.partition_strategy(partition_strategy)
        super().__init__(input_dim, output_dim, *args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        partitioner = self.partitioner or _over_all_ps
        with partition_variables(partitioner, self.partition_strategy):
            super().build(input_shape)
        # Not `self.embeddings`, which with LoRA is a sum that Keras computes.
        _update_by_row(self._embeddings)

    def call(self, inputs: Any) -> Any:
        """Looks up a dense or ragged tensor of ids."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        table = _tf.value_of(self._embeddings)
        is_on_ps = isinstance(table, ParameterServerVariable | PartitionedVariable)
        # With LoRA or quantization, a row depends on more than the table.
        if not is_on_ps or self.lora_enabled or self.quantization_mode:
            is_sparse = isinstance(inputs, tf.SparseTensor)
            ids = inputs if is_sparse else batch.whole_numbers(inputs, self.path)
            return super().call(ids)
        # `super().call` would read the whole table on its ps, only to get its shape.
        ids = batch.ids_in_range(inputs, self.input_dim, self.path)
        return tf.cast(table.look_up(ids), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments without `partitioner`, which depends on the cluster."""
        config = super().get_config()
        # `keras.layers.Embedding` has to load what this layer has saved. It raises for
        # an unknown argument, and ignores one in the config of the dtype.
        config["dtype"] = {
            **config["dtype"],
            "partition_strategy": self.partition_strategy,
        }
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Embedding":
        """Creates a layer from its `get_config()`, or from that of Keras's layer."""
        dtype = config.get("dtype")
        if isinstance(dtype, dict) and "partition_strategy" in dtype:
            config = {"partition_strategy": dtype["partition_strategy"], **config}
        return super().from_config(config)


@keras.saving.register_keras_serializable("tfdist")
class EmbeddingBag(keras.layers.Layer):
    """Looks up bags of ids, and combines the rows of each bag.

    Where it moves fewer bytes, each ps sums its own rows of a bag and sends one row: see
    `embedding_lookup_sparse_with_distributed_aggregation`. The table is that of
    `tfdist.embedding.Embedding`: sharded over the ps, updated by row, and saved as one variable.

    Call it with a `tf.RaggedTensor` or a `tf.SparseTensor` of shape `[batch, any]`, or
    with a dense matrix whose rows are padded with `padding`. Optional weights, one per
    id, have the same type and shape.

    Args:
        input_dim: The number of rows of the table.
        output_dim: The width of a row.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.
        padding: The id that pads the rows of a dense matrix, and is not looked up.
        max_norm: Rows with a larger L2 norm are first scaled down to it.
        embeddings_initializer: As in `keras.layers.Embedding`.
        aggregate: Whether each ps sums; None to choose by the bytes in each step.
        partitioner: How to split the rows; evenly over all ps by default.
        partition_strategy: As in `tfdist.embedding.Embedding`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Raises:
        TypeError: If `partitioner` is not a function.
        ValueError: If there is no such combiner or layout, `max_norm` is not positive,
            `padding` is not a whole number, or `aggregate` is neither a bool nor None.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        combiner: str = "mean",
        *,
        padding: int = -1,
        max_norm: float | None = None,
        embeddings_initializer: Any = "uniform",
        aggregate: bool | None = None,
        partitioner: Partitioner | None = None,
        partition_strategy: str = DIV,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        checks.positive(input_dim=input_dim, output_dim=output_dim)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.combiner = checks.combiner(combiner)
        self.padding = checks.padding(padding)
        self.max_norm = checks.max_norm(max_norm)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.aggregate = checks.aggregate(aggregate)
        # As in `keras.layers.Embedding`: cast to half precision, large float ids round.
        self.autocast = False
        self.partitioner = checks.partitioner(partitioner)
        self.partition_strategy = checks.partition_strategy(partition_strategy)
        self._counter: LookupBytesCounter | None = None

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        partitioner = self.partitioner or _over_all_ps
        with partition_variables(partitioner, self.partition_strategy, rows_only=True):
            self.embeddings = self.add_weight(
                shape=(self.input_dim, self.output_dim),
                initializer=self.embeddings_initializer,
                name="embeddings",
            )
        _update_by_row(self.embeddings)
        self.built = True

    def count_bytes(self) -> LookupBytesCounter:
        """Returns a counter of the bytes that this layer's lookups move from now on.

        Call it in the scope of the strategy, before the first step.
        """
        self._counter = LookupBytesCounter()
        return self._counter

    def call(self, inputs: Any, weights: Any = None) -> tf.Tensor:
        """Looks up a batch of bags.

        Args:
            inputs: The ids, `[batch, any]`.
            weights: One weight per id, of the same type and shape; ones by default.

        Returns:
            `[batch, output_dim]`. A bag without ids gives zeros.
        """
        ids, weights = batch.bags(inputs, weights, self.padding, self.path)
        combined = embedding_lookup_sparse_with_distributed_aggregation(
            _tf.value_of(self.embeddings),
            ids,
            weights,
            combiner=self.combiner,
            max_norm=self.max_norm,
            aggregate=self.aggregate,
            counter=self._counter,
        )
        # The lookup takes the batch size from a tensor, so its static shape has none.
        combined.set_shape([inputs.shape[0], self.output_dim])
        return tf.cast(combined, self.compute_dtype)

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        """Returns the spec of the output: `[batch, output_dim]`."""
        shape = (inputs.shape[0], self.output_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments without `partitioner`, which depends on the cluster."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "combiner": self.combiner,
            "padding": self.padding,
            "max_norm": self.max_norm,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "aggregate": self.aggregate,
            "partition_strategy": self.partition_strategy,
        }


def _update_by_row(table: keras.Variable) -> None:
    value = _tf.value_of(table)
    if isinstance(value, ParameterServerVariable | PartitionedVariable):
        value.updates_rows = True


def _over_all_ps(shape: Any, dtype: Any, axis: int = 0) -> list[int]:
    strategy = tf.distribute.get_strategy()
    # Without a ps cluster, one shard: the table stays whole.
    return FixedShardsPartitioner(getattr(strategy, "num_ps", 1))(shape, dtype, axis)
