"""The seam between Keras and a strategy: the driver that `fit` asks.

Keras 3 has no hook for a strategy that trains in its own way: its trainer builds the
train, test and predict functions around `strategy.run` and calls them in this process.
`tfdist.keras.hooks` replaces the few methods in which that is decided, once. Each of
them asks the `fit_driver` of the model's strategy, which usually derives from
`tfdist.keras.default_driver.DefaultDriver`; under a strategy that has none, Keras does
what it always does.
"""

from typing import Any

import tensorflow as tf

_METHODS = (
    "train_function",
    "test_function",
    "predict_function",
    "data",
    "build",
    "running",
    "waiting",
    "steps",
    "storing",
    "join",
)
"""The methods that the patches call. They read `in_unison` and `calls` too."""


def driver_of(strategy: tf.distribute.Strategy) -> Any:
    """Returns a strategy's driver, with all methods, or None if Keras trains alone."""
    driver = getattr(strategy, "fit_driver", None)
    if driver is None:
        return None
    if missing := [name for name in _METHODS if not hasattr(driver, name)]:
        raise TypeError(
            f"{type(strategy).__name__}.fit_driver, a {type(driver).__name__}, lacks "
            f"{', '.join(missing)}. Derive it from "
            "tfdist.keras.default_driver.DefaultDriver, which has all of them"
        )
    return driver
