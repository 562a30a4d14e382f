"""Trains in rounds, and loses the chief once: BackupAndRestore continues, exactly.

The launcher restarts this program after it has killed itself in the second epoch.
"""

import os
import signal
from pathlib import Path

import keras
from lost_worker_of_a_round import X, Y, build, difference

import tfdist

FIT = {"epochs": 3, "shuffle": False, "verbose": 0}
KILLED = Path("killed")


class KillChief(keras.callbacks.Callback):
    """Kills this process within a round of the second epoch, in its first life."""

    def on_epoch_begin(self, epoch, logs=None):
        self.is_second = epoch == 1

    def on_train_batch_end(self, batch, logs=None):
        if self.is_second and batch == 20 and not KILLED.exists():
            KILLED.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Epochs(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)


def main():
    strategy = tfdist.ParameterServerStrategy(consistency=tfdist.Synchronous())
    with strategy.scope():
        model = build()
    backup = keras.callbacks.BackupAndRestore("backup")
    callbacks = [backup, Epochs(), KillChief()]
    model.fit(X, Y, batch_size=8, callbacks=callbacks, **FIT)
    one = build()
    one.fit(X, Y, batch_size=16, **FIT)
    rounds = int(model.optimizer.iterations), int(one.optimizer.iterations)
    assert rounds[0] == rounds[1], rounds
    assert difference(model, one) < 1e-4, difference(model, one)
    print("as one process")


if __name__ == "__main__":
    main()
