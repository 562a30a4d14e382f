"""Keras layers whose tables grow: any id, and a row for it when training first meets it."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist._refusal import RefusalError
from tfdist.embedding import batch, checks
from tfdist.embedding.differentiable import partial_sum
from tfdist.embedding.growing.admission import (
    Admission,
    CountFilter,
    ProbabilityFilter,
    admission_of,
)
from tfdist.embedding.growing.eviction import (
    Eviction,
    EvictRare,
    EvictSmall,
    EvictUnseen,
    evictions_of,
)
from tfdist.embedding.growing.hashing import BUCKETS, ids_of_strings
from tfdist.embedding.growing.initial_rows import rows_by
from tfdist.embedding.growing.saving import Index
from tfdist.embedding.growing.table import GrowingTable
from tfdist.variables.creation import Request, creating
from tfdist.variables.initial_value import Unwritten
from tfdist.variables.partitioned import PartitionedVariable

_log = logging.getLogger("tfdist")

_CHUNK = 1_000_000  # rows
_RULES = {
    rule.__name__: rule
    for rule in (CountFilter, ProbabilityFilter, EvictUnseen, EvictRare, EvictSmall)
}


@keras.saving.register_keras_serializable("tfdist")
class DynamicEmbedding(keras.layers.Layer):
    """An embedding of any ids. Training gives each a row when it first meets it.

    Under `ParameterServerStrategy`, an id, its row and the row's optimizer slots are on one
    ps, and memory is taken as rows are created. An id that has no row reads zeros, and
    `evaluate` and `predict` create none. What a row begins with depends on the seed, the id
    and the column alone, so that neither the order of steps nor the number of ps matters:
    one worker trains as one process.

    The optimizer updates the rows of a step and no others. Prefer `Adagrad`: under `Adam`,
    whose step counter is that of the whole model, a row that comes late begins with zero
    moments that are no longer corrected for, and so with smaller updates.

    Call it with ids of any shape, dense or ragged, or with a list or dict of such, which
    share the table: each id travels once per step, whatever the number of features.

    Cost: for `n` distinct ids of a step, `n (8 + 2 output_dim x itemsize)` bytes. On the ps,
    a row takes its values, the optimizer's slots, and about 70 bytes (78 with
    `EvictUnseen` or `EvictRare`).

    Outside of `ParameterServerStrategy`, in one process, all `max_rows` are part of a
    checkpoint, and rows that were given up are not used again.

    Args:
        output_dim: The width of a row.
        max_rows: For how many rows there is room, on all ps together. Ids are dealt to the
            ps by their hash; one of them may be full a few percent before the others. Once
            it is, new ids read zeros, and are counted as refused.
        key_dtype: `"int64"`, or `"string"`, which is hashed to 63 bits: of a million
            strings, some two share a row with a probability of 5e-8.
        embeddings_initializer: Uniform, normal, truncated normal, or a constant.
        admission: `tfdist.CountFilter(n)` or `tfdist.ProbabilityFilter(p)`: which ids get a
            row; None for all.
        eviction: `tfdist.EvictUnseen`, `tfdist.EvictRare`, `tfdist.EvictSmall`, or several:
            which rows `evict()` gives up.
        follow: Whether it is known of each row when it was last looked up, which
            `DeltaExport` needs. With `EvictUnseen` or `EvictRare` it is.
        seed: What rows begin with depends on it.
        **kwargs: Those of `keras.layers.Layer`.

    Raises:
        TypeError: If an admission or eviction is of another type.
        ValueError: If a size is not positive, or the initializer needs more than a seed.
    """

    def __init__(
        self,
        output_dim: int,
        *,
        max_rows: int,
        key_dtype: str = "int64",
        embeddings_initializer: Any = "uniform",
        admission: Admission = None,
        eviction: Eviction | Sequence[Eviction] | None = None,
        follow: bool = False,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        checks.positive(output_dim=output_dim, max_rows=max_rows)
        if key_dtype not in ("int64", "string"):
            raise ValueError(f"key_dtype is int64 or string; received {key_dtype!r}")
        if not isinstance(seed, int):
            raise ValueError(f"seed is a whole number; received {seed!r}")
        self.output_dim = output_dim
        self.max_rows = max_rows
        self.key_dtype = key_dtype
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.admission = admission_of(admission)
        self.eviction = evictions_of(eviction)
        self.follow = follow
        self.seed = seed
        self._first_rows = rows_by(
            self.embeddings_initializer, output_dim, seed, self.variable_dtype
        )
        # Cast to half precision, large ids would round.
        self.autocast = False
        self._strategy: Any = None
        self._has_warned = False
        self._is_frozen = False

    @property
    def follows(self) -> bool:
        """Whether it is known of each row when and how often it was looked up."""
        by_use = any(not isinstance(each, EvictSmall) for each in self.eviction)
        return self.follow or by_use

    def build(self, input_shape: Any = None) -> None:
        """Reserves the table."""
        self._strategy = tf.distribute.get_strategy()
        num_ps = getattr(self._strategy, "num_ps", 1)
        _check_strategy(self._strategy, num_ps)
        rows = -(-self.max_rows // num_ps) + 1  # One is that of absent ids.
        with creating(request=Request(on_every_ps=True)):
            self.embeddings = self.add_weight(
                shape=(num_ps * rows, self.output_dim),
                initializer=Unwritten(),
                name="embeddings",
            )
        value = _tf.value_of(self.embeddings)
        self.table = GrowingTable(
            value, self._first_rows, self.admission, self.eviction, self.follows
        )
        if isinstance(value, PartitionedVariable):
            value.updates_rows = True
            value.growth = self.table
        else:
            self.index = Index(self.table)
        self.built = True

    def freeze(self, table: Any) -> None:
        """Has the layer look up a table that does not grow: see `tfdist.frozen`."""
        self.table = table
        self._is_frozen = self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Looks up ids: `S + [output_dim]` for ids of shape S."""
        flat = tf.nest.flatten(inputs)
        ids = [self._ids(_values(each)) for each in flat]
        sizes = [tf.size(each) for each in ids]
        together = tf.concat([tf.reshape(each, [-1]) for each in ids], 0)
        rows = self.table.look_up(together, creates=bool(training))
        rows = tf.cast(rows, self.compute_dtype)
        parts = [rows] if len(flat) == 1 else tf.split(rows, sizes)
        found = [
            _shaped(part, each, self.output_dim)
            for part, each in zip(parts, flat, strict=True)
        ]
        return tf.nest.pack_sequence_as(inputs, found)

    def _ids(self, values: Any) -> tf.Tensor:
        values = tf.convert_to_tensor(values)
        if (values.dtype == tf.string) != (self.key_dtype == "string"):
            raise TypeError(
                f"the ids of {self.path} are of {values.dtype.name}, and its key_dtype is "
                f"{self.key_dtype!r}: choose the one that the data have"
            )
        if values.dtype == tf.string:
            return ids_of_strings(values)
        if values.dtype == tf.uint64:
            raise TypeError(
                f"the ids of {self.path} are uint64, of which int64 has half: cast them, "
                "for example with tf.bitcast(ids, tf.int64), which keeps them apart"
            )
        return tf.cast(batch.whole_numbers(values, self.path), tf.int64)

    def compute_output_spec(self, inputs: Any, training: bool = False) -> Any:
        """Returns the spec of the output."""
        return tf.nest.map_structure(
            lambda each: keras.KerasTensor(
                (*each.shape, self.output_dim), dtype=self.compute_dtype
            ),
            inputs,
        )

    def size(self) -> int:
        """Returns how many ids have a row."""
        return sum(each["rows"] for each in self._states())

    def report(self) -> dict[str, Any]:
        """Returns how many ids have a row, were created, refused, removed, and bytes.

        `bytes` are those of the rows, without slots and index.
        """
        states = self._states()
        total = {key: sum(each[key] for each in states) for key in states[0]}
        itemsize = tf.as_dtype(self.variable_dtype).size
        total["bytes"] = total["rows"] * self.output_dim * itemsize
        return {**total, "of_ps": states}

    def _states(self) -> list[dict[str, int]]:
        self._check_grows()
        states = [shard.state() for shard in self.table.shards]
        refused = sum(each["refused"] for each in states)
        if refused and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s is full: %d times an id got no row, and read zeros. Give it a larger "
                "max_rows, an admission, or an eviction",
                self.path,
                refused,
            )
        return states

    def lookup(self, ids: Any) -> np.ndarray:
        """Returns the rows of ids, and zeros for those that have none: `[n, width]`."""
        self._check_built()
        ids = tf.constant(self._as_vector(ids))
        rows: np.ndarray = self.table.look_up(ids, creates=False).numpy()
        return rows

    def upsert(self, ids: Any, rows: Any) -> int:
        """Sets rows, and creates those that are missing, whatever the admission.

        Optimizer slots of a row that is there already stay as they are.

        Args:
            ids: `[n]`, each once.
            rows: `[n, output_dim]`.

        Returns:
            For how many ids there was no room.

        Raises:
            RuntimeError: If training steps are under way.
            ValueError: If ids repeat, or the rows have another shape.
        """
        self._check_quiet("upsert")
        ids, rows = self._as_vector(ids), np.asarray(rows, self.variable_dtype)
        if rows.shape != (len(ids), self.output_dim):
            raise ValueError(
                f"upsert takes rows of the shape {(len(ids), self.output_dim)} for "
                f"{len(ids)} ids; received {rows.shape}"
            )
        _check_once(ids)
        return self.table.upsert(ids, rows)

    def remove(self, ids: Any) -> int:
        """Gives up the rows of ids; returns how many there were.

        Raises:
            RuntimeError: If training steps are under way.
        """
        self._check_quiet("remove")
        return self.table.remove(np.unique(self._as_vector(ids)))

    def evict(self) -> int:
        """Gives up the rows that the rules of `eviction` give up; returns how many.

        Raises:
            RuntimeError: If training steps are under way.
        """
        self._check_quiet("evict")
        return self.table.evict() if self.eviction else 0

    def export(self, chunk: int = _CHUNK) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields all ids and their rows, at most `chunk` at a time.

        Strings are there by their hashes.
        """
        self._check_built()
        yield from self.table.export(chunk)

    def _as_vector(self, ids: Any) -> np.ndarray:
        found: np.ndarray = self._ids(np.asarray(ids).reshape(-1)).numpy()
        return found

    def _check_grows(self) -> None:
        if self._is_frozen:
            raise RuntimeError(f"{self.path} is frozen: its rows stay as they are")
        self._check_built()

    def _check_built(self) -> None:
        if not self.built:
            raise ValueError(
                f"{self.path} has no table yet: build it, or call it first"
            )

    def _check_quiet(self, what: str) -> None:
        self._check_grows()
        in_flight = getattr(self._strategy, "in_flight", None)
        if in_flight is not None and in_flight.under_way():
            raise RuntimeError(
                f"{what}: steps are under way that use rows of {self.path}. Call it "
                "between two calls of fit, or in a callback at the end of an epoch"
            )

    def save_own_variables(self, store: Any) -> None:
        """Writes ids and their rows, as the chief reads them."""
        self._check_built()
        found = list(self.export())
        store["ids"] = np.concatenate(
            [np.zeros(0, np.int64), *(ids for ids, _ in found)]
        )
        store["rows"] = np.concatenate(
            [np.zeros((0, self.output_dim)), *(rows for _, rows in found)]
        ).astype(self.variable_dtype)

    def load_own_variables(self, store: Any) -> None:
        """Replaces the table by the ids and rows of a file."""
        ids, rows = np.asarray(store["ids"]), np.asarray(store["rows"])
        self._check_quiet("load")
        for old, _ in self.export():
            self.table.remove(old)
        if refused := self.upsert(ids, rows):
            raise ValueError(
                f"{self.path}: the file has {len(ids)} rows, and {refused} of them find no "
                f"room in max_rows={self.max_rows}: build the layer with more"
            )

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        if save_type == "savedmodel" and not self._is_frozen:
            raise RefusalError(
                f"{self.path} grows as it trains, and a SavedModel does not: export "
                "tfdist.frozen(model), whose tables have the rows of now"
            )
        return super()._trackable_children(save_type, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "max_rows": self.max_rows,
            "key_dtype": self.key_dtype,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "admission": _config_of(self.admission),
            "eviction": [_config_of(each) for each in self.eviction],
            "follow": self.follow,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "DynamicEmbedding":
        """Creates a layer from its `get_config()`."""
        made = {
            **config,
            "admission": _rule_of(config["admission"]),
            "eviction": [_rule_of(each) for each in config["eviction"]],
        }
        return cls(**made)


@keras.saving.register_keras_serializable("tfdist")
class DynamicEmbeddingBag(DynamicEmbedding):
    """Looks up bags of any ids, and combines the rows of each bag.

    The table is that of `DynamicEmbedding`. Call it with a `tf.RaggedTensor` or a
    `tf.SparseTensor` of shape `[batch, any]`, or with a dense matrix whose rows are padded
    with `padding`, and with optional weights, one per id.

    Args:
        output_dim: The width of a row.
        combiner: `"sum"`, `"mean"` or `"sqrtn"`.
        padding: The id that pads the rows of a dense matrix of integers.
        **kwargs: Those of `DynamicEmbedding`.

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
        super().__init__(output_dim, **kwargs)
        self.combiner = checks.combiner(combiner)
        self.padding = checks.padding(padding)

    def call(self, inputs: Any, weights: Any = None, training: bool = False) -> Any:
        """Looks up a batch of bags: `[batch, output_dim]`; zeros for a bag without ids."""
        bags = self._bags(inputs)
        if isinstance(bags, tf.SparseTensor):
            ids, segments, count = bags.values, bags.indices[:, 0], bags.dense_shape[0]
            weights = None if weights is None else weights.values
        else:
            ids, segments, count = bags.flat_values, bags.value_rowids(), bags.nrows()
            weights = None if weights is None else _of_bags(bags, inputs, weights, self)
        rows = self.table.look_up(self._ids(ids), creates=bool(training))
        places = tf.range(tf.size(segments))
        if weights is not None:
            weights = tf.cast(weights, rows.dtype)
        total = partial_sum(rows, places, segments, weights, count)
        if self.combiner != "sum":
            each = (
                tf.ones(tf.shape(segments), rows.dtype) if weights is None else weights
            )
            each = each if self.combiner == "mean" else each * each
            size = tf.math.unsorted_segment_sum(each, segments, count)
            size = size if self.combiner == "mean" else tf.sqrt(size)
            total = tf.math.divide_no_nan(total, size[:, tf.newaxis])
        total.set_shape([inputs.shape[0], self.output_dim])
        return tf.cast(total, self.compute_dtype)

    def _bags(self, inputs: Any) -> Any:
        if isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
            return inputs
        inputs = tf.convert_to_tensor(inputs)
        if inputs.dtype != tf.string:
            return batch.bags(inputs, None, self.padding, self.path)[0]
        return tf.ragged.boolean_mask(inputs, tf.not_equal(inputs, ""))

    def compute_output_spec(
        self, inputs: Any, weights: Any = None, training: bool = False
    ) -> Any:
        """Returns the spec of the output: `[batch, output_dim]`."""
        shape = (inputs.shape[0], self.output_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {
            **super().get_config(),
            "combiner": self.combiner,
            "padding": self.padding,
        }


def _of_bags(bags: Any, inputs: Any, weights: Any, layer: Any) -> tf.Tensor:
    """Returns the weight of each id of a ragged or padded batch."""
    if isinstance(weights, tf.RaggedTensor):
        return weights.flat_values
    is_id = tf.not_equal(tf.convert_to_tensor(inputs), _padding_of(inputs, layer))
    return tf.boolean_mask(tf.convert_to_tensor(weights), is_id)


def _padding_of(inputs: Any, layer: Any) -> tf.Tensor:
    dtype = tf.convert_to_tensor(inputs).dtype
    return tf.constant("") if dtype == tf.string else tf.cast(layer.padding, dtype)


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


def _check_strategy(strategy: Any, num_ps: int) -> None:
    is_on_ps = hasattr(strategy, "num_ps")
    if not is_on_ps and strategy.num_replicas_in_sync > 1:
        raise RefusalError(
            "a table that grows lives on parameter servers, or in one process; under "
            f"{type(strategy).__name__}, each replica would give ids other rows. Use "
            "tfdist.ParameterServerStrategy"
        )
    if num_ps > BUCKETS:
        raise RefusalError(
            f"a table that grows can be on {BUCKETS} ps at most; there are {num_ps}"
        )


def _check_once(ids: np.ndarray) -> None:
    unique, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"upsert takes each id once; received {unique[counts > 1][0]} "
            f"{counts.max()} times"
        )


def _config_of(rule: Any) -> dict[str, Any] | None:
    return None if rule is None else {"rule": type(rule).__name__, **vars(rule)}


def _rule_of(config: Mapping[str, Any] | None) -> Any:
    if config is None or not isinstance(config, Mapping):
        return config
    arguments = dict(config)
    return _RULES[arguments.pop("rule")](**arguments)
