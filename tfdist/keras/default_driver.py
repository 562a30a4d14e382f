"""A base class for drivers, which changes as little of Keras as possible."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras import building, hooks
from tfdist.keras.driver import Logs


class DefaultDriver:
    """A driver that reads data in this process and runs a step at a time.

    A subclass implements `train_step_function`, and `test_step_function` and
    `predict_function` if its models can be evaluated and predict.

    Args:
        strategy: The strategy whose driver it is.
    """

    in_unison = False

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy: Any = strategy
        hooks.install()

    def train_step_function(self, model: Any) -> Callable[[Any], Logs]:
        """Returns the function that runs one train step on a batch."""
        raise self._lacks("train_step_function", "does not train")

    def test_step_function(self, model: Any) -> Callable[[Any], Logs]:
        """Returns the function that runs one test step on a batch."""
        raise self._lacks("test_step_function", "does not evaluate (validation_data)")

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """Returns the function that predicts."""
        raise self._lacks("predict_function", "does not predict")

    def _lacks(self, method: str, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self.strategy).__name__} {what}: its driver, "
            f"{type(self).__name__}, has no {method}. Implement it there, or do "
            "without"
        )

    def train_function(self, model: Any) -> Callable[[Iterator[Any]], Logs]:
        """Returns what runs `steps_per_execution` train steps, one after the other."""
        return _execution(model, self.train_step_function(model))

    def test_function(self, model: Any) -> Callable[[Iterator[Any]], Logs]:
        """Returns what runs `steps_per_execution` test steps, one after the other."""
        return _execution(model, self.test_step_function(model))

    def data(self, adapter: Any) -> Any:
        """Returns the dataset itself, read by this process."""
        return adapter.get_tf_dataset()

    def build(self, model: Any, element_spec: Any) -> None:
        """Builds the model in the scope of the strategy."""
        step = building.step_of(model, building.stage())
        building.build(model, self.strategy, element_spec, step)

    def running(
        self, model: Any, method: str, arguments: dict[str, Any]
    ) -> contextlib.AbstractContextManager[Any]:
        """Does nothing around a call, once it is sure that `fit` can validate."""
        validates = arguments.get("validation_data") is not None
        if method == "fit" and (validates or arguments.get("validation_split")):
            # Keras would find out after an epoch that it cannot.
            self.test_function(model)
        return contextlib.nullcontext()

    def steps(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Passes on every step."""
        return steps

    def storing(
        self, model: Any, operation: str
    ) -> contextlib.AbstractContextManager[bool]:
        """Lets this process save and load, after the steps in flight."""
        self.join()
        return contextlib.nullcontext(True)

    def join(self) -> None:
        """Waits for nothing: each step has finished when its function returns."""


def _execution(
    model: Any, step: Callable[[Any], Logs]
) -> Callable[[Iterator[Any]], Logs]:
    """Returns what takes `steps_per_execution` batches at a time, as Keras counts them.

    A function that took one would leave the other batches of the epoch unread.
    """

    def run(batches: Iterator[Any]) -> Logs:
        logs = None
        for _ in range(model.steps_per_execution):
            try:
                batch = next(batches)
            except StopIteration:
                break
            logs = step(batch)
            if not isinstance(logs, dict):
                raise TypeError(
                    f"a step function of a driver must return a dict of logs, such as "
                    f"{{'loss': loss}} or {{}}; received {logs!r}"
                )
        if logs is None:
            raise StopIteration
        return logs

    return run
