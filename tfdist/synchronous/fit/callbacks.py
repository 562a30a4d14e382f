"""Which callbacks run on which worker, and how all of them start from the same."""

from typing import Any

import keras

from tfdist.synchronous.fit import agreement

# Each writes files and does nothing else.
_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def for_worker(callbacks: Any, strategy: Any) -> Any:
    """Returns the callbacks of `fit` that this worker runs.

    Those that write files run on the chief. `BackupAndRestore` is one: the chief reads
    its backup, and the others get its weights and its epoch from the chief.

    Args:
        callbacks: What `fit` was given: None, a callback, a list or a `CallbackList`.
        strategy: The `MultiWorkerMirroredStrategy`.
    """
    start = StartAsTheChief(strategy)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if not strategy.is_chief:
            callbacks.callbacks = _readers(callbacks.callbacks)
        callbacks.append(start)
        return callbacks
    given = keras.tree.flatten(callbacks) if callbacks else []
    return [*(given if strategy.is_chief else _readers(given)), start]


def _readers(callbacks: list[Any]) -> list[Any]:
    return [each for each in callbacks if not isinstance(each, _WRITERS)]


class StartAsTheChief(keras.callbacks.Callback):
    """Gives every worker the chief's variables and first epoch, before `fit` begins.

    Cost: each variable of the model and the optimizer once over the network.

    Args:
        strategy: The `MultiWorkerMirroredStrategy`.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self._strategy = strategy

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Copies what the callbacks before this one may have restored."""
        model = self.model
        agreement.check_model(model, self._strategy)
        optimizer = model.optimizer
        variables = [*model.variables, *(optimizer.variables if optimizer else ())]
        unique = list({id(each): each for each in variables}.values())
        self._strategy.copy_from_chief(unique)
        epoch = self._strategy.extended.gather_numbers([model._initial_epoch or 0])
        model._initial_epoch = int(epoch[0, 0])
