"""Examples for the recommender: whether a user has clicked on an item with some tags.

Nothing is stored: every process draws the same examples, from one seed.
"""

from collections.abc import Callable

import numpy as np
from peer_programs.control import Task
from peer_programs.data import Score, shuffled_batches

ROWS, WIDTH, TAGS = 1_000_000, 16, 20
# For how many a table that grows has room.
MAX_ROWS = 20 * ROWS
# Rows begin between minus and plus this number.
INITIAL_RANGE = 0.05
_TRAIN, _TEST = 100 * 512, 10 * 512


def _zipf(random: np.random.RandomState, size: tuple[int, ...]) -> np.ndarray:
    """Draws ids whose frequencies are as 1, 1/2, 1/3...; frequent ids are scattered."""
    total = np.cumsum(1 / np.arange(1.0, ROWS + 1))
    ranks = np.searchsorted(total, random.uniform(0, total[-1], size))
    return random.permutation(ROWS)[ranks]


class Clicks:
    """What a task trains on.

    Args:
        task: Its index chooses the order of the examples.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        random = np.random.RandomState(2)
        count = _TRAIN + _TEST
        self._users = _zipf(random, (count,))
        self._tags = _zipf(random, (count, TAGS))
        of_users, of_tags = random.normal(size=(2, ROWS))
        taste = of_users[self._users] + of_tags[self._tags].sum(axis=1) / TAGS**0.5
        self._labels = (random.logistic(size=count) < 2 * taste).astype(np.int32)

    def batches(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns an epoch: int64 users `[n, batch]` and tags `[n, batch, 20]`, int32 labels.

        Batches are put together ahead of time, as those of images.
        """
        rows = shuffled_batches(self._task, _TRAIN)
        return self._users[rows], self._tags[rows], self._labels[rows]

    def score(self, predict: Callable[..., np.ndarray]) -> Score:
        """Returns the loss on all examples, with the weights as they are.

        Args:
            predict: From users and tags to logits of shape `[examples, 1]`.
        """
        parts = np.split(np.arange(_TRAIN + _TEST), 11)
        logits = np.concatenate(
            [predict(self._users[part], self._tags[part]) for part in parts]
        )
        logits = logits[:, 0].astype(np.float64)
        loss = np.logaddexp(0, logits) - logits * self._labels
        right = (logits > 0) == self._labels
        return Score(
            float(loss[_TRAIN:].mean()),
            float(right[_TRAIN:].mean()),
            float(loss[:_TRAIN].mean()),
        )
