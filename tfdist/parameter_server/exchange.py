"""How often values move between the workers and the ps."""

import math
import operator
from dataclasses import dataclass


@dataclass(frozen=True)
class Every:
    """Exchanges values once in a number of steps, instead of in each.

    A worker pulls the variables, runs up to `steps` steps on its own copies, and pushes
    the sum of its changes. So a step costs a fraction of the messages and the bytes, and
    the workers see each other's progress later. Exact are, whatever `steps` is: the
    number of steps, the metrics, and the sum of the changes of each weight. What a step
    computes from its own value, such as a moving average, becomes that of the worker that
    pushed last: `ParameterServerStrategy.exchange_report()` lists these.

    Variables that a step looks up by row, and those used in a branch, a loop or a
    `tf.function` inside the step, still move in each step.

    Args:
        steps: The most steps between two exchanges, any integer type. With 1, every step
            pulls and pushes.

    Raises:
        TypeError: If `steps` is not an integer.
        ValueError: If it is less than 1.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        steps = _integer(self.steps)
        if steps is None:
            raise TypeError(
                "Every takes a number of steps as an integer, for example Every(5); "
                f"received {self.steps!r}, of type {type(self.steps).__name__}"
            )
        object.__setattr__(self, "steps", steps)
        if self.steps < 1:
            raise ValueError(
                f"Every takes a number of steps of at least 1; received {self.steps}"
            )

    @property
    def is_each_step(self) -> bool:
        """Whether each step reads and writes the variables on the ps."""
        return self.steps == 1


@dataclass(frozen=True)
class WhenChanged:
    """Exchanges the values of a block when they have changed enough.

    A block is a weight, or a shard of one. Each worker keeps the blocks that it reads and
    adds its updates to its own copy. A block moves, the worker's change to the ps and the
    value of the ps back, when the change since it last moved, of this worker and of all
    others, is larger than `threshold` x learning rate x the norm of the block, or when
    `max_age` steps have used it. So less moves where less is learned, and a smaller rate
    makes small changes count. After Gaia (Hsieh et al., NSDI 2017, section 5.2) and the
    scheduling of STRADS (Kim et al., EuroSys 2016), which looks at changes, too.

    Before anything else reads the weights, as at the end of an epoch, for a checkpoint or
    to evaluate, each worker sends what it has kept back. The slots of an optimizer stay
    with the worker until then, and become those of the worker that sends last. No change
    of a weight is lost, unless its worker is: up to `max_age` of its steps.

    Variables that a step looks up by row, and all that are not weights, such as counters,
    metrics and moving averages, still move in each step.

    Cost: a step takes two messages more to each ps than without it, and a worker keeps each
    weight twice, and its slots.

    Args:
        threshold: The change that is small, in learning rates times the norm of the block.
            With 0, each step reads and writes the variables on the ps.
        max_age: The most steps that use a block before it moves again.

    Raises:
        TypeError: If `threshold` is not a number, or `max_age` not an integer.
        ValueError: If `threshold` is negative or not finite, or `max_age` less than 1.
    """

    threshold: float
    max_age: int = 100

    def __post_init__(self) -> None:
        if not _is_number(self.threshold):
            raise TypeError(
                "WhenChanged takes a threshold as a number, for example WhenChanged(1.0); "
                f"received {self.threshold!r}, of type {type(self.threshold).__name__}"
            )
        object.__setattr__(self, "threshold", float(self.threshold))
        if not 0 <= self.threshold < math.inf:
            raise ValueError(
                "WhenChanged takes a finite threshold of at least 0; received "
                f"{self.threshold}"
            )
        max_age = _integer(self.max_age)
        if max_age is None:
            raise TypeError(
                "WhenChanged takes max_age as an integer, for example max_age=100; "
                f"received {self.max_age!r}, of type {type(self.max_age).__name__}"
            )
        object.__setattr__(self, "max_age", max_age)
        if max_age < 1:
            raise ValueError(
                f"WhenChanged takes a max_age of at least 1; received {max_age}"
            )

    @property
    def steps(self) -> int:
        """After how many steps a worker asks whether values move: each one."""
        return 1

    @property
    def is_each_step(self) -> bool:
        """Whether each step reads and writes the variables on the ps."""
        return self.threshold == 0


def check_exchange(exchange: object) -> None:
    """Checks the argument of a strategy.

    Raises:
        TypeError: If it is neither an `Every` nor a `WhenChanged`.
    """
    if not isinstance(exchange, Every | WhenChanged):
        raise TypeError(
            "exchange says how often values move, for example tfdist.Every(5) or "
            f"tfdist.WhenChanged(1.0); received {exchange!r}"
        )


def _integer(value: object) -> int | None:
    """Returns an integer of any type; NumPy's booleans count as little as Python's."""
    if type(value).__name__ in ("bool", "bool_"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _is_number(value: object) -> bool:
    if type(value).__name__ in ("bool", "bool_") or isinstance(value, str | bytes):
        return False
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True
