"""The seam between Keras and a strategy: the driver that `fit` asks.

Keras 3 has no hook for a strategy that trains in its own way: its trainer builds the
train, test and predict functions around `strategy.run` and calls them in this process.
`tfdist.keras.hooks` replaces the few methods in which that is decided, once. Each of
them asks the `fit_driver` of the model's strategy; under a strategy that has none,
Keras does what it always does.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

Logs = dict[str, Any]


class FitDriver(Protocol):
    """How a strategy trains Keras models.

    A strategy supplies its driver as the attribute `fit_driver`.
    `tfdist.keras.default_driver.DefaultDriver` implements every method, so that a driver
    overrides only what it does differently, and installs the patches of Keras.

    Attributes:
        in_unison: Whether all replicas take part in every step. If so, the logs of a
            step cover everything since the epoch began, and Keras shows them as the
            epoch's. If not, Keras reads the metrics at the end of each epoch.
    """

    in_unison: bool

    def train_function(self, model: Any) -> Callable[[Iterator[Any]], Logs]:
        """Returns the function that runs the next `steps_per_execution` train steps.

        Keras calls it with what iterating over `data` yields, or, in `train_on_batch`,
        with an iterator over one batch. It returns logs, or raises `StopIteration` at
        the end of the data. `tfdist.keras.functions.StepFunction` tells the two apart.
        """
        ...

    def test_function(self, model: Any) -> Callable[[Iterator[Any]], Logs]:
        """Returns the same for the model's `test_step`."""
        ...

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """Returns the function that maps a list of batches to their outputs."""
        ...

    def data(self, adapter: Any) -> Any:
        """Returns the batches of one call of `fit`, `evaluate` or `predict`.

        Args:
            adapter: Keras's data adapter, which has `get_tf_dataset` and `num_batches`.

        Returns:
            A `tf.data.Dataset`, or another iterable with an `element_spec`. Each epoch
            iterates over it again. If it has an attribute `num_batches`, that replaces
            the adapter's number; None means unknown.
        """
        ...

    def build(self, model: Any, element_spec: Any) -> None:
        """Creates the variables of a model and its optimizer before the first step.

        Args:
            model: The Keras model.
            element_spec: The type specs of a batch, or the batch itself.
        """
        ...

    def running(
        self, model: Any, method: str, arguments: dict[str, Any]
    ) -> contextlib.AbstractContextManager[Any]:
        """Surrounds a call of `fit`, `evaluate` or `predict`: start, end and errors.

        Args:
            model: The Keras model.
            method: "fit", "evaluate" or "predict".
            arguments: The arguments of the call by name. The driver may change them.
        """
        ...

    def steps(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Passes on the steps of an epoch, each `(first, last, data)`.

        Args:
            epoch_iterator: Keras's `TFEpochIterator`.
            steps: The steps as Keras enumerates them. A driver that resumes a training
                run skips the ones that were done before.
        """
        ...

    def storing(
        self, model: Any, operation: str
    ) -> contextlib.AbstractContextManager[bool]:
        """Surrounds a save, an export or a load. Yields whether this process does it.

        Args:
            model: The Keras model, or another object that is saved.
            operation: "save", "export", "load", or "checkpoint" for `tf.train`'s.
        """
        ...

    def join(self) -> None:
        """Waits for all steps in flight. Raises the error of one that failed."""
        ...


_METHODS = tuple(name for name in vars(FitDriver) if not name.startswith("_"))


def driver_of(strategy: Any) -> FitDriver | None:
    """Returns the driver that a strategy supplies, or None if Keras trains alone.

    Raises:
        TypeError: If the driver lacks a method.
    """
    driver: FitDriver | None = getattr(strategy, "fit_driver", None)
    if driver is None:
        return None
    if missing := [name for name in _METHODS if not hasattr(driver, name)]:
        raise TypeError(
            f"{type(strategy).__name__}.fit_driver, a {type(driver).__name__}, lacks "
            f"{', '.join(missing)}. Derive it from "
            "tfdist.keras.default_driver.DefaultDriver, which has all of them"
        )
    return driver
