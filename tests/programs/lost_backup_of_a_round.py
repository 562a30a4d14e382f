"""Trains with backup workers while some are lost: HOW WORKERS BACKUPS LOST."""

import os
import signal
import sys

import keras
import numpy as np
import psutil

import launch
import tfdist

RATE, BATCHES, EPOCHS, STEP = 0.01, 60, 2, 20


class Ledger(keras.Model):
    """Two weights whose gradients are the number of the batch, and one that decays."""

    def __init__(self):
        super().__init__()
        self.first = self.add_weight((1,), "zeros", name="first")
        self.second = self.add_weight((1,), "zeros", name="second")
        self.decay = self.add_weight((1,), "ones", name="decay")
        self.built = True

    def call(self, x):
        mean = keras.ops.mean(x)
        return mean * (self.first + self.second) + 0.5 * self.decay**2


class Fault(keras.callbacks.Callback):
    def __init__(self, processes, number):
        super().__init__()
        self.processes, self.number = processes, number

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEP and self.number is not None:
            for each in self.processes:
                os.kill(each.pid, self.number)
            self.number = None

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, "dropped", logs["dropped"], flush=True)


class Continue(keras.callbacks.Callback):
    """Has stopped workers continue near the end of an epoch, which waits for them."""

    def __init__(self, processes):
        super().__init__()
        self.processes = processes

    def on_train_batch_end(self, batch, logs=None):
        if batch >= BATCHES - 5:
            for each in self.processes:
                each.send_signal(signal.SIGCONT)


def main():
    how, (workers, backups, lost) = sys.argv[1], map(int, sys.argv[2:])
    with launch.servers(
        num_ps=2, num_workers=workers, startup_timeout=200.0
    ) as servers:
        os.environ["TF_CONFIG"] = servers.tf_config.to_json()
        policy = tfdist.Synchronous(backup_workers=backups)
        strategy = tfdist.ParameterServerStrategy(consistency=policy)
        with strategy.scope():
            model = Ledger()
            model.compile(
                keras.optimizers.SGD(RATE), lambda _, output: keras.ops.sum(output)
            )
        assert len({each.value.device for each in model.weights}) == 2
        victims = [psutil.Process(pid) for pid in list(servers.pids.values())[-lost:]]
        callbacks = [Fault(victims, getattr(signal, how))]
        if how == "SIGSTOP":
            callbacks.append(Continue(victims))
        x = np.repeat(np.arange(1.0, BATCHES + 1), 2).astype("float32")[:, np.newaxis]
        fit = {"batch_size": 2, "epochs": EPOCHS, "verbose": 0, "callbacks": callbacks}
        history = model.fit(x, x, **fit).history
        first, second, decay = (float(each.numpy()[0]) for each in model.weights)
        rounds = int(model.optimizer.iterations)
        assert np.isclose(first, second), (first, second)
        assert np.isclose(decay, (1 - RATE) ** rounds, rtol=1e-4), (decay, rounds)
        counted = strategy.staleness_report().steps
        dropped = sum(history["dropped"])
        print("counted", counted, "dropped", dropped, "rounds", rounds, flush=True)
        computed, batches = counted + dropped, BATCHES * EPOCHS
        assert batches <= computed <= batches + 2 * lost, dropped
        enough = workers - backups
        assert counted / enough - 2 <= rounds <= counted / enough + 4, rounds
    print("each counts on all ps or on none")


if __name__ == "__main__":
    main()
