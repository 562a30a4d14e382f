"""The data and the loss of two regressions, for spark_mllib.py. NumPy only.

Linear regression: y = x·w + noise, and the mean squared error. Logistic regression: labels
0 and 1, with probability sigmoid(x·w), and the mean of the cross-entropy.
"""

from typing import NamedTuple

import numpy as np

REGRESSIONS = ("linear", "logistic")


class Data(NamedTuple):
    """Rows x, of shape `[rows, columns]`, and what to predict, of shape `[rows]`."""

    x: np.ndarray
    y: np.ndarray


def make_data(regression: str, rows: int, columns: int) -> Data:
    """Returns the same data for each contender."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)).astype("float32")
    predicted = x @ rng.normal(size=columns) / np.sqrt(columns / 4)
    if regression == "logistic":
        return Data(x, (rng.random(rows) < sigmoid(predicted)).astype("float32"))
    return Data(x, (predicted + 0.5 * rng.normal(size=rows)).astype("float32"))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Returns probabilities."""
    return 1 / (1 + np.exp(-logits))


def loss(regression: str, w: np.ndarray, data: Data) -> float:
    """Returns the loss of the weights, over all rows."""
    predicted = data.x.astype("float64") @ w
    if regression == "logistic":
        return float(np.mean(np.logaddexp(0, predicted) - data.y * predicted))
    return float(np.mean((predicted - data.y) ** 2))


def gradient(regression: str, w: np.ndarray, data: Data) -> np.ndarray:
    """Returns the gradient of the loss with respect to the weights."""
    predicted = data.x @ w
    if regression == "logistic":
        return data.x.T @ (sigmoid(predicted) - data.y) / len(data.y)
    return 2 * data.x.T @ (predicted - data.y) / len(data.y)


def least_loss(regression: str, data: Data) -> float:
    """Returns the smallest possible loss, found by Newton's method."""
    x = data.x.astype("float64")
    w = np.zeros(x.shape[1])
    for _ in range(10):
        slope = 2.0 * np.ones(len(x))
        if regression == "logistic":
            probability = sigmoid(x @ w)
            slope = probability * (1 - probability)
        hessian = x.T @ (slope[:, None] * x) / len(x)
        w -= np.linalg.solve(hessian, gradient(regression, w, Data(x, data.y)))
    return loss(regression, w, data)
