"""Admission rules for ids without a row, applied where the row would be created."""

from dataclasses import dataclass
from numbers import Real


@dataclass(frozen=True)
class CountFilter:
    """Admits an id once it was seen in `count` batches.

    Until then it reads zeros, and has no gradient. Counts are exact; each waiting id takes
    about 50 bytes on its ps. After a worker is lost, its batch may count twice.

    Args:
        count: At least 1; 1 admits every id at once.

    Raises:
        ValueError: If `count` is not a whole number of at least 1.
    """

    count: int

    def __post_init__(self) -> None:
        is_count = isinstance(self.count, int) and not isinstance(self.count, bool)
        if not is_count or not 1 <= self.count < 2**63:
            raise ValueError(
                "CountFilter takes the number of batches in which an id is seen before "
                "it gets a row: a whole number of at least 1, and below 2**63; received "
                f"{self.count!r}"
            )


@dataclass(frozen=True)
class ProbabilityFilter:
    """Admits an id with a probability each time that a batch has it.

    An id that is seen often soon has a row, and it costs no memory to wait: an id waits for
    1 / probability batches on average.

    Args:
        probability: More than 0, and at most 1.

    Raises:
        ValueError: If it is not.
    """

    probability: float

    def __post_init__(self) -> None:
        is_number = isinstance(self.probability, Real)
        if not is_number or not 0.0 < self.probability <= 1.0:
            raise ValueError(
                "ProbabilityFilter takes the probability with which a batch that has an "
                f"id creates its row: in (0, 1]; received {self.probability!r}"
            )


Admission = CountFilter | ProbabilityFilter | None


def admission_of(value: object) -> Admission:
    """Checks the argument `admission`.

    Raises:
        TypeError: If it is no filter.
    """
    if value is None or isinstance(value, CountFilter | ProbabilityFilter):
        return value
    raise TypeError(
        "admission must be tfdist.embedding.CountFilter(n), "
        "tfdist.embedding.ProbabilityFilter(p), or None, which gives every id a row when "
        f"it is first seen; received {value!r}"
    )
