"""Workloads of peers.py, as data."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """What every contender trains.

    Attributes:
        model: `mlp`, `cnn`, `deep` or `recommender`.
        optimizer: `sgd`, `adam` or `adagrad`.
        learning_rate: Of the optimizer.
        batch_size: Examples per step.
        systems: The contenders that can train it; empty for all of them.
        grain: What each worker's number of steps is a multiple of: every number of steps per
            call, and Paddle's steps per file.
    """

    model: str
    optimizer: str
    learning_rate: float
    batch_size: int = 64
    systems: tuple[str, ...] = ()
    grain: int = 100

    @property
    def has_images(self) -> bool:
        """Whether it trains on the images of a file."""
        return self.model != "recommender"


def limit(link: str, num_ps: int, num_workers: int, weights: int) -> float:
    """Returns how many steps per second the links allow, of all workers together.

    A step pulls all weights and pushes as much, so each ps sends and receives its share.

    Args:
        link: The rate of the link of each process, each way, such as `200mbit`.
        num_ps: The number of ps, which have a link each.
        num_workers: The number of workers.
        weights: The bytes of all weights.

    Raises:
        ValueError: If the rate is not a number of mbit or gbit.
    """
    found = re.fullmatch(r"([\d.]+)([mg])bit", link)
    if not found:
        raise ValueError(
            f"a link has a rate such as 200mbit or 1gbit; received {link!r}"
        )
    bits = float(found[1]) * {"m": 1e6, "g": 1e9}[found[2]]
    return bits / 8 * min(num_ps, num_workers) / weights


_GROWING = ("tfdist-x10", "tfdist-growing-x10", "tfdist-growing-new-x10")
_ON_ROWS = (
    *("paddle", "paddle-new", "tfdist-x1", "tfdist-x100", *_GROWING),
    *("tfdist-every5", "tfdist-every10", "keras-x1", "keras-x100"),
)
_ALONE = tuple(
    f"{library}-{what}"
    for what in ("lookups", "sgd", "adagrad")
    for library in ("tfdist", "tfra")
)
_TFDIST = ("tfdist-x1", "tfdist-x10", "tfdist-bfloat16", "keras-x1")
WORKLOADS = {
    "mlp-sgd": Workload("mlp", "sgd", 0.05),
    "mlp-adam": Workload("mlp", "adam", 1e-3),
    "cnn-sgd": Workload("cnn", "sgd", 0.05),
    "cnn-adam": Workload("cnn", "adam", 1e-3),
    "deep-sgd": Workload("deep", "sgd", 0.01, 16, _TFDIST, 10),
    "recommender": Workload("recommender", "sgd", 0.1, 512, _ON_ROWS),
    "recommender-adagrad": Workload("recommender", "adagrad", 0.01, 512, _GROWING),
    "rows": Workload("recommender", "sgd", 0.1, 512, _ALONE),
}
"""By the name that `--workloads` takes."""
