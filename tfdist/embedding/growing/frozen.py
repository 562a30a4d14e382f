"""Models whose tables have the rows of now, for files that load without tfdist."""

from collections.abc import Iterator
from numbers import Real
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.embedding import checks
from tfdist.embedding.aggregated_lookup import combined
from tfdist.embedding.batch import Bag
from tfdist.embedding.growing.growing_layer import GrowingLayer
from tfdist.embedding.routing import Route

# Of an id that no table is asked for in earnest: it makes the last row one of zeros.
_LAST = np.iinfo(np.int64).max


def frozen(
    model: keras.Model, *, min_count: float = 0.0, max_rows: int | None = None
) -> keras.Model:
    """Returns a copy of a model, in this process, whose tables no longer grow.

    It computes what `model.predict` does, and `export` makes a SavedModel of it that loads
    without tfdist: ids are sorted, and found by `tf.searchsorted`.

    Args:
        model: A functional or sequential model.
        min_count: Leaves out rows that fewer training steps have looked up. It needs tables
            with `EvictUnseen` or `EvictRare`; other tables count nothing.
        max_rows: How many rows a table keeps at most: those that were looked up most.

    Raises:
        TypeError: If it is no model of Keras.
        ValueError: If no layer grows, the model is a subclass with a `call` of its own,
            a growing layer is part of another that is no model, it is called within a
            strategy's scope, or rows are to be left out of a table that counts nothing.
    """
    _check(model, min_count, max_rows)
    pairs: list[tuple[keras.Layer, keras.Layer]] = []

    def copy_of(layer: keras.Layer) -> keras.Layer:
        copy = type(layer).from_config(layer.get_config())
        if isinstance(layer, GrowingLayer):
            # Before it is called, which would reserve a table for it.
            copy.freeze(
                SortedTable(*_kept(layer, min_count, max_rows), layer.output_dim)
            )
        elif isinstance(layer, keras.Layer):  # An operation, such as `a + b`, is none.
            pairs.append((layer, copy))
        return copy

    copy = keras.models.clone_model(model, clone_function=copy_of, recursive=True)
    for each in _tf.flatten_layers(copy):
        if isinstance(each, GrowingLayer) and not each.is_frozen:
            raise ValueError(
                f"{each.name} is within a layer that is no functional or sequential "
                "model, of which frozen cannot make a copy: call it in the model itself"
            )
    # Only now: `clone_model` has called the copies, and so built them.
    for layer, its_copy in pairs:
        if layer.weights:
            its_copy.set_weights(layer.get_weights())
    return copy


def _check(model: Any, min_count: float, max_rows: int | None) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            "frozen takes a functional or sequential keras.Model; received "
            f"{model!r:.100}. Load a file first, by keras.models.load_model, and call "
            "frozen with the model of a layer"
        )
    if max_rows is not None:
        checks.positive(max_rows=max_rows)
    if not isinstance(min_count, Real) or not min_count >= 0:
        raise ValueError(
            f"min_count must be a number of at least 0; received {min_count!r}"
        )
    if tf.distribute.has_strategy():
        raise ValueError(
            "frozen makes a model of this process: call it outside of strategy.scope()"
        )
    if not any(isinstance(each, GrowingLayer) for each in _tf.flatten_layers(model)):
        raise ValueError(
            f"{model.name} has no tfdist.embedding.DynamicEmbedding or "
            "DynamicEmbeddingBag: export it as it is"
        )
    if not model.built:
        raise ValueError(f"{model.name} is not built yet: call it with ids first")
    if _tf.functional_of(model) is None:
        raise ValueError(
            f"frozen takes a functional or sequential model; {model.name} is of "
            f"{type(model).__name__}. Make the part that serves such a model"
        )


class SortedTable(tf.Module):
    """Rows by their ids, which are sorted.

    Args:
        ids: `[n]`, each once.
        rows: `[n, width]`.
        width: The width of a row.
    """

    def __init__(self, ids: np.ndarray, rows: np.ndarray, width: int) -> None:
        super().__init__()
        order = np.argsort(ids)
        ids = np.concatenate([ids[order], np.full(1, _LAST)])
        rows = np.concatenate([rows[order], np.zeros((1, width), rows.dtype)])
        self.ids = tf.Variable(ids, trainable=False, dtype=tf.int64)
        self.rows = tf.Variable(rows, trainable=False)

    def look_up(self, ids: tf.Tensor, creates: bool) -> tf.Tensor:
        """Looks up a vector of ids; those without a row read zeros."""
        places = tf.searchsorted(self.ids, ids)
        rows = tf.gather(self.rows, places)
        is_there = tf.equal(tf.gather(self.ids, places), ids)
        return rows * tf.cast(is_there, rows.dtype)[:, tf.newaxis]

    def sum_bags(self, bag: Bag, combiner: str, creates: bool) -> tf.Tensor:
        """Combines the rows of bags: `[batch, width]`."""
        rows = self.look_up(bag.ids, creates)
        places = tf.range(tf.size(bag.ids))
        route = Route(bag.ids, None, tf.size(places), places, bag.segments, bag.weights)
        return combined([rows], [route], bag, combiner)

    def export(self, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ids and their rows, at most `chunk` at a time."""
        ids, rows = self.ids.numpy()[:-1], self.rows.numpy()[:-1]
        for start in range(0, len(ids), chunk):
            yield ids[start : start + chunk], rows[start : start + chunk]


def _kept(
    layer: GrowingLayer, min_count: float, max_rows: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids that a copy keeps, and their rows."""
    leaves_out = min_count > 0 or max_rows is not None
    if leaves_out and not layer.follows:
        raise ValueError(
            f"{layer.path} does not count how often its rows are looked up, by which "
            "min_count and max_rows choose: create it with follow=True, or with "
            "eviction=tfdist.embedding.EvictUnseen or tfdist.embedding.EvictRare"
        )
    none = np.zeros(0, np.int64), np.zeros((0, layer.output_dim)), np.zeros(0)
    parts: list[tuple[Any, ...]] = [none, *layer.table.export_with_counts(1_000_000)]
    ids, rows, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(-counts, kind="stable")[:max_rows]
    order = order[counts[order] >= min_count]
    return ids[order], rows[order].astype(layer.variable_dtype)
