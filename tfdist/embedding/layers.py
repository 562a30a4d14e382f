"""Keras layers whose tables are spread over the parameter servers."""

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
from tfdist.variables.layout import DIV
from tfdist.variables.partitioned import PartitionedVariable
from tfdist.variables.variable import ParameterServerVariable


@keras.saving.register_keras_serializable("tfdist")
class Embedding(keras.layers.Embedding):
    """A `keras.layers.Embedding` whose rows are spread over the ps.

    Its weights are those of the Keras layer, and each loads what the other has saved.
    The table is one variable of Keras; its rows live on all ps, in contiguous shards,
    and so do the slots that an optimizer adds to them.

    A step moves the rows that it looks up, each once, and their gradients. The
    optimizer updates these rows and leaves the others, and their slots, as they are:
    SGD and Adagrad do what they do with a dense gradient. Momentum, RMSprop and Adam do
    not: a row that is not looked up keeps its momentum for the next time, where the
    dense optimizer goes on moving the row by it. Weight decay is dense: it reads and
    writes every row on its ps in every step.

    Cost: for `n` different ids, `2 n (output_dim x itemsize)` bytes a step, whatever
    `input_dim` is. Outside of a `ParameterServerStrategy` it is the Keras layer.

    Args:
        input_dim: Rows of the table.
        output_dim: Width of a row.
        partitioner: How to split the rows; evenly over all ps unless given.
        partition_strategy: `"div"` gives each ps neighbours, `"mod"` deals the rows out
            one by one: rows that are looked up often because they are first, as words
            sorted by frequency are, then load all ps alike.
        **kwargs: As of `keras.layers.Embedding`.

    Raises:
        TypeError: If `partitioner` is no function.
        ValueError: If there is no such strategy.
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
        self._partitioner = checks.partitioner(partitioner)
        self._partition_strategy = checks.partition_strategy(partition_strategy)
        super().__init__(input_dim, output_dim, *args, **kwargs)

    @property
    def partitioner(self) -> Partitioner | None:
        """What says how many shards there are; None spreads the rows over all ps."""
        return self._partitioner

    @property
    def partition_strategy(self) -> str:
        """`"div"` or `"mod"`."""
        return self._partition_strategy

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        partitioner = self._partitioner or _over_all_ps
        with partition_variables(partitioner, self._partition_strategy):
            super().build(input_shape)
        _update_by_row(self._embeddings)

    def call(self, inputs: Any) -> Any:
        """Looks up ids of any shape: a tensor, or a ragged one."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        table = _tf.value_of(self._embeddings)
        is_on_ps = isinstance(table, ParameterServerVariable | PartitionedVariable)
        if not is_on_ps or self.lora_enabled or self.quantization_mode:
            is_sparse = isinstance(inputs, tf.SparseTensor)
            ids = inputs if is_sparse else batch.whole_numbers(inputs, self.path)
            return super().call(ids)
        # Keras would read the whole table on its ps, too, to ask for its shape.
        ids = batch.ids_in_range(inputs, self.input_dim, self.path)
        return tf.cast(table.look_up(ids), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, but for `partitioner`: that is the cluster's."""
        config = super().get_config()
        # `keras.layers.Embedding` opens what this layer has saved. It would refuse an
        # argument of ours, and ignores one inside of a serialized object.
        config["dtype"] = {
            **config["dtype"],
            "partition_strategy": self._partition_strategy,
        }
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Embedding":
        """Makes a layer of what `get_config` has returned, or that of Keras's layer."""
        dtype = config.get("dtype")
        if isinstance(dtype, dict) and "partition_strategy" in dtype:
            config = {"partition_strategy": dtype["partition_strategy"], **config}
        return super().from_config(config)


@keras.saving.register_keras_serializable("tfdist")
class EmbeddingBag(keras.layers.Layer):
    """Looks up bags of ids, and combines the rows of each bag.

    Each ps sums its own rows of a bag and sends one row, where this moves less than
    the rows themselves: see `embedding_lookup_sparse_with_distributed_aggregation`.
    The table is that of `tfdist.Embedding`: spread over the ps, updated by row, and
    saved as one.

    Call it with a `tf.RaggedTensor` or a `tf.SparseTensor` of shape `[batch, any]`, or
    with a dense matrix whose rows are filled up with `padding`; and with a weight for
    each id, of the same kind and shape, if they have any.

    Args:
        input_dim: Rows of the table.
        output_dim: Width of a row.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.
        padding: The id that fills up rows of a dense matrix, and is not looked up.
        max_norm: Rows that are longer in the L2 norm are shortened to it first.
        embeddings_initializer: As of `keras.layers.Embedding`.
        aggregate: Whether each ps sums; None to choose in each step by the bytes.
        partitioner: How to split the rows; evenly over all ps unless given.
        partition_strategy: As of `tfdist.Embedding`.
        **kwargs: As of `keras.layers.Layer`.

    Raises:
        TypeError: If `partitioner` is no function.
        ValueError: If there is no such combiner or strategy, `max_norm` is not
            positive, `padding` no whole number, or `aggregate` none of the three.
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
        self.autocast = False
        self._partitioner = checks.partitioner(partitioner)
        self._partition_strategy = checks.partition_strategy(partition_strategy)
        self._counter: LookupBytesCounter | None = None

    @property
    def partitioner(self) -> Partitioner | None:
        """What says how many shards there are; None spreads the rows over all ps."""
        return self._partitioner

    @property
    def partition_strategy(self) -> str:
        """`"div"` or `"mod"`."""
        return self._partition_strategy

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        partitioner = self._partitioner or _over_all_ps
        with partition_variables(partitioner, self._partition_strategy, rows_only=True):
            self.embeddings = self.add_weight(
                shape=(self.input_dim, self.output_dim),
                initializer=self.embeddings_initializer,
                name="embeddings",
            )
        _update_by_row(self.embeddings)
        self.built = True

    def count_bytes(self) -> LookupBytesCounter:
        """Returns a counter of the bytes that lookups move from now on.

        Call it in the scope of the strategy, before the first step.
        """
        self._counter = LookupBytesCounter()
        return self._counter

    def call(self, inputs: Any, weights: Any = None) -> tf.Tensor:
        """Looks up a batch of bags.

        Args:
            inputs: Ids, `[batch, any]`.
            weights: Of the ids, of the same kind and shape; ones unless given.

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
        combined.set_shape([inputs.shape[0], self.output_dim])
        return tf.cast(combined, self.compute_dtype)

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        """Returns the spec of the output: `[batch, output_dim]`."""
        shape = (inputs.shape[0], self.output_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, but for `partitioner`: that is the cluster's."""
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
    return FixedShardsPartitioner(getattr(strategy, "num_ps", 1))(shape, dtype, axis)
