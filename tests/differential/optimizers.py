"""The optimizers of programs, by name."""

from collections.abc import Callable

import keras
from keras import optimizers as o

# A gradient that is zero but for rounding makes no step.
DAMPED = {"epsilon": 1e-3}

_MAKE: dict[str, Callable[[], o.Optimizer]] = {
    "sgd": lambda: o.SGD(0.05),
    "momentum": lambda: o.SGD(0.02, momentum=0.9),
    "nesterov": lambda: o.SGD(0.02, momentum=0.9, nesterov=True),
    "adam": lambda: o.Adam(0.01, **DAMPED),
    "amsgrad": lambda: o.Adam(0.01, amsgrad=True, **DAMPED),
    "adamw": lambda: o.AdamW(0.01, weight_decay=0.02, **DAMPED),
    "adamax": lambda: o.Adamax(0.01, **DAMPED),
    "nadam": lambda: o.Nadam(0.01, **DAMPED),
    "rmsprop": lambda: o.RMSprop(0.01, momentum=0.5, **DAMPED),
    "centered_rmsprop": lambda: o.RMSprop(0.01, centered=True, **DAMPED),
    "adagrad": lambda: o.Adagrad(0.02, **DAMPED),
    "adadelta": lambda: o.Adadelta(0.5, **DAMPED),
    "ftrl": lambda: o.Ftrl(0.05),
    "lamb": lambda: o.Lamb(0.01, **DAMPED),
    "adafactor": lambda: o.Adafactor(0.01, epsilon_1=1e-6),
    "scheduled": lambda: o.SGD(o.schedules.ExponentialDecay(0.05, 3, 0.8)),
    "clipnorm": lambda: o.Adam(0.01, clipnorm=0.3, **DAMPED),
    "global_clipnorm": lambda: o.SGD(0.05, global_clipnorm=0.3),
    "clipvalue": lambda: o.SGD(0.05, clipvalue=0.1),
    "averaged": lambda: o.SGD(0.05, use_ema=True, ema_momentum=0.8),
    "decayed": lambda: o.SGD(0.05, momentum=0.5, weight_decay=0.01),
}


def optimizer_of(name: str) -> keras.optimizers.Optimizer:
    return _MAKE[name]()
