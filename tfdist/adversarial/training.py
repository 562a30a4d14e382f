"""Adversarial training: a model that trains on what an attack makes of its examples."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.adversarial.evasion import Evasion
from tfdist.adversarial.loss import single_loss


class AdversarialTraining(keras.Model):
    """A model that predicts like another, and trains on adversarial examples alone.

    In each step, the attack moves the batch against the model as it is, and the loss is that
    of what it found. Whatever trains with `compute_loss` trains so: `fit`, and the clients of
    a federation. `evaluate`, `predict`, and the metrics of training see the examples as they
    are. Cost: one pass forward and backward per step of the attack, and one forward, on top
    of a step. Source: Madry et al., "Towards Deep Learning Models Resistant to Adversarial
    Attacks", ICLR 2018, section 2.

    Args:
        model: From inputs to predictions, built, with one input and one output. It shares
            its variables with this one: save it, not this one.
        attack: `FGSM`, `PGD`, or one of your own.
        seed: Of random starts.

    Raises:
        ValueError: If the model is not built. In `fit`, if there is no single loss.
    """

    def __init__(self, model: keras.Model, attack: Evasion, seed: int = 0) -> None:
        super().__init__(name=f"adversarial_{model.name}")
        if not model.built:
            raise ValueError(
                f"the model {model.name!r} is not built: give it a keras.Input, or call it "
                "once"
            )
        self.model = model
        self._attack = attack
        self._seeds = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns the model's predictions."""
        return self.model(inputs, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns the loss: in training, that of the adversarial examples."""
        if training:
            y_pred = self(self._perturbed(x, y), training=True)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _perturbed(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss_function = single_loss(self)

        def loss_of(inputs: tf.Tensor) -> tf.Tensor:
            return loss_function(y, self.model(inputs, training=False))

        seed = tf.cast(self._seeds.next(), tf.int32)
        return self._attack.perturbed(loss_of, x, seed)
