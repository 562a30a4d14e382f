"""Selection of callbacks per worker, and the start of all from the chief's state."""

from typing import Any

import keras

from tfdist._support.types import Logs
from tfdist.peers import agreement
from tfdist.peers.peers import Peers

# These only write files or send reports, which one process should do once. All others run
# on every worker: one that stops training on the chief alone would leave the rest waiting.
_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def for_worker(callbacks: Any, peers: Peers, *ours: Any) -> Any:
    """Returns the callbacks of `fit` that this worker runs.

    Callbacks that write files run on the chief. So does `BackupAndRestore`: the chief
    reads its backup, and the others get the weights and the epoch from the chief.
    `ours` come after the user's, on every worker.
    """
    last = [*ours, StartAsTheChief(peers)]
    if isinstance(callbacks, keras.callbacks.CallbackList):
        if not peers.is_chief:
            callbacks.callbacks = _readers(callbacks.callbacks)
        for each in last:
            callbacks.append(each)
        return callbacks
    given = keras.tree.flatten(callbacks) if callbacks else []
    return [*(given if peers.is_chief else _readers(given)), *last]


def _readers(callbacks: list[keras.callbacks.Callback]) -> list[Any]:
    return [each for each in callbacks if not isinstance(each, _WRITERS)]


def resume_at(model: keras.Model, epoch: int | None) -> None:
    """Makes `fit` continue in an epoch: called while it calls `on_train_begin`.

    With None, the next `fit` begins as it is told.
    """
    model._initial_epoch = epoch


class StartAsTheChief(keras.callbacks.Callback):
    """Copies to every worker the chief's variables and first epoch when `fit` starts.

    A callback, and the last one, because those before it may restore a backup, on the
    chief alone.

    Cost: each variable of the model and the optimizer once over the network.
    """

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self._peers = peers

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Copies the state that earlier callbacks may have restored."""
        agreement.check_model(self.model, self._peers)
        copy_from_chief(self.model, self._peers)
        epoch = self._peers.gather_numbers([self.model._initial_epoch or 0])
        self.model._initial_epoch = int(epoch[0, 0])


def copy_from_chief(model: keras.Model, peers: Peers) -> None:
    """Sets the variables of a model and of its optimizer to those of the chief."""
    optimizer = model.optimizer
    variables = [*model.variables, *(optimizer.variables if optimizer else ())]
    peers.copy_from_chief(list({id(each): each for each in variables}.values()))
