"""A linear predictor, f(x) = x·w, trained by gradient descent in five ways.

They differ in who waits for whom (`--how`), and in how workers share the weights
(`--on`): in the memory of one process, or by messages between the processes of a cluster.

    python examples/linear_predictor.py --how=map_reduce --on=threads
    tfdist local --num_ps=1 --num_workers=2 --network=private \
        examples/linear_predictor.py --how=bounded --on=processes

After each pass over the data it prints the loss, what has travelled, and how long workers
have waited for each other.
"""

import math
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

import tf_config
import tfdist
from tfdist.consistency.policy import for_workers
from tfdist.consistency.step_schedule import StepSchedule

HOWS = ("sequential", "map_reduce", "synchronous", "bounded", "asynchronous")

FLAGS = flags.FLAGS
flags.DEFINE_enum("how", "sequential", HOWS, "Who waits for whom.")
flags.DEFINE_enum("on", "threads", ["threads", "processes"], "What the workers are.")
flags.DEFINE_integer("workers", 2, "How many threads.", lower_bound=1)
flags.DEFINE_integer("max_staleness", 4, "The bound of --how=bounded.", lower_bound=0)
flags.DEFINE_integer("passes", 5, "Passes over the data.", lower_bound=1)
flags.DEFINE_integer("examples", 8192, "Rows of the data.", lower_bound=1)
flags.DEFINE_integer("features", 50, "The length of w.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Examples per update of w.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.005, "Of gradient descent.", lower_bound=0.0)
flags.DEFINE_float("pause", 0.001, "Seconds that a thread sleeps per step.", 0.0)
flags.DEFINE_float("slow", 1.0, "How many times as long thread 0 sleeps.", 1.0)

Batch = tuple[np.ndarray, np.ndarray]


class Pass(NamedTuple):
    """What is known after a pass over the data.

    Attributes:
        w: The weights.
        travelled: How many bytes have moved.
        waited: The share of their time in which workers waited for each other; nan if it
            was not measured.
        staleness: The mean over all steps.
        max_staleness: The largest of any step.
    """

    w: np.ndarray
    travelled: int = 0
    waited: float = 0.0
    staleness: float = 0.0
    max_staleness: int = 0


def make_data() -> Batch:
    """Returns x, of shape `[examples, features]`, and y = x·w + noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(FLAGS.examples, FLAGS.features)).astype("float32")
    w = rng.normal(size=FLAGS.features)
    return x, (x @ w + 0.1 * rng.normal(size=FLAGS.examples)).astype("float32")


def initial_weights() -> np.ndarray:
    """Returns zeros."""
    return np.zeros(FLAGS.features, "float32")


def batches(x: np.ndarray, y: np.ndarray, parts: int = 1) -> list[Batch]:
    """Returns the data of the steps of a pass, each in so many parts."""
    count = parts * len(y) // FLAGS.batch_size
    return list(zip(np.split(x, count), np.split(y, count), strict=True))


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Returns the mean squared error."""
    return float(np.mean((x @ w - y) ** 2))


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the gradient of the loss with respect to w."""
    return 2 / len(y) * x.T @ (x @ w - y)


def pause(worker: int) -> None:
    """Stands for a larger model; thread 0 may be slower than the others."""
    time.sleep(FLAGS.pause * (FLAGS.slow if worker == 0 else 1))


# One thread: nobody to wait for.


def sequential(x: np.ndarray, y: np.ndarray) -> Iterator[Pass]:
    """Each step reads what the one before has written."""
    w = initial_weights()
    for _ in range(FLAGS.passes):
        for batch in batches(x, y):
            pause(worker=0)
            w -= FLAGS.learning_rate * gradient(w, *batch)
        yield Pass(w)


# Broadcast, map, reduce: everybody waits for the slowest, in each step.


@tf.function
def map_part(w: Any, x: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sum of some examples' gradients, and when it was ready."""
    errors = tf.linalg.matvec(x, w) - y
    found = 2 * tf.linalg.matvec(x, errors, transpose_a=True)
    with tf.control_dependencies([found]):
        return found, tf.timestamp()


def map_reduce_on_threads(x: np.ndarray, y: np.ndarray) -> Iterator[Pass]:
    """The devices of one process: `strategy.run` maps, and `strategy.reduce` adds."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * FLAGS.workers
    tf.config.set_logical_device_configuration(cpu, devices)
    names = [f"CPU:{index}" for index in range(FLAGS.workers)]
    strategy = tf.distribute.MirroredStrategy(names, tfdist.AllReduce())
    parts_of_batch(FLAGS.workers)  # Checks it.

    def one_each(values: Any) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[context.replica_id_in_sync_group])
        )

    def replica(w: Any, x: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
        worker = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.control_dependencies([tf.numpy_function(pause, [worker], [])]):
            return map_part(w, x, y)

    run = tf.function(lambda *args: strategy.run(replica, args=args))
    w = initial_weights()
    for _ in range(FLAGS.passes):
        began, waited, travelled = time.time(), 0.0, 0
        for batch in batches(x, y):
            parts = [one_each(np.split(each, FLAGS.workers)) for each in batch]
            copies = one_each([w] * FLAGS.workers)  # broadcast
            sums, ends = run(copies, *parts)  # map
            total = strategy.reduce("SUM", sums, axis=None)  # reduce
            w = w - FLAGS.learning_rate * total.numpy() / FLAGS.batch_size
            waited += wait_for_last(strategy.experimental_local_results(ends))
            for moved in (copies, sums):
                for each in strategy.experimental_local_results(moved):
                    travelled += each.numpy().nbytes
        yield Pass(w, travelled, waited / (time.time() - began))


def map_reduce_on_processes(x: np.ndarray, y: np.ndarray) -> Iterator[Pass]:
    """The workers of a cluster: the chief sends each a part, and adds their answers."""
    strategy = tfdist.ParameterServerStrategy()
    workers, w = parts_of_batch(strategy.num_workers), initial_weights()
    for _ in range(FLAGS.passes):
        began, waited, before = time.time(), 0.0, bytes_on_loopback()
        for batch in batches(x, y):
            parts = zip(*(np.split(each, workers) for each in batch), strict=True)
            answers = [  # broadcast w, and map
                strategy.coordinator.schedule(
                    map_part, args=tuple(map(tf.constant, (w, *part)))
                )
                for part in parts
            ]
            sums, ends = zip(*(each.fetch() for each in answers), strict=True)
            w = w - FLAGS.learning_rate * sum(sums) / FLAGS.batch_size  # reduce
            waited += wait_for_last(ends)
        travelled = bytes_on_loopback() - before
        yield Pass(w, travelled, waited / (time.time() - began))


def wait_for_last(ends: Any) -> float:
    """Returns how long the parts of a step waited for the last one: the mean."""
    return float(np.mean(np.max(ends) - ends))


# One knob: the same policies for threads and for processes.


def policy() -> Any:
    """Returns the policy that `--how` names."""
    return {
        "sequential": tfdist.BoundedStaleness(0),
        "synchronous": tfdist.Synchronous(),
        "bounded": tfdist.BoundedStaleness(FLAGS.max_staleness),
        "asynchronous": tfdist.Asynchronous(),
    }[FLAGS.how]


class Event(NamedTuple):
    """What a worker did: "wait", "compute" or "write", from when to when, in seconds."""

    worker: int
    what: str
    begin: float
    end: float


class SharedWeights:
    """Weights in the memory that threads share; a policy says who may use them when.

    Attributes:
        w: The weights.
        events: What each worker did.
        staleness: How stale each step was, in the order in which they wrote.
        travelled: How many bytes were read and written.
    """

    def __init__(self, workers: int) -> None:
        chosen = for_workers(policy(), workers)
        self.w, self._sum = initial_weights(), initial_weights()
        self._per_update = getattr(chosen, "replicas_to_aggregate", 1)
        self._schedule = StepSchedule(chosen)
        self._changed = threading.Condition()
        self._computed: dict[int, np.ndarray] = {}
        self._may_go_on: set[int] = set()
        self.clear()

    def clear(self) -> None:
        """Counts from 0 again."""
        self.events: list[Event] = []
        self.staleness: list[int] = []
        self.travelled = 0

    def read(self, worker: int) -> np.ndarray:
        """Waits until a step may start, and returns its copy of the weights."""
        with self._changed:
            self._release(self._schedule.arrive(worker))
            self._wait(worker)
            self.travelled += self.w.nbytes
        return self.w.copy()

    def write(self, worker: int, change: np.ndarray) -> None:
        """Waits until a step may write, and returns when it has."""
        with self._changed:
            self._computed[worker] = change
            self._release(self._schedule.computed(worker))
            self._wait(worker)
            self._release(self._schedule.finished(worker))
            self.travelled += change.nbytes

    def _release(self, released: Any) -> None:
        for each in released.written:
            self._sum += self._computed.pop(each.worker)
            self.staleness.append(each.staleness)
            now = time.monotonic()
            self.events.append(Event(each.worker, "write", now, now))
        if released.updated:
            self.w -= self._sum / self._per_update
            self._sum[:] = 0
        self._may_go_on |= {each.worker for each in released.written}
        self._may_go_on |= set(released.started)
        self._changed.notify_all()

    def _wait(self, worker: int) -> None:
        begin = time.monotonic()
        self._changed.wait_for(lambda: worker in self._may_go_on)
        self._may_go_on.remove(worker)
        self.events.append(Event(worker, "wait", begin, time.monotonic()))


def policy_on_threads(x: np.ndarray, y: np.ndarray) -> Iterator[Pass]:
    """Threads share the weights."""
    shared = SharedWeights(FLAGS.workers)
    for _ in range(FLAGS.passes):
        shared.clear()
        run_threads(shared, x, y)
        seconds = {"wait": 0.0, "compute": 0.0, "write": 0.0}
        for event in shared.events:
            seconds[event.what] += event.end - event.begin
        waited = seconds["wait"] / sum(seconds.values())
        mean, most = float(np.mean(shared.staleness)), max(shared.staleness)
        yield Pass(shared.w, shared.travelled, waited, mean, most)


def run_threads(shared: SharedWeights, x: np.ndarray, y: np.ndarray) -> None:
    """Runs a pass: threads take the batches as they come."""
    todo: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    for batch in batches(x, y, parts_of_batch(FLAGS.workers)):
        todo.put(batch)
    threads = [
        threading.Thread(target=work, args=(shared, worker, todo))
        for worker in range(FLAGS.workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(shared: SharedWeights, worker: int, todo: "queue.SimpleQueue[Batch]") -> None:
    """Runs a step per batch, until there is none left."""
    while True:
        try:
            batch = todo.get_nowait()
        except queue.Empty:
            return
        w = shared.read(worker)
        begin = time.monotonic()
        pause(worker)
        change = FLAGS.learning_rate * gradient(w, *batch)
        shared.events.append(Event(worker, "compute", begin, time.monotonic()))
        shared.write(worker, change)


def policy_on_processes(x: np.ndarray, y: np.ndarray) -> Iterator[Pass]:
    """Keras's own `fit` on parameter servers: the knob is an argument."""
    strategy = tfdist.ParameterServerStrategy(consistency=policy())
    with strategy.scope():
        f = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((FLAGS.features,)), f])
        model.compile(keras.optimizers.SGD(FLAGS.learning_rate), "mse")
    batch_size = FLAGS.batch_size // parts_of_batch(strategy.num_workers)
    for _ in range(FLAGS.passes):
        before = bytes_on_loopback()
        logs = model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0).history
        travelled, w = bytes_on_loopback() - before, model.get_weights()[0][:, 0]
        # Rounds are not counted: nobody writes between a read and its write.
        waited, mean, most = (
            logs.get(name, [unknown])[0]
            for name, unknown in (
                ("waiting_share", math.nan),
                ("staleness", 0),
                ("max_staleness", 0),
            )
        )
        yield Pass(w, travelled, waited, mean, most)


def parts_of_batch(workers: int) -> int:
    """Returns into how many parts each batch is divided, or exits if it cannot be."""
    if FLAGS.how not in ("map_reduce", "synchronous"):
        return 1
    if FLAGS.batch_size % workers:
        sys.exit(
            f"--batch_size={FLAGS.batch_size} cannot be divided among {workers} workers: "
            f"choose a multiple of {workers}."
        )
    return workers


def network_counters() -> dict[str, list[int]]:
    """Returns what each interface of this network has carried, as Linux counts it."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    pairs = (line.split(":") for line in lines)
    return {name.strip(): list(map(int, rest.split())) for name, rest in pairs}


def bytes_on_loopback() -> int:
    """Returns how many bytes the loopback interface has carried."""
    return network_counters()["lo"][0]


def check_flags() -> None:
    """Exits if flags contradict each other, and says what is allowed."""
    chosen = f"--how={FLAGS.how} --on={FLAGS.on}"
    in_cluster, threads = bool(os.environ.get("TF_CONFIG")), FLAGS.on == "threads"
    if threads and in_cluster:
        sys.exit(
            f"{chosen} would leave the cluster idle. Use --on=processes, or no launcher: "
            f"python examples/linear_predictor.py {chosen}"
        )
    if not threads and not in_cluster:
        sys.exit(
            f"{chosen} needs a cluster: tfdist local --num_ps=1 "
            f"--num_workers=2 examples/linear_predictor.py {chosen}"
        )
    for name, applies, where in (
        ("max_staleness", FLAGS.how == "bounded", "--how=bounded"),
        ("pause", threads, "--on=threads"),
        ("slow", threads, "--on=threads"),
        # A cluster has as many workers as it was started with.
        ("workers", threads and FLAGS.how != "sequential", "several threads"),
    ):
        if FLAGS[name].present and not applies:
            sys.exit(f"--{name} is for {where}, not for {chosen}: remove the flag.")
    if FLAGS.examples % FLAGS.batch_size:
        sys.exit(
            f"--batch_size={FLAGS.batch_size} must divide --examples={FLAGS.examples}."
        )


def share(waited: float) -> str:
    """Returns a share in words."""
    return "not counted" if math.isnan(waited) else f"{waited:.1%}"


def main(argv: list[str]) -> None:
    """Trains, and prints what is known after each pass."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)
    check_flags()
    x, y = make_data()
    ways = {
        ("sequential", "threads"): sequential,
        ("map_reduce", "threads"): map_reduce_on_threads,
        ("map_reduce", "processes"): map_reduce_on_processes,
    }
    knob = policy_on_threads if FLAGS.on == "threads" else policy_on_processes
    began = time.monotonic()
    try:
        for number, done in enumerate(ways.get((FLAGS.how, FLAGS.on), knob)(x, y), 1):
            print(
                f"pass {number}: loss {loss(done.w, x, y):.6f}, "
                f"{done.travelled:,} bytes travelled, waited {share(done.waited)}, "
                f"staleness {done.staleness:.2f} (at most {done.max_staleness}), "
                f"{time.monotonic() - began:.2f} s"
            )
            began = time.monotonic()
    except (tf_config.ClusterError, TimeoutError) as error:
        sys.exit(f"--on=processes: {error}")
    if FLAGS.on == "processes" and len(network_counters()) > 1:
        print(
            "Bytes of other programs on this network were counted too: with "
            "launch.local --network=private, the cluster has one of its own."
        )


if __name__ == "__main__":
    app.run(main)
