"""Variables of a stage's replicas, or their copies, and sums of gradients."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Gradient
from tfdist.research.model_parallel.pipeline.devices import on
from tfdist.research.model_parallel.pipeline.microbatches import carried
from tfdist.research.model_parallel.pipeline.pipeline import Stage
from tfdist.research.model_parallel.pipeline.recompute import Found, refuse_weight

LossesOf = Callable[[Any], list[Any]]
"""Returns the losses that the last call of an operation added."""


class Originals:
    """The variables of a stage that has one replica.

    `copies` are those of the `weights` that a tape does not watch by itself: none here.
    """

    copies = ()

    def __init__(self, stage: Stage) -> None:
        self.weights: list[Any] = stage.weights

    @contextlib.contextmanager
    def in_use(self, found: Found, is_again: bool) -> Iterator[LossesOf]:
        """Computes layers with these variables; a second time, they assign nothing."""
        if not is_again:
            yield _tf.losses_of_call
        else:
            with _in_scope(list(found.values())) as (_, losses_of):
                yield losses_of


class Copies:
    """Copies of the variables of a stage on the device of one of its replicas.

    They are made once a step. Assignments of layers, as of the averages of
    BatchNormalization, are seen by the microbatches of the same replica only.

    Cost: the bytes of the variables that live on another device.
    """

    def __init__(self, stage: Stage, device: str) -> None:
        self._variables = stage.variables
        with on(device):
            self._values = [tf.identity(each.value) for each in self._variables]
        self._begun = list(self._values)
        by_id = dict(zip(map(id, self._variables), self._values, strict=True))
        self.weights = self.copies = [by_id[id(each)] for each in stage.weights]

    @contextlib.contextmanager
    def in_use(self, found: Found, is_again: bool) -> Iterator[LossesOf]:
        """Computes layers with these copies; a second time, they assign nothing.

        The first time, `found` is filled with what the variables have before the
        microbatch.
        """
        if not is_again:
            # A microbatch begins with what the one before it has assigned.
            pairs = zip(self._variables, self._values, strict=True)
            found.update((id(each), (each, value)) for each, value in pairs)
        mapping = [
            found.get(id(v), (v, n))
            for v, n in zip(self._variables, self._values, strict=True)
        ]
        with _in_scope(mapping) as (scope, losses_of):
            yield losses_of
        if not is_again:
            self._values = [scope.get_current_value(v) for v in self._variables]
            for (variable, before), now in zip(mapping, self._values, strict=True):
                if now is not before:
                    refuse_weight(variable)

    @property
    def changed(self) -> list[tuple[keras.Variable, Any]]:
        """The variables that layers have assigned, and their values."""
        values = zip(self._variables, self._begun, self._values, strict=True)
        return [(v, now) for v, before, now in values if now is not before]


@contextlib.contextmanager
def _in_scope(mapping: list[tuple[Any, Any]]) -> Iterator[tuple[Any, LossesOf]]:
    with keras.StatelessScope(mapping, collect_losses=True) as scope:

        def losses_of(operation: keras.Operation) -> list[Any]:
            # Taken call by call, so that each loss counts once.
            found, scope.losses = scope.losses, []
            return found

        yield scope, losses_of


def assign_changes(replicas: list[Copies]) -> None:
    """Assigns the changes of a stage's layers: the mean over its replicas.

    Integers, as the states of random generators, are the first replica's.
    """
    found: dict[int, tuple[keras.Variable, list[Any]]] = {}
    for copies in replicas:
        for variable, value in copies.changed:
            found.setdefault(id(variable), (variable, []))[1].append(value)
    for variable, values in found.values():
        first = tf.convert_to_tensor(values[0])
        with on(_tf.value_of(variable).device):
            is_float = first.dtype.is_floating
            variable.assign(tf.add_n(values) / len(values) if is_float else first)


def total_of(sums: list[list[Any]], weights: list[keras.Variable]) -> list[Any]:
    """Returns the sums of the gradients of all replicas, each next to its weight."""
    if len(sums) == 1:
        return sums[0]
    totals = []
    for weight, parts in zip(weights, zip(*sums, strict=True), strict=True):
        with on(_tf.value_of(weight).device):
            # On the weight's own device: each gradient travels there once.
            total = None
            for each in parts:
                total = add_up(total, _carried(each))
            totals.append(total)
    return totals


def _carried(gradient: Gradient) -> Gradient:
    if isinstance(gradient, tf.IndexedSlices):
        values, indices = carried(gradient.values), carried(gradient.indices)
        return tf.IndexedSlices(values, indices, gradient.dense_shape)
    return carried(gradient)


def add_up(total: Any, gradient: Gradient) -> Gradient:
    """Returns the sum of two gradients, either of which may be None.

    Rows of an embedding stay rows, one after the other: the optimizer adds up those of the
    same number, as in the gradient of a whole batch.
    """
    if total is None or gradient is None:
        return gradient if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([total.values, gradient.values], 0),
            tf.concat([total.indices, gradient.indices], 0),
            total.dense_shape,
        )
    return dense(total) + dense(gradient)


def dense(gradient: Gradient) -> Gradient:
    """Returns a gradient as a tensor."""
    return tf.convert_to_tensor(gradient)
