"""A worker's step of a round while it is traced: its gradients wait for the others'."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.errors import RefusalError
from tfdist._support.types import Nest
from tfdist.keras.computation import Computation
from tfdist.keras.step_writes import note_write

_MEANS = ("mean", "sum_over_batch_size")


class RoundError(RefusalError):
    """The model needs something that `tfdist.Synchronous()` cannot do correctly."""


@dataclass(frozen=True)
class Contribution:
    """The gradients of one batch, which its step gives to a round.

    Attributes:
        optimizer: The Keras optimizer that is to apply their average.
        gradients: A gradient or None for each variable.
        variables: The variables, as the optimizer expects them.
        weight: The weight of the gradients, in units of examples; a scalar tensor.
        method: The name of the optimizer's method that is to apply it.
    """

    optimizer: keras.Optimizer
    gradients: list[tf.Tensor | tf.IndexedSlices | None]
    variables: list[keras.Variable]
    weight: tf.Tensor
    method: str = "apply"


@dataclass(eq=False)
class RoundComputation(Computation):
    """Passes the gradients of one step to the accumulators, not to the optimizer."""

    applies_at_once = True

    weight: tf.Tensor
    contribute: Callable[[Contribution], None]

    def __post_init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._mask: tf.Tensor | None = None
        self.applied: list[str] = []

    def apply(
        self,
        keras_apply: Callable[..., Any],
        optimizer: keras.Optimizer,
        grads: Any,
        given: Any,
    ) -> Any:
        """Adds the gradients to those of the other workers.

        Raises:
            RoundError: If the step has applied gradients already, or does so within a
                condition, a loop or a function of its own.
        """
        self.add(optimizer, "apply", list(grads), given)
        return None

    def add(
        self, optimizer: keras.Optimizer, method: str, grads: list[Any], given: Any
    ) -> None:
        """Adds the gradients that a method of an optimizer is to apply.

        Raises:
            RoundError: As `apply` does.
        """
        self._check_is_first(optimizer)
        self.applied.append(optimizer.name)
        # Outside of rounds, `apply` does this, which is not called here.
        if not optimizer.built:
            optimizer.build(list(given))
        variables = (
            given if given is not None else _tf.trainable_variables_of(optimizer)
        )
        # The update notes what it writes, and is made elsewhere.
        for each in (*optimizer.variables, *variables):
            note_write(each)
        # The step itself may not set them.
        for each in map(_tf.value_of, variables):
            for shard in getattr(each, "shards", (each,)):
                shard.updated_in.update(_tf.graphs_being_traced())
        self.contribute(
            Contribution(optimizer, grads, list(variables), self.weight, method)
        )

    def _check_is_first(self, optimizer: keras.Optimizer) -> None:
        if self.applied:
            raise RoundError(
                f"the train_step applies gradients twice, by {self.applied[0]} and by "
                f"{optimizer.name}: under tfdist.Synchronous() a step ends where its "
                "gradients are averaged with those of the other workers, so what comes "
                "after it would see the old weights. Compute all gradients first, and "
                "apply them once (keras.optimizers.MultiOptimizer has an optimizer per "
                "layer), or use consistency=tfdist.Asynchronous()"
            )
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise RoundError(
                f"the train_step applies {optimizer.name} within a tf.cond, a "
                "tf.while_loop or a tf.function: under tfdist.Synchronous() every step "
                "gives its gradients to the round, once. Apply them in train_step itself "
                "(zeros in place of those to leave out: tf.where), or use "
                "consistency=tfdist.Asynchronous()"
            )

    def mask_weights(
        self, weigh: Callable[[str], Any], mask: tf.Tensor | None, by: str
    ) -> Nest:
        """Weights the batch by what the mask leaves of it, as its loss is a mean of that.

        Raises:
            RoundError: If two losses have different masks.
        """
        if mask is not None and by in _MEANS:
            if self._mask is not None and self._mask is not mask:
                raise RoundError(
                    "two losses have different masks, so that the batch counts "
                    "differently in the mean of each. Use one loss with a mask, or "
                    "consistency=tfdist.Asynchronous()"
                )
            self._mask = mask
            self.weight = tf.reduce_sum(tf.cast(mask, tf.float32))
        return weigh(by)
