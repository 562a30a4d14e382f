"""Arguments for how often values move between the workers and the ps."""

import math
import numbers
from dataclasses import dataclass

from tfdist.consistency.numbers import count_of


@dataclass(frozen=True)
class ExchangeEvery:
    """Exchanges values once in a number of steps, instead of in each.

    A worker pulls the variables, runs up to `steps` steps on its own copies, and pushes
    the sum of its changes. So a step costs a fraction of the messages and the bytes, and
    the workers see each other's progress later. These stay exact for any `steps`: the
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
        steps = count_of("ExchangeEvery", "steps", self.steps, 1)
        object.__setattr__(self, "steps", steps)

    @property
    def is_each_step(self) -> bool:
        """True if each step reads and writes the variables on the ps."""
        return self.steps == 1


@dataclass(frozen=True)
class WhenChanged:
    """Exchanges the values of a block when they have changed enough.

    A block is a weight, or a shard of one. Each worker keeps the blocks that it reads and
    adds its updates to its own copy. A block moves, the worker's change to the ps and the
    value of the ps back, when the change since it last moved, of this worker and of all
    others, is larger than `threshold` x learning rate x the norm of the block, or when
    `max_age` steps have used it. So less moves where less is learned, and a smaller rate
    makes small changes count. After the significance filter of Gaia (Hsieh et al., NSDI
    2017) and the scheduling of STRADS (Kim et al., EuroSys 2016), which looks at changes,
    too.

    Before anything else reads the weights, as at the end of an epoch, for a checkpoint or
    to evaluate, each worker sends what it has kept back. The slots of an optimizer stay
    with the worker until then, and become those of the worker that sends last. No change
    of a weight is lost, unless its worker is: up to `max_age` of its steps.

    In a table, each row that a step looks up is a block, if the step uses the table by
    rows alone, it has at most 256 MiB, and which rows are looked up can be computed
    twice. All that are not weights, such as counters, metrics and moving averages, move
    in each step.

    Cost: a step takes two messages more to each ps than without it. A worker keeps each
    weight twice, and its slots; of a table all rows, though few may be used.

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
        threshold = self.threshold
        if not isinstance(threshold, numbers.Real) or isinstance(threshold, bool):
            raise TypeError(
                "WhenChanged takes a threshold as a number, for example WhenChanged(1.0); "
                f"received {threshold!r}, of type {type(threshold).__name__}"
            )
        if not 0 <= threshold < math.inf:
            raise ValueError(
                "WhenChanged takes a finite threshold of at least 0; received "
                f"{threshold}"
            )
        object.__setattr__(self, "threshold", float(threshold))
        max_age = count_of("WhenChanged", "max_age", self.max_age, 1)
        object.__setattr__(self, "max_age", max_age)

    @property
    def steps(self) -> int:
        """After how many steps a worker asks whether values move: each one."""
        return 1

    @property
    def is_each_step(self) -> bool:
        """True if each step reads and writes the variables on the ps."""
        return self.threshold == 0


def keeps_values(exchange: ExchangeEvery | WhenChanged) -> bool:
    """Returns True if workers keep values from one message to the next."""
    return isinstance(exchange, WhenChanged) and not exchange.is_each_step


def check_exchange(exchange: object) -> None:
    """Checks the argument of a strategy.

    Raises:
        TypeError: If it is neither an `ExchangeEvery` nor a `WhenChanged`.
    """
    if not isinstance(exchange, ExchangeEvery | WhenChanged):
        raise TypeError(
            "exchange says how often values move, for example tfdist.ExchangeEvery(5) or "
            f"tfdist.WhenChanged(1.0); received {exchange!r}"
        )
