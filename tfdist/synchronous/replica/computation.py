"""One replica's part of a step: gradients, optimizers, variables, seeds and masks."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.types import Gradient, Nest
from tfdist.keras.computation import Computation, computing
from tfdist.synchronous.reader.indivisible import IndivisibleLossError, remedies
from tfdist.synchronous.reader.reduction import (
    ADDED_UP,
    CONSTANTS,
    INDIVISIBLE,
    REFUSED,
    Reduction,
)
from tfdist.synchronous.replica import gradients
from tfdist.synchronous.replica.collectives import exchanged, of_last_replica
from tfdist.synchronous.replica.compiled import of_all_examples, update_on_whole_batch
from tfdist.synchronous.replica.mean_by_word import (
    part_of_mean,
    state_of_mean,
    updating_metric,
)
from tfdist.synchronous.replica.separable import is_separable
from tfdist.synchronous.replica.step import ReplicaStep
from tfdist.synchronous.replica.whole_batch import part_of
from tfdist.synchronous.replica.written import settled_at_once
from tfdist.variables.increment import NotAdditiveError

_MEANS = ("mean", "sum_over_batch_size")


class WholeBatchComputation(Computation):
    """A loss or metric of the whole batch, which every replica computes alike.

    Gradients are those of the whole batch. Nothing else has to differ from Keras's.
    """

    def __init__(self, step: ReplicaStep) -> None:
        self.step = step

    def gradient(self, tape_gradient: Callable[..., Any], *given: Nest) -> Any:
        """Returns the gradient of the whole batch's loss."""
        # A layer that recomputes its outputs calls a tape within the outer tape's call;
        # the outer one corrects for the batch, and once is enough.
        if self.step.is_differentiating or given[0] is None:
            return tape_gradient(*given)
        return gradients.of_whole_batch(self.step, tape_gradient, *given)

    def apply(
        self,
        keras_apply: Callable[..., Any],
        optimizer: keras.Optimizer,
        grads: Any,
        given: Any,
    ) -> Any:
        """Applies gradients that the tape has added up already."""
        if self.step.is_updating:
            return keras_apply(optimizer, grads, given)
        names = [each.path for each in given or ()]
        grads = [
            self._checked(each, names[i] if names else f"variable {i}")
            for i, each in enumerate(grads)
        ]
        with self.step.updating():
            return keras_apply(optimizer, grads, given)

    def _checked(self, gradient: Gradient, name: str) -> Gradient:
        """Returns a gradient after checking that it is equal on every replica.

        Otherwise the copies of the variables would drift apart without an error.

        Raises:
            IndivisibleLossError: If it depends on this replica's examples and was not
                computed by a tape.
            NestedFunctionError: If nobody can tell, within a function of the step.
        """
        if gradient is None:
            return None
        leaves = tf.nest.flatten(gradient, expand_composites=True)
        kinds = {self.step.kind_of(tf.convert_to_tensor(each)) for each in leaves}
        if kinds <= {Reduction.SAME}:
            return gradient
        if kinds <= CONSTANTS:
            # Random noise: all replicas take the same one's.
            dense = tf.convert_to_tensor(gradient)
            return exchanged(self.step, [of_last_replica(self.step, dense)])[0]
        self.step.check_can_exchange()
        if self.step.is_mean:
            dense = tf.convert_to_tensor(gradient)
            return exchanged(self.step, [part_of_mean(self.step, dense)])[0]
        raise IndivisibleLossError(
            f"{name} received a gradient that depends on one replica's part of the "
            "batch. Compute gradients with tf.GradientTape.gradient, which adds up those "
            "of all replicas; tf.gradients and jacobians do not"
        )


class ReplicaComputation(WholeBatchComputation):
    """One replica's step, on its part of the batch."""

    def assign(self, variable: keras.Variable, value: tf.Tensor) -> Nest:
        """Returns the value to assign to a variable on this replica."""
        step = self.step
        step.sees(variable)
        if step.is_updating:
            return value
        value = tf.convert_to_tensor(value)
        if variable.synchronization == "on_read":
            return self._state_to_sum(variable, value)
        settled = settled_at_once(step, variable, value)
        if settled is None:
            step.wrote(variable, value)
            return value
        return settled

    def _state_to_sum(self, variable: keras.Variable, value: tf.Tensor) -> tf.Tensor:
        """Returns this replica's metric state: all states add up to the batch's.

        Raises:
            NotAdditiveError: If the value is not a sum over examples.
        """
        step, is_eager = self.step, self.step.known_kinds is not None
        is_sum = is_eager and self._is_updating_own_metric()
        kind = Reduction.SUM if is_sum else step.kind_of(value)
        if step.is_mean and kind not in CONSTANTS:
            state = tf.convert_to_tensor(variable.value)
            return state_of_mean(step, state, tf.cast(value, state.dtype))
        if kind in INDIVISIBLE and self._is_updating_own_metric():
            kind = Reduction.SUM
        if kind in REFUSED:
            raise NotAdditiveError(
                f"{variable.path} is summed over the replicas, but this step sets it to "
                "a value that is not a sum over examples, such as a maximum or a root. Add the "
                "step's part with variable.assign_add(...), or compute the value from "
                f"sums over examples. {remedies()}"
            )
        # A constant resets the state. Any other value is the state plus a mean.
        if kind in CONSTANTS:
            return value
        if kind not in ADDED_UP:
            return part_of(step, value)
        if step.has_rows:
            return value
        value = tf.cast(value, variable.dtype)
        return tf.where(
            step.count > 0, value, self._state_without_rows(variable, value)
        )

    def _is_updating_own_metric(self) -> bool:
        """Returns True if a metric whose state is a sum over rows is given rows.

        It is by its documentation, in whatever way Keras computes it.
        """
        given = self.step.given[:2]
        return bool(given) and all(
            isinstance(each, tf.Tensor)
            and is_separable(self.step.metric, each)
            and self._has_own_rows(each)
            for each in given
        )

    def _has_own_rows(self, tensor: tf.Tensor) -> bool:
        if self.step.known_kinds is None:
            return self.step.kind_of(tensor) is Reduction.ROWS
        # The whole batch has more, or as many if no other replica has any.
        return int(tensor.shape[0]) == max(int(self.step.count), 1)

    def _state_without_rows(
        self, variable: keras.Variable, value: tf.Tensor
    ) -> tf.Tensor:
        """Returns a sum that is assigned to a metric's state, with no rows in it."""
        state = tf.convert_to_tensor(variable.value)
        if self.step.known_kinds is not None or not value.dtype.is_floating:
            # Nearly all metrics add to their state.
            return state
        # A sum is linear in the states that it is computed from, such as a decaying one.
        reads = self.step.states_in(value)
        slopes = tf.gradients(value, reads) if reads else []
        pairs = zip(slopes, reads, strict=True)
        terms = [slope * read for slope, read in pairs if slope is not None]
        return tf.add_n(terms) if terms else tf.zeros_like(state)

    def assign_add(
        self, keras_add: Callable[..., Any], variable: keras.Variable, value: tf.Tensor
    ) -> Nest:
        """Adds this replica's part to the state of a metric."""
        step = self.step
        step.sees(variable)
        if step.is_updating or variable.synchronization != "on_read":
            return keras_add(variable, value)
        value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
        value = part_of(step, value, is_increment=True)
        with step.updating():
            return keras_add(variable, value)

    def next_seed(self, keras_next: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Returns a seed for this replica, and advances the state equally on all.

        The state is a variable with a copy per replica, and copies must stay equal. Only
        the seed drawn from it differs, so that replicas drop different units.
        """
        with self.step.updating():
            seed = keras_next()
        seed = seed + tf.cast(tf.stack([self.step.replica, 0]), seed.dtype)
        self.step.is_drawn(seed)
        return seed

    def mask_weights(
        self, weigh: Callable[[str], Any], mask: tf.Tensor | None, by: str
    ) -> Any:
        """Returns weights that make a mean one over the unmasked steps of all replicas.

        Keras divides by its own replica's number of unmasked elements. Replicas have
        different numbers, so that shares of rows would be the wrong weights.
        """
        if mask is None or by not in _MEANS:
            return weigh(by)
        weights = weigh("sum")
        mask = tf.cast(tf.convert_to_tensor(mask), weights.dtype)
        sums = [tf.reduce_sum(tf.ones_like(mask)), tf.reduce_sum(mask)]
        size, valid = exchanged(self.step, self.step.counted(sums))
        return weights * tf.math.divide_no_nan(size, valid)

    def loss(
        self, loss: keras.Loss, y_true: Nest, y_pred: Nest, sample_weight: Nest
    ) -> Nest:
        """Returns a compiled loss: of the whole batch unless it separates."""
        if not self._needs_all(loss, y_pred):
            return loss(y_true, y_pred, sample_weight)
        whole = of_all_examples(self.step, y_true, y_pred, sample_weight)
        with computing(WholeBatchComputation(self.step)):
            return loss(*whole)

    def update_metric(
        self, metric: keras.Metric, y_true: Nest, y_pred: Nest, sample_weight: Nest
    ) -> None:
        """Updates a compiled metric: from the whole batch unless it separates."""
        if not self._needs_all(metric, y_pred):
            with updating_metric(metric, (y_true, y_pred), {}):
                metric.update_state(y_true, y_pred, sample_weight)
            return
        whole = of_all_examples(
            self.step, y_true, y_pred, sample_weight, may_reuse=True
        )
        with computing(WholeBatchComputation(self.step)):
            update_on_whole_batch(
                self.step, metric, lambda: metric.update_state(*whole)
            )

    def _needs_all(
        self, loss_or_metric: keras.Loss | keras.Metric, y_pred: Nest
    ) -> bool:
        # Of ragged and sparse values, replicas with as many examples have other numbers.
        is_in_parts = is_separable(loss_or_metric, y_pred) and not (
            self.step.has_varying_rows
        )
        return self.step.whole_batch and not is_in_parts


def tracing(step: ReplicaStep) -> Any:
    """Returns a context in which this thread traces a replica's step."""
    return computing(ReplicaComputation(step))
