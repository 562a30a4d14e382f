"""What becomes of a model that was trained on while it was being mixed."""

import numpy as np


def after_overlap(
    model: np.ndarray, snapshot: np.ndarray, mixed: np.ndarray, num_trainable: int
) -> np.ndarray:
    """Returns the mixed model, with the local progress since its snapshot on top.

    Trainable weights become mixed + (model - snapshot): CoCoD-SGD (Shen et al., "Faster
    Distributed Deep Net Training: Computation and Communication Decoupled Stochastic
    Gradient Descent", IJCAI 2019, algorithm 1). As a doubly stochastic mix keeps the mean
    of all snapshots, this keeps the mean of all models.

    Statistics move by the same difference, but not beyond the two values that they lie
    between: a variance must not become negative. The first `num_trainable` elements are
    trainable weights.

    >>> model, snapshot, mixed = np.array([3.0, 1.0]), np.array([2.0, 5.0]), np.zeros(2)
    >>> after_overlap(model, snapshot, mixed, num_trainable=1)
    array([1., 0.])
    """
    moved = mixed + (model - snapshot)
    rest = slice(num_trainable, None)
    low, high = np.minimum(mixed, model), np.maximum(mixed, model)
    moved[rest] = np.clip(moved[rest], low[rest], high[rest])
    return moved
