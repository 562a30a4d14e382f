"""Callbacks that run at the beginning and at the end of epochs of `fit`."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdist._support.types import Logs
from tfdist.local_update.exchange import Exchange
from tfdist.local_update.mix import Mix
from tfdist.peers import callbacks


class EpochLogs(keras.callbacks.Callback):
    """Averages the logs of an epoch over all workers, and adds `received_bytes`.

    First of all callbacks, so that the others see the same logs on every worker, and
    decide alike. Logs are averaged if `is_mean`: workers that keep models of their own
    keep their logs, too. `mix` returns what mixes the models, once they are built.
    """

    def __init__(
        self, exchange: Exchange, is_mean: bool, mix: Callable[[], Mix]
    ) -> None:
        super().__init__()
        self._exchange = exchange
        self._is_mean = is_mean
        self._mix = mix
        self._before = 0
        self.epoch = 0
        self.is_last_epoch = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Notes which epoch this is."""
        self._before = self._exchange.received_bytes
        self._mix().begin_epoch()
        self.epoch = epoch
        self.is_last_epoch = epoch + 1 >= (self.params or {}).get("epochs", 0)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Replaces the logs by their means over the workers."""
        logs = {} if logs is None else logs
        self._mix().drain()
        if self._is_mean:
            # A log of the user's own train_step may be an array.
            mine = {n: float(each) for n, each in logs.items() if np.ndim(each) == 0}
            # A worker without rows in this epoch has no logs, and gets the others'.
            told = json.dumps(mine if self._mix().has_trained else {}).encode()
            found = self._exchange.gather(np.frombuffer(told, np.uint8)).values()
            logs.update(mean_by_name([json.loads(each.tobytes()) for each in found]))
        logs["received_bytes"] = self._exchange.received_bytes - self._before


def mean_by_name(logs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each log over those who have it.

    >>> mean_by_name([{"loss": 1.0}, {}, {"loss": 3.0, "top": 5.0}])
    {'loss': 2.0, 'top': 5.0}
    """
    names = dict.fromkeys(name for each in logs for name in each)
    return {
        name: float(np.mean([each[name] for each in logs if name in each]))
        for name in names
    }


class BeginRounds(keras.callbacks.Callback):
    """Begins rounds from what earlier callbacks have restored, then calls `then`."""

    def __init__(self, mix: Callable[[], Mix], then: Callable[[], None]) -> None:
        super().__init__()
        self._mix = mix
        self._then = then

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Notes the model as it is now."""
        self._mix().begin()
        self._then()


def of_fit(given: Any, workers: Any, first: EpochLogs, last: BeginRounds) -> Any:
    """Returns the callbacks for this worker's call of `fit`.

    Callbacks that write files run on the chief, and all workers start from its state.
    """
    chosen = callbacks.for_worker(given, workers)
    if isinstance(chosen, keras.callbacks.CallbackList):
        # The same list may come from an earlier `fit`, with ours in it.
        ours = EpochLogs | BeginRounds
        inside = [each for each in chosen.callbacks if not isinstance(each, ours)]
        chosen.callbacks = [first, *inside, last]
        for each in (first, last):
            each.set_model(chosen.model)
            each.set_params(chosen.params)
        return chosen
    return [first, *chosen, last]
