"""How often values move between the workers and the ps."""

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
        # NumPy's integers count too, and its booleans as little as Python's.
        try:
            steps = operator.index(self.steps)
        except TypeError:
            steps = None
        if steps is None or type(self.steps).__name__ in ("bool", "bool_"):
            raise TypeError(
                "Every takes a number of steps as an integer, for example Every(5); "
                f"received {self.steps!r}, of type {type(self.steps).__name__}"
            )
        object.__setattr__(self, "steps", steps)
        if self.steps < 1:
            raise ValueError(
                f"Every takes a number of steps of at least 1; received {self.steps}"
            )


def check_exchange(exchange: object) -> None:
    """Checks the argument of a strategy.

    Raises:
        TypeError: If it is not an `Every`.
    """
    if not isinstance(exchange, Every):
        raise TypeError(
            "exchange says how often values move, for example tfdist.Every(5); "
            f"received {exchange!r}"
        )
