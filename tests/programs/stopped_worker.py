"""Trains while one of two workers is stopped: SCENARIO POLICY DIRECTORY [STEPS].

POLICY is one of `--strategy` of the tests; STEPS are those of an execution.
"""

import faulthandler
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import psutil
import tensorflow as tf

import launch
import tfdist
from tfdist.parameter_server.checkpoints import checkpoints

STARTUP = {"startup_timeout": 200.0}  # seconds
PATIENCE = 240.0  # seconds, after which the program says where it waits, and ends
BOUND = 2
POLICIES = {"parameter_server": None, "bounded": tfdist.BoundedStaleness(BOUND)}
FIT = {"batch_size": 8, "verbose": 0}
PAUSE = 0.3  # seconds


class Killed(Exception):
    """Stands in for the end of the process."""


def train_mlp(strategy, batches, **options):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(8 * batches, 4)).astype("float32")
    model.fit(x, x.sum(axis=1, keepdims=True), **FIT, **options)
    return model


def stop_between_steps(strategy, worker):
    """Stops a worker where nobody waits for it, also under a bound."""
    strategy.in_flight.join()
    worker.suspend()


def straggler(strategy, worker):
    """The worker goes on after the other one has run nearly all steps."""
    batches = 80

    def stop_and_go(batch, logs):
        if batch == 2:
            stop_between_steps(strategy, worker)
        if batch == batches - strategy.in_flight.limit:
            worker.resume()

    watch = keras.callbacks.LambdaCallback(on_train_batch_begin=stop_and_go)
    model = train_mlp(strategy, batches, callbacks=[watch])
    report = strategy.worker_report()
    assert sum(report.steps) == model.optimizer.iterations == batches, report
    print("stragglers", *report.stragglers)


def at_the_bound(strategy, worker):
    """The worker is stopped again and again, until the other one has waited for it."""
    has_waited = threading.Event()

    def seconds_of_the_other_one():
        return strategy.staleness_report().seconds[0, 0]

    def stop_now_and_then():
        # Between two of its steps, a worker holds up nobody.
        before = now = seconds_of_the_other_one()
        while now - before < 0.8 * PAUSE:
            worker.suspend()
            time.sleep(PAUSE)
            worker.resume()
            time.sleep(0.05)
            before, now = now, seconds_of_the_other_one()
        has_waited.set()

    thread = threading.Thread(target=stop_now_and_then, daemon=True)

    def stop_training(epoch, logs):
        if epoch == 0:  # The first steps wait for other things.
            thread.start()
        is_broken = strategy.staleness_report().maximum > BOUND
        watch.model.stop_training = is_broken or not thread.is_alive()

    watch = keras.callbacks.LambdaCallback(on_epoch_end=stop_training)
    train_mlp(strategy, batches=200, epochs=10**6, callbacks=[watch])
    report = strategy.staleness_report()
    assert report.maximum <= BOUND, report
    assert has_waited.is_set()
    print("the other one waited")


class Count(keras.layers.Layer):
    """Counts how often each row, which is its own index, was trained on."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def call(self, rows):
        indices = tf.cast(rows[:, 0], tf.int32)
        self.counts.scatter_add(tf.IndexedSlices(tf.ones_like(rows[:, 0]), indices))
        return rows


def checkpoint(strategy, worker, steps_per_execution):
    """What the stopped worker had is run again, though steps after it are not."""
    batches, due = 90, 30
    directory = strategy.checkpoints.directory = Path("checkpoints").absolute()
    checkpoints._SECONDS_FOR_A_STEP = 0.0
    rows = np.arange(8 * batches, dtype="float32")[:, np.newaxis]
    with strategy.scope():
        counts = tf.Variable(tf.zeros([len(rows)]))

    def run(*callbacks):
        """Trains as a new program, whose calls of `fit` are counted from 0."""
        strategy.fit_driver.fits = 0
        with strategy.scope():
            layers = [keras.Input((1,)), Count(counts), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile(
                keras.optimizers.SGD(0.0),
                "mse",
                steps_per_execution=steps_per_execution,
            )
        model.fit(rows, rows, shuffle=False, callbacks=list(callbacks), **FIT)

    def is_writing():
        return any(each.name == "checkpoint" for each in threading.enumerate())

    in_flight, when_killed = strategy.in_flight, []

    def stop_and_kill(batch, logs):
        if batch == 9:
            stop_between_steps(strategy, worker)
        strategy.checkpoints.every = 1e-6 if batch == due else 1e6
        if batch == due:
            # What is left then is the stopped worker's.
            while len(in_flight.under_way()) > 1:
                in_flight.wait(0.01)
        if batch == due + 2 * steps_per_execution:
            while is_writing():
                time.sleep(0.01)
            when_killed.append(counts.numpy())
            worker.resume()
            raise Killed

    try:
        run(keras.callbacks.LambdaCallback(on_train_batch_begin=stop_and_kill))
    except Killed:
        in_flight.join()
    before = counts.numpy()
    [path] = directory.glob("fit-000/checkpoint-*")
    step = json.loads((path / "state.json").read_text())["position"]["step"]
    run()
    again = counts.numpy() - before
    assert (when_killed[0] + again).min() >= 1
    assert np.flatnonzero(again)[0] < np.flatnonzero(again == 0)[-1]
    assert again.max() == 1
    assert again.sum() == 8 * (batches - step)
    print("no batch is lost")


SCENARIOS = {each.__name__: each for each in (straggler, at_the_bound, checkpoint)}


def main():
    scenario, policy, directory, *arguments = sys.argv[1:]
    os.chdir(directory)  # For logs and checkpoints.
    # Every task is told of a function that is collected, and a stopped one never answers.
    gc.disable()
    with launch.servers(num_ps=2, num_workers=2, **STARTUP) as servers:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        os.environ["TF_CONFIG"] = servers.tf_config.to_json()
        consistency = POLICIES[policy]
        strategy = tfdist.ParameterServerStrategy(consistency=consistency, **STARTUP)
        worker = psutil.Process(servers.pids["worker:1"])
        try:
            SCENARIOS[scenario](strategy, worker, *map(int, arguments))
        finally:
            worker.resume()


if __name__ == "__main__":
    main()
