"""Fused kernels of TensorFlow that compute a Keras optimizer's update.

A fused kernel updates a weight and its slots in one operation, under their locks. It
may replace Keras's operations only where both compute the same formula. Some do not:

| optimizer                   | why Keras's own operations stay                        |
| --------------------------- | ------------------------------------------------------ |
| `Adagrad`, `epsilon > 0`    | Keras adds epsilon within the square root, the kernel  |
|                             | after it                                               |
| `RMSprop`, `momentum == 0`  | the kernel needs a slot for the momentum               |
| `Ftrl`, `beta > 0`          | the kernel has no beta                                 |
| a decay too close to 1      | Keras rounds `1 - decay`, the kernel subtracts rounded |
|                             | numbers; see `MAX_ROUNDING`                            |
| any other                   | there is no kernel                                     |
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import keras
import numpy as np

# Relative, of `1 - decay`. With float32, 0.999 is within it (5e-5), and 0.9999 is not.
MAX_ROUNDING = 1e-4
# The precisions in which each step of Keras's computation is rounded as in the kernel.
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Kernel:
    """A fused kernel, and its arguments.

    Attributes:
        op: The name in `tf.raw_ops`.
        slots: The optimizer's slots by argument, one per weight.
        numbers: Numbers of the weight's dtype, by argument.
        decays: The numbers that are subtracted from 1.
        powers: Bases of powers with the number of this step, which counts from 1, by
            argument.
        flags: Attributes of the operation, by argument.
        learning_rate: The argument for the learning rate.
        gradient: The argument for the gradient.
    """

    op: str
    slots: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    decays: Sequence[str] = ()
    powers: Mapping[str, float] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    learning_rate: str = "lr"
    gradient: str = "grad"


def kernel_for(optimizer: keras.Optimizer, dtype: str) -> Kernel | None:
    """Returns the kernel of one of Keras's own optimizers, not a derived one, or None."""
    rule = RULES.get(type(optimizer).__name__)
    kernel = rule(optimizer) if rule and dtype in DTYPES else None
    # `fused_update` makes constants of these, which a variable or a schedule is not.
    if kernel is None or not all(isinstance(n, Real) for n in kernel.numbers.values()):
        return None
    decays = (float(kernel.numbers[name]) for name in kernel.decays)
    return kernel if all(_is_subtracted_well(d, dtype) for d in decays) else None


def _is_subtracted_well(decay: float, dtype: str) -> bool:
    """Returns True if `1 - decay` is about the same, rounded before or after."""
    rounded = np.dtype(dtype).type
    subtracted = float(rounded(1) - rounded(decay))
    return abs(subtracted - (1 - decay)) <= MAX_ROUNDING * abs(1 - decay)


def _sgd(optimizer: keras.Optimizer) -> Kernel:
    if optimizer.momentum == 0:
        return Kernel(
            "ResourceApplyGradientDescent", learning_rate="alpha", gradient="delta"
        )
    return Kernel(
        "ResourceApplyKerasMomentum",
        slots={"accum": optimizer.momentums},
        numbers={"momentum": optimizer.momentum},
        flags={"use_nesterov": bool(optimizer.nesterov)},
    )


def _adam(optimizer: keras.Optimizer) -> Kernel:
    slots = {"m": optimizer._momentums, "v": optimizer._velocities}
    if optimizer.amsgrad:
        slots["vhat"] = optimizer._velocity_hats
    return Kernel(
        "ResourceApplyAdamWithAmsgrad" if optimizer.amsgrad else "ResourceApplyAdam",
        slots=slots,
        numbers={
            "beta1": optimizer.beta_1,
            "beta2": optimizer.beta_2,
            "epsilon": optimizer.epsilon,
        },
        decays=("beta1", "beta2"),
        powers={"beta1_power": optimizer.beta_1, "beta2_power": optimizer.beta_2},
    )


def _adamax(optimizer: keras.Optimizer) -> Kernel:
    return Kernel(
        "ResourceApplyAdaMax",
        slots={"m": optimizer._m, "v": optimizer._u},
        numbers={
            "beta1": optimizer.beta_1,
            "beta2": optimizer.beta_2,
            "epsilon": optimizer.epsilon,
        },
        # The kernel multiplies by beta2 and subtracts only beta1 from 1.
        decays=("beta1",),
        powers={"beta1_power": optimizer.beta_1},
    )


def _rmsprop(optimizer: keras.Optimizer) -> Kernel | None:
    if not optimizer.momentum > 0:
        return None
    slots = {"ms": optimizer._velocities, "mom": optimizer._momentums}
    if optimizer.centered:
        slots["mg"] = optimizer._average_gradients
    centered = optimizer.centered
    return Kernel(
        "ResourceApplyCenteredRMSProp" if centered else "ResourceApplyRMSProp",
        slots=slots,
        numbers={
            "rho": optimizer.rho,
            "momentum": optimizer.momentum,
            "epsilon": optimizer.epsilon,
        },
        decays=("rho",),
    )


def _adadelta(optimizer: keras.Optimizer) -> Kernel:
    return Kernel(
        "ResourceApplyAdadelta",
        slots={
            "accum": optimizer._accumulated_grads,
            "accum_update": optimizer._accumulated_delta_vars,
        },
        numbers={"rho": optimizer.rho, "epsilon": optimizer.epsilon},
        decays=("rho",),
    )


def _adagrad(optimizer: keras.Optimizer) -> Kernel | None:
    if optimizer.epsilon != 0:
        return None
    return Kernel(
        "ResourceApplyAdagradV2",
        slots={"accum": optimizer._accumulators},
        numbers={"epsilon": optimizer.epsilon},
    )


def _ftrl(optimizer: keras.Optimizer) -> Kernel | None:
    if optimizer.beta != 0:
        return None
    return Kernel(
        "ResourceApplyFtrlV2",
        slots={"accum": optimizer._accumulators, "linear": optimizer._linears},
        numbers={
            "l1": optimizer.l1_regularization_strength,
            "l2": optimizer.l2_regularization_strength,
            "l2_shrinkage": optimizer.l2_shrinkage_regularization_strength,
            "lr_power": optimizer.learning_rate_power,
        },
    )


RULES: Mapping[str, Callable[[keras.Optimizer], Kernel | None]] = {
    "SGD": _sgd,
    "Adam": _adam,
    # Keras decays the weights before the update, apart from it.
    "AdamW": _adam,
    "Adamax": _adamax,
    "RMSprop": _rmsprop,
    "Adadelta": _adadelta,
    "Adagrad": _adagrad,
    "Ftrl": _ftrl,
}
"""Rules for kernels by the name of a class in `keras.optimizers`."""
