"""Cases for RingStrategy: those of all synchronous strategies, and its own.

    python -m launch.local --num_ps=0 --num_workers=3 --program=coordinator \
        tests/synchronous/ring_cases.py DIRECTORY [CASE...]

The chief runs them, and writes the results: see case_jobs.py.
"""

import os
import signal
import sys

import case_jobs
import keras
import multi_worker_cases as cases
import numpy as np
import tensorflow as tf
from updates_in_run import UPDATES, after_three

import tfdist


class Counted(tfdist.RingAllReduce):
    """Counts the exchanges that each worker took part in."""

    def count_on(self, devices):
        self.counts = []
        for device in devices:
            with tf.device(device):
                self.counts.append(tf.Variable(0, dtype=tf.int64))

    def reduce_tensors(self, *args, **kwargs):
        for count in self.counts:
            with tf.device(count.device):
                count.assign_add(1)
        return super().reduce_tensors(*args, **kwargs)


def copies_are_equal(variables):
    values = [each.value for each in variables]
    copies = [[c.numpy() for c in getattr(each, "values", [each])] for each in values]
    return all(
        (copy.tobytes() == first.tobytes()) for first, *rest in copies for copy in rest
    )


def ring_case(function):
    function.is_of_ring = True
    return cases.case(function)


@ring_case
def rings_per_step(strategy):
    """The number of exchanges per step on each worker."""
    model = cases.compiled(strategy)
    x, y = cases.data(64)
    counts = []
    for _ in range(3):
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        counts.append([int(c.numpy()) for c in strategy.counted.counts])
    return cases.result(model, counts=np.diff(counts, axis=0))


@ring_case
def route(strategy):
    """The hops between devices of an all-reduce."""

    @tf.function
    def add_up():
        def on_replica():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", tf.random.normal([1_000_000]))

        return strategy.run(on_replica)

    graph = add_up.get_concrete_function().graph
    hops = {
        (source.device, operation.device)
        for operation in graph.get_operations()
        for source in operation.inputs
        if source.device != operation.device
    }
    return {"hops": sorted(hops), "devices": list(strategy.devices)}


@ring_case
def a_step_fails_on_one_worker(strategy):
    """The others have updated their copies by then; the next `fit` makes all equal again."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((1,), dtype="int32"),
                keras.layers.Embedding(4, 2, embeddings_initializer=cases.ramp),
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer=cases.ramp),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    ids, y = np.array([[1], [2], [3]] * 4), np.ones((12, 1), "float32")
    wrong = np.where(np.arange(12)[:, None] == 11, 9, ids)
    try:
        model.fit(wrong, y, batch_size=12, shuffle=False, verbose=0)
        message = "no error"
    except tf.errors.InvalidArgumentError as error:
        message = str(error)
    history = model.fit(ids, y, batch_size=6, shuffle=False, verbose=0)
    return cases.result(model, history, message=message)


@ring_case
def steps_in_a_loop(strategy):
    """A ring cannot add up gradients within a loop of the step's graph."""

    class Looping(keras.Sequential):
        def train_step(self, batch):
            x, y = batch

            def turn(i):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x) - y))
                weights = self.trainable_variables
                self.optimizer.apply(tape.gradient(loss, weights), weights)
                return i + 1

            tf.while_loop(lambda i: i < 2, turn, [0])
            return {}

    with strategy.scope():
        model = Looping([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd")
    try:
        model.fit(*cases.data(), verbose=0)
        message = "no error"
    except ValueError as error:
        message = f"{type(error).__name__}: {error}"
    return {"message": message}


@ring_case
def functions(strategy):
    """What `strategy.run` computes with a traced function, next to what it has to be."""
    with strategy.scope():
        keras.random.uniform([])  # Replicas draw from the generator that this makes.
    found = {}
    for name, update in UPDATES.items():
        step, result, expected = update(strategy)
        traced = tf.function(step)
        run = lambda x: strategy.run(traced, args=(x,))  # noqa: B023, E731
        found[name] = [after_three(run, result), expected(strategy.num_replicas)]
    return found


@ring_case
def a_worker_dies(strategy):
    """A worker is killed between two epochs; the next epoch names it."""
    return lose_worker(strategy, signal.SIGKILL)


@ring_case
def a_worker_stops(strategy):
    return lose_worker(strategy, signal.SIGSTOP)


def lose_worker(strategy, signum):
    model = cases.compiled(strategy)
    x, y = cases.data(64)

    def lose(epoch, logs):
        if epoch == 1:
            os.kill(int(os.environ["PID_OF_WORKER_1"]), signum)

    callback = keras.callbacks.LambdaCallback(on_epoch_end=lose)
    try:
        model.fit(x, y, batch_size=16, epochs=1000, verbose=0, callbacks=[callback])
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    return {"message": message}


def main(directory, *names):
    cases.DIRECTORY = directory
    of_one_process = cases.result

    def result(model, *args, **more):
        equal = copies_are_equal([*model.variables, *model.optimizer.variables])
        return {**of_one_process(model, *args, **more), "copies_equal": equal}

    cases.result = result
    ring = Counted(segment_bytes=20_000)
    # On a busy machine, one that answers may take seconds.
    patience = 15.0 if "a_worker_stops" in names else 60.0
    strategy = tfdist.RingStrategy(cross_device_ops=ring, peer_timeout=patience)
    ring.count_on(strategy.devices)
    strategy.counted = ring
    case_jobs.run_cases(
        directory,
        names,
        cases.CASES,
        strategy,
        index=0,
        before=lambda: keras.utils.set_random_seed(1),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
