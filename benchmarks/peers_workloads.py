"""Workloads of peers.py, as data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """What every contender trains.

    Attributes:
        model: `mlp`, `cnn` or `recommender`.
        optimizer: `sgd` or `adam`.
        learning_rate: Of the optimizer.
        batch_size: Examples per step.
        systems: The contenders that can train it; empty for all of them.
    """

    model: str
    optimizer: str
    learning_rate: float
    batch_size: int = 64
    systems: tuple[str, ...] = ()

    @property
    def has_images(self) -> bool:
        """Whether it trains on the images of a file."""
        return self.model != "recommender"


_ON_ROWS = (
    *("paddle", "tfdist-x1", "tfdist-x10", "tfdist-x100"),
    *("tfdist-every5", "tfdist-every10", "keras-x1", "keras-x100"),
)
WORKLOADS = {
    "mlp-sgd": Workload("mlp", "sgd", 0.05),
    "mlp-adam": Workload("mlp", "adam", 1e-3),
    "cnn-sgd": Workload("cnn", "sgd", 0.05),
    "cnn-adam": Workload("cnn", "adam", 1e-3),
    "recommender": Workload("recommender", "sgd", 0.1, 512, _ON_ROWS),
}
"""By the name that `--workloads` takes."""
