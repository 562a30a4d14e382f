"""Training of Keras models under a strategy, with few changes to Keras."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.types import DataAdapter, EpochIterator, Logs, Nest, Stride
from tfdist.keras import building, hooks


class DefaultDriver:
    """Trains Keras models a step at a time, on the data of this process.

    A strategy supplies its driver as the attribute `fit_driver`. Its class overrides what
    it does differently. The least is `train_step_function`, and `test_step_function` and
    `predict_function` if its models can be evaluated and predict. Constructing a driver
    installs the patches of Keras.

    Attributes:
        in_unison: Whether all replicas take part in every step. If so, the logs of a
            step cover everything since the epoch began, and Keras shows them as the
            epoch's. If not, Keras reads the metrics at the end of each epoch.
        calls: How many calls that all workers make together this one has begun.

    Args:
        strategy: The strategy whose driver it is.
    """

    in_unison = False
    calls = 0

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy: Any = strategy
        hooks.install()

    def train_step_function(self, model: keras.Model) -> Callable[[Nest], Logs]:
        """Returns the function that runs one train step on a batch."""
        raise self._lacks("train_step_function", "does not train")

    def test_step_function(self, model: keras.Model) -> Callable[[Nest], Logs]:
        """Returns the function that runs one test step on a batch."""
        raise self._lacks("test_step_function", "does not evaluate (validation_data)")

    def predict_function(self, model: keras.Model) -> Callable[[list[Nest]], Nest]:
        """Returns the function that maps a list of batches to their outputs."""
        raise self._lacks("predict_function", "does not predict")

    def _lacks(self, method: str, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self.strategy).__name__} {what}: its driver, "
            f"{type(self).__name__}, has no {method}. Implement it there, or do "
            "without"
        )

    def train_function(self, model: keras.Model) -> Callable[[Iterator[Nest]], Logs]:
        """Returns the function that runs the next `steps_per_execution` train steps.

        Keras calls it with what iterating over `data` yields, or, in `train_on_batch`,
        with an iterator over one batch. It returns logs, or raises `StopIteration` at
        the end of the data. `tfdist.keras.functions.StepFunction` tells the two apart.
        """
        return _execution(model, self.train_step_function(model))

    def test_function(self, model: keras.Model) -> Callable[[Iterator[Nest]], Logs]:
        """Returns the same for the model's `test_step`."""
        return _execution(model, self.test_step_function(model))

    def data(self, adapter: DataAdapter) -> Any:
        """Returns the batches of one call of `fit`, `evaluate` or `predict`.

        Args:
            adapter: Keras's data adapter, which has `get_tf_dataset` and `num_batches`.

        Returns:
            A `tf.data.Dataset`, or another iterable with an `element_spec`. Each epoch
            iterates over it again. If it has an attribute `num_batches`, that replaces
            the adapter's number; None means unknown. Data that Keras cannot start again,
            such as a generator, is read on from its last iterator, unless that has an
            attribute `is_at_end` that is true.
        """
        return adapter.get_tf_dataset()

    def build(self, model: keras.Model, element_spec: Nest) -> None:
        """Creates the variables of a model and its optimizer before the first step.

        Args:
            model: The Keras model.
            element_spec: The type specs of a batch, or the batch itself.
        """
        step = building.step_of(model, building.stage())
        building.build(model, self.strategy, element_spec, step)

    def running(
        self, model: keras.Model, method: str, arguments: dict[str, Any]
    ) -> contextlib.AbstractContextManager[Any]:
        """Surrounds a call of `fit`, `evaluate` or `predict`: start, end and errors.

        Args:
            model: The Keras model.
            method: "fit", "evaluate" or "predict".
            arguments: The arguments of the call by name. The driver may change them.
        """
        validates = arguments.get("validation_data") is not None
        if method == "fit" and (validates or arguments.get("validation_split")):
            # Keras would find out after an epoch that it cannot.
            self.test_function(model)
        return contextlib.nullcontext()

    def waiting(self, wait: str) -> contextlib.AbstractContextManager[None]:
        """Surrounds `train_on_batch` and its kind, for which all workers may wait."""
        return contextlib.nullcontext()

    def steps(
        self, epoch_iterator: EpochIterator, steps: Iterator[Stride]
    ) -> Iterator[Any]:
        """Passes on the steps of an epoch, each `(first, last, data)`.

        Args:
            epoch_iterator: Keras's `TFEpochIterator`.
            steps: The steps as Keras enumerates them. A driver that resumes a training
                run skips the ones that were done before.
        """
        return steps

    def storing(
        self, model: keras.Model, operation: str
    ) -> contextlib.AbstractContextManager[bool]:
        """Surrounds a save, an export or a load. Yields whether this process does it.

        This one does, once no step is in flight.

        Args:
            model: The Keras model, or another object that is saved.
            operation: "save", "hdf5" for the old format, which has weights alone,
                "export", "archive" for an `ExportArchive`, "load", or "checkpoint" for
                `tf.train`'s.
        """
        self.join()
        return contextlib.nullcontext(True)

    def join(self) -> None:
        """Waits for all steps in flight; this driver has none.

        Raises the error of a step that failed.
        """


def _execution(
    model: keras.Model, step: Callable[[Nest], Logs]
) -> Callable[[Iterator[Nest]], Logs]:
    """Returns a function of `steps_per_execution` batches, as Keras counts them.

    A function that took one would leave the other batches of the epoch unread.
    """

    def run(batches: Iterator[Nest]) -> Logs:
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
