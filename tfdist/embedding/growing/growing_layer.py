"""Base class of layers whose tables grow."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist._support.errors import RefusalError
from tfdist.embedding import checks
from tfdist.embedding.growing import arguments, files
from tfdist.embedding.growing.admission import Admission, admission_of
from tfdist.embedding.growing.eviction import Eviction, EvictSmall, evictions_of
from tfdist.embedding.growing.ids import check_dtype, check_once, ids_of, vector_of
from tfdist.embedding.growing.initial_rows import rows_by
from tfdist.embedding.growing.origin import Origin
from tfdist.embedding.growing.rules import RowRules, config_of, rule_of
from tfdist.embedding.growing.table import GrowingTable
from tfdist.variables.creation import SplitRequest, creating
from tfdist.variables.initial_value import Unwritten
from tfdist.variables.partitioned import PartitionedVariable

_CHUNK = 1_000_000  # rows


class GrowingLayer(keras.layers.Layer):
    """Base class of layers whose table grows. Arguments are as in `DynamicEmbedding`.

    Attributes:
        table: The rows and their ids; a `SortedTable` of a layer that is frozen.
    """

    def __init__(
        self,
        output_dim: int,
        *others: Any,
        max_rows: int | None = None,
        key_dtype: str = "int64",
        embeddings_initializer: Any = "uniform",
        admission: Admission = None,
        eviction: Eviction | Sequence[Eviction] | None = None,
        follow: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        # Before Keras, which would take some of them for its own: input_dim, for example.
        arguments.check_positional(name, output_dim, others)
        arguments.check_names(name, kwargs)
        super().__init__(**kwargs)
        max_rows = arguments.checked_sizes(name, output_dim, max_rows)
        arguments.check_key_dtype(key_dtype)
        arguments.check_dtype(name, self.variable_dtype)
        is_drawn = seed is None
        if seed is None:
            # As Keras draws those of its initializers: `set_random_seed` repeats it, and
            # two tables have other rows for the same ids.
            seed = random.randint(1, 10**9)
        arguments.check_seed(seed)
        self.output_dim = output_dim
        self.max_rows = max_rows
        self.key_dtype = key_dtype
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.admission = admission_of(admission)
        self.eviction = evictions_of(eviction)
        self.follow = follow
        self.origin = Origin(seed, is_drawn, key_dtype == "string")
        self._first_rows = rows_by(
            self.embeddings_initializer, output_dim, self.variable_dtype
        )
        # Cast to half precision, large ids would round.
        self.autocast = False
        # XLA has no tables of hashes.
        self.supports_jit = False
        self._strategy: Any = None
        self.is_frozen = False

    @property
    def seed(self) -> int:
        """The seed of first rows; once a checkpoint is read, the checkpoint's seed."""
        if not self.built or self.is_frozen:
            return self.origin.seed
        return int(self.table.shards[0].seed())

    @property
    def follows(self) -> bool:
        """True if it is known of each row when and how often it was looked up."""
        by_use = any(not isinstance(each, EvictSmall) for each in self.eviction)
        return self.follow or by_use

    def build(self, input_shape: Any = None) -> None:
        """Reserves the table."""
        # Keras may be tracing a model, to build it.
        with _tf.creating_now():
            self._build()

    def _build(self) -> None:
        self._strategy = tf.distribute.get_strategy()
        arguments.check_strategy(self._strategy)
        num_ps = getattr(self._strategy, "num_ps", 1)
        rows = arguments.rows_of_each(self.name, self.max_rows, num_ps)
        # In one process, Keras's optimizers may read and write all rows at once.
        is_on_ps = hasattr(self._strategy, "num_ps")
        try:
            with creating(request=SplitRequest(on_every_ps=True)):
                self.embeddings = self.add_weight(
                    shape=(num_ps * rows, self.output_dim),
                    initializer=Unwritten() if is_on_ps else "zeros",
                    name="embeddings",
                )
        except tf.errors.ResourceExhaustedError as error:
            dtype = tf.as_dtype(self.variable_dtype)
            raise arguments.refusal_of_memory(
                self.name, rows, self.output_dim, dtype
            ) from error
        value = _tf.value_of(self.embeddings)
        self.table = GrowingTable(
            value,
            self.path,
            self._first_rows,
            self.origin,
            RowRules(self.admission, self.eviction, self.follows),
        )
        if isinstance(value, PartitionedVariable):
            value.updates_rows = True
            value.growth = self.table
        else:
            self.index = files.Index(self.table)
        self.built = True

    def freeze(self, table: Any) -> None:
        """Has the layer look up a table that does not grow: see `tfdist.embedding.frozen`."""
        self.table = table
        self.is_frozen = self.built = True

    def creates(self, training: Any) -> bool:
        """Returns True if a call gives ids rows."""
        if training is None:
            # Keras tells a model's layers nothing if its own `call` does not take it.
            training = _tf.could_be_recorded()
        return bool(training) and self.trainable

    def _ids(self, values: Any) -> tf.Tensor:
        return ids_of(values, self.key_dtype, self.path)

    def _check_spec(self, inputs: Any) -> None:
        # Where the model is written, and not first where it is fit.
        for each in tf.nest.flatten(inputs):
            check_dtype(tf.as_dtype(each.dtype), self.key_dtype, self.path)

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
        return self.table.states()

    def lookup(self, ids: Any) -> np.ndarray:
        """Returns the rows of ids, and zeros for those that have none: `[n, width]`."""
        self._check_built()
        found = tf.constant(self._as_vector(ids))
        rows: np.ndarray = self.table.look_up(found, creates=False).numpy()
        return rows

    def upsert(self, ids: Any, rows: Any) -> int:
        """Sets rows, and creates missing ones, regardless of the admission.

        Optimizer slots of a row that is there already stay as they are.

        Args:
            ids: `[n]`, each once.
            rows: `[n, output_dim]`.

        Returns:
            For how many ids there was no room.

        Raises:
            RuntimeError: Within an epoch on ps, where steps are in flight.
            ValueError: If ids repeat, or are more than `max_rows`, or the rows have
                another shape.
        """
        self._await_quiet("upsert")
        given, ids = ids, self._as_vector(ids)
        rows = arguments.rows_to_set(
            rows, (len(ids), self.output_dim), self.variable_dtype
        )
        check_once(ids, np.asarray(given).reshape(-1))
        if len(ids) > self.max_rows:
            raise ValueError(
                f"upsert: {len(ids)} ids cannot have rows in a table with max_rows="
                f"{self.max_rows}: build it with more, or set fewer rows"
            )
        return self.table.upsert(ids, rows)

    def remove(self, ids: Any) -> int:
        """Gives up the rows of ids; returns how many there were.

        Raises:
            RuntimeError: Within an epoch on ps, where steps are in flight.
        """
        self._await_quiet("remove")
        return self.table.remove(np.unique(self._as_vector(ids)))

    def evict(self) -> int:
        """Gives up the rows that the rules of `eviction` give up; returns how many.

        Raises:
            RuntimeError: Within an epoch on ps, where steps are in flight.
        """
        self._await_quiet("evict")
        return self.table.evict() if self.eviction else 0

    def export(self, chunk: int = _CHUNK) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Returns an iterator over all ids and their rows, at most `chunk` at a time.

        Strings are there by their hashes.

        Raises:
            ValueError: If `chunk` is no number of rows.
        """
        checks.positive(chunk=chunk)
        self._check_built()
        return self.table.export(chunk)

    def _as_vector(self, ids: Any) -> np.ndarray:
        return vector_of(ids, self.key_dtype, self.path)

    def _check_grows(self) -> None:
        if self.is_frozen:
            raise RuntimeError(f"{self.path} is frozen: its rows stay as they are")
        self._check_built()

    def _check_built(self) -> None:
        if not self.built:
            raise ValueError(
                f"{self.name} has no table yet: a layer is built at its first call. Call "
                "it, or the model that has it, with ids first, or build() it within "
                "strategy.scope()"
            )

    def _await_quiet(self, what: str) -> None:
        """Waits for the last steps on ps; refuses within an epoch, where more follow."""
        self._check_grows()
        if not hasattr(self._strategy, "num_ps"):
            return  # In one process, no step is under way when somebody else's turn is.
        # Not whether steps are under way just now: a program would sometimes run.
        if self._strategy.fit_driver.is_within_epoch:
            raise RuntimeError(
                f"{what}: steps are under way that use rows of {self.path}. Call it "
                "between two calls of fit, or in a callback at the end of an epoch"
            )
        self._strategy.in_flight.join()

    def save_own_variables(self, store: Any) -> None:
        """Writes ids and their rows, as the chief reads them."""
        self._check_built()
        files.save(self, store)

    def load_own_variables(self, store: Any) -> None:
        """Replaces the table by the ids and rows of a file.

        Raises:
            RuntimeError: Within an epoch on ps, where steps are in flight.
            ValueError: If the file is of another `output_dim`, or has too many rows.
        """
        self._await_quiet("load")
        files.load(self, store)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> Any:
        if save_type == "savedmodel" and not self.is_frozen:
            raise RefusalError(
                f"{self.path} grows as it trains, and a SavedModel does not: export "
                "tfdist.embedding.frozen(model), whose tables have the rows of now"
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
            "admission": config_of(self.admission),
            "eviction": [config_of(each) for each in self.eviction],
            "follow": self.follow,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "GrowingLayer":
        """Creates a layer from its `get_config()`."""
        made = {
            **config,
            "admission": rule_of(config["admission"]),
            "eviction": [rule_of(each) for each in config["eviction"]],
        }
        return cls(**made)
