"""The chief of spark_mllib.py: trains a regression in a way of the linear predictor.

Each line of input is a request, and each answer a line of JSON. A request is answered
after a pass that is not timed, from weights of 0.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from peer_programs.regression import REGRESSIONS, Data, gradient, loss, make_data

import tfdist

LEARNING_RATES = {"linear": 0.01, "logistic": 0.1}
POLICIES = {
    "synchronous": tfdist.Synchronous(),
    "bounded": tfdist.BoundedStaleness(4),
    "asynchronous": tfdist.Asynchronous(),
}

Step = Callable[[np.ndarray, Data], np.ndarray]


class Ways:
    """Every way to train, on one cluster.

    Args:
        rows: The number of examples.
        columns: The length of the weights.
        batch_size: Examples per update.
    """

    def __init__(self, rows: int, columns: int, batch_size: int) -> None:
        self._strategy = tfdist.ParameterServerStrategy()
        self._columns, self._batch_size = columns, batch_size
        self._data = {each: make_data(each, rows, columns) for each in REGRESSIONS}
        self._models = {
            (regression, how): self._model(regression)
            for regression in REGRESSIONS
            for how in POLICIES
        }

    def _model(self, regression: str) -> keras.Model:
        logistic = regression == "logistic"
        with self._strategy.scope():
            f = keras.layers.Dense(1, "sigmoid" if logistic else None, use_bias=False)
            model = keras.Sequential([keras.Input((self._columns,)), f])
            model.compile(
                keras.optimizers.SGD(LEARNING_RATES[regression]),
                "binary_crossentropy" if logistic else "mse",
            )
        return model

    def answer(self, how: str, regression: str, passes: int) -> dict[str, Any]:
        """Returns the seconds and the loss of each pass."""
        start = self._by_fit if how in POLICIES else self._by_hand
        run, weights = start(how, regression)
        run()
        weights(np.zeros(self._columns, "float32"))
        seconds, losses = [], []
        for _ in range(passes):
            began = time.monotonic()
            run()
            seconds.append(time.monotonic() - began)
            losses.append(loss(regression, weights(), self._data[regression]))
        return {"seconds": seconds, "losses": losses}

    def _by_fit(self, how: str, regression: str) -> tuple[Any, Any]:
        self._strategy.consistency = POLICIES[how]
        model, data = self._models[regression, how], self._data[regression]
        # A round has a batch per worker: as many updates as without rounds.
        share = self._strategy.num_workers if how == "synchronous" else 1
        batch_size = self._batch_size // share

        def run() -> None:
            model.fit(*data, batch_size=batch_size, shuffle=False, verbose=0)

        def weights(new: np.ndarray | None = None) -> np.ndarray:
            if new is not None:
                model.set_weights([new[:, None]])
            return model.get_weights()[0][:, 0]

        return run, weights

    def _by_hand(self, how: str, regression: str) -> tuple[Any, Any]:
        w = np.zeros(self._columns, "float32")
        data, parts = self._data[regression], self._strategy.num_workers

        def map_reduce(w: np.ndarray, batch: Data) -> np.ndarray:
            pieces = zip(*(np.split(each, parts) for each in batch), strict=True)
            answers = [
                self._strategy.coordinator.schedule(
                    MAP_PART[regression], args=tuple(map(tf.constant, (w, *piece)))
                )
                for piece in pieces
            ]
            return np.mean([each.fetch() for each in answers], axis=0)

        def sequential(w: np.ndarray, batch: Data) -> np.ndarray:
            return gradient(regression, w, batch)

        step = {"map_reduce": map_reduce, "sequential": sequential}[how]

        def run() -> None:
            count = len(data.y) // self._batch_size
            for batch in zip(*(np.split(each, count) for each in data), strict=True):
                w[:] -= LEARNING_RATES[regression] * step(w, Data(*batch))

        def weights(new: np.ndarray | None = None) -> np.ndarray:
            if new is not None:
                w[:] = new
            return w

        return run, weights


@tf.function
def _linear(w: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    errors = 2 * (tf.linalg.matvec(x, w) - y)
    return tf.linalg.matvec(x, errors, transpose_a=True) / tf.cast(len(y), tf.float32)


@tf.function
def _logistic(w: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    errors = tf.sigmoid(tf.linalg.matvec(x, w)) - y
    return tf.linalg.matvec(x, errors, transpose_a=True) / tf.cast(len(y), tf.float32)


MAP_PART = {"linear": _linear, "logistic": _logistic}


def main(rows: int, columns: int, batch_size: int) -> None:
    """Answers requests until the input ends."""
    ways = Ways(rows, columns, batch_size)
    for line in sys.stdin:
        told = ways.answer(**json.loads(line))
        print(json.dumps(told), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
