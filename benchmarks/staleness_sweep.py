"""Which bound reaches an accuracy first: every policy at every learning rate, simulated.

    python benchmarks/staleness_sweep.py --slowest=3 --output=sweep.json

Time is simulated, by `tfdist.simulation`; the policies are those that training uses, and
the training is real: an MLP on 5,000 images of MNIST, momentum SGD, in NumPy. A step of a
healthy worker takes one unit of time. So the order of events depends on the seed alone,
and not on this machine.
"""

import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

import mnist_5k  # noqa: E402

import tfdist  # noqa: E402
from tfdist.parameter_server.consistency.policy import for_workers  # noqa: E402
from tfdist.simulation.gate import Gate  # noqa: E402
from tfdist.simulation.process import Process, Steps, sleep  # noqa: E402
from tfdist.simulation.simulator import Simulator  # noqa: E402

HIDDEN, BATCH = 64, 32
SPREAD = 0.3
WRITE_TIME = 0.02
# In updates by one batch.
CHECK_EVERY = 20
HOPELESS = 0.3
FLAGS = flags.FLAGS

Data = tuple[np.ndarray, np.ndarray]
Weights = list[np.ndarray]


class Job(NamedTuple):
    """What all runs have in common.

    Attributes:
        workers: Their number.
        slowest: The last worker's time per step, in units of the others'.
        momentum: Of SGD.
        target: The test accuracy to reach.
        limit: The longest run, in units of time.
    """

    workers: int
    slowest: float
    momentum: float
    target: float
    limit: float


class Setting(NamedTuple):
    """What one run has of its own.

    Attributes:
        policy: As `policy_of` reads it.
        rate: The learning rate.
        seed: Of the weights, the batches and the times of the steps.
    """

    policy: str
    rate: float
    seed: int


def define_flags() -> None:
    flags.DEFINE_integer("workers", 8, "Workers.", lower_bound=2)
    flags.DEFINE_float("slowest", 1.0, "The last worker's time per step, in units.")
    flags.DEFINE_float("momentum", 0.9, "Of SGD.")
    flags.DEFINE_float("target", 0.92, "The test accuracy to reach.")
    flags.DEFINE_float("limit", 500.0, "The longest run, in units of time.")
    flags.DEFINE_integer("seeds", 5, "Runs of each setting.", lower_bound=1)
    flags.DEFINE_list("rates", "0.003,0.01,0.02,0.03,0.05,0.1,0.2,0.3,0.5", "To try.")
    flags.DEFINE_list(
        "policies",
        "synchronous,synchronous+1,0,1,2,4,8,asynchronous",
        "Bounds, and the names of policies.",
    )
    flags.DEFINE_string("output", None, "The file for what was found, as JSON.")


def policy_of(name: str) -> Any:
    """Returns the policy of this name."""
    if name == "asynchronous":
        return tfdist.Asynchronous()
    if name.startswith("synchronous"):
        return tfdist.Synchronous(int(name.partition("+")[2] or 0))
    return tfdist.BoundedStaleness(int(name))


def initial(seed: int) -> Weights:
    """Returns the weights of an MLP, layer by layer."""
    draw = np.random.default_rng(seed).normal
    shapes = [(784, HIDDEN), (HIDDEN, 10)]
    layers = [(draw(size=each) * np.sqrt(2 / each[0]), each[1]) for each in shapes]
    return [
        part.astype(np.float32)
        for kernel, units in layers
        for part in (kernel, np.zeros(units))
    ]


def forward(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hidden layer, and the logits."""
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    return hidden, hidden @ weights[2] + weights[3]


def gradient(weights: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Returns the gradient of the mean cross-entropy."""
    hidden, logits = forward(weights, x)
    slope = np.exp(logits - logits.max(axis=1, keepdims=True))
    slope /= slope.sum(axis=1, keepdims=True)
    slope[np.arange(len(y)), y] -= 1
    slope /= len(y)
    back = (slope @ weights[2].T) * (hidden > 0)
    return [x.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]


class Training:
    """Workers that train one model under a policy, in simulated time.

    Args:
        job: What it has in common with other runs.
        setting: What it has of its own.
        train: Images as rows, and labels.
        test: The same, to look at the accuracy.

    Attributes:
        seconds: When the accuracy was reached, in units of time; infinite if it was not.
        gate: Counts how stale the steps were.
    """

    def __init__(self, job: Job, setting: Setting, train: Data, test: Data) -> None:
        self._job = job
        self._rate = setting.rate
        self._train, self._test = train, test
        policy = for_workers(policy_of(setting.policy), job.workers)
        self._enough = getattr(policy, "replicas_to_aggregate", None) or 1
        self.gate = Gate(policy)
        self._random = np.random.default_rng(setting.seed)
        self._batches = self._shuffled()
        self._weights = initial(setting.seed)
        self._velocity = [np.zeros_like(each) for each in self._weights]
        self._round: list[Weights] = []
        self._written = 0
        self._simulator = Simulator()
        self.seconds = math.inf

    def run(self) -> float:
        """Runs until the target, the limit, or until there is no hope."""
        for worker in range(self._job.workers):
            Process(self._simulator, self._worker(worker))
        self._simulator.run(until=self._job.limit)
        return self.seconds

    def _shuffled(self) -> Iterator[np.ndarray]:
        count = len(self._train[0]) // BATCH
        while True:
            order = self._random.permutation(len(self._train[0]))
            yield from order[: count * BATCH].reshape(count, BATCH)

    def _worker(self, worker: int) -> Steps:
        x, y = self._train
        is_slow = worker == self._job.workers - 1
        mean = self._job.slowest if is_slow else 1.0
        while True:
            yield self.gate.start(worker)
            # Whoever lets others start has not applied its own gradient yet.
            yield sleep(self._simulator, 0.0)
            weights, batch = (
                [each.copy() for each in self._weights],
                next(self._batches),
            )
            factor = self._random.gamma(1 / SPREAD**2, SPREAD**2)
            yield sleep(self._simulator, mean * factor)
            slope = gradient(weights, x[batch], y[batch])
            counts = yield self.gate.write(worker)
            if counts:
                self._write(slope)
            if not self.gate.has_rounds:
                yield sleep(self._simulator, WRITE_TIME)
            self.gate.finish(worker)

    def _write(self, slope: Weights) -> None:
        self._round.append(slope)
        if len(self._round) < self._enough:
            return
        for parts, velocity, weight in zip(
            zip(*self._round, strict=True), self._velocity, self._weights, strict=True
        ):
            velocity *= self._job.momentum
            velocity -= self._rate * np.mean(parts, axis=0)
            weight += velocity
        self._round.clear()
        before, self._written = self._written, self._written + self._enough
        if before // CHECK_EVERY != self._written // CHECK_EVERY:
            self._look()

    def _look(self) -> None:
        x, y = self._test
        accuracy = np.mean(forward(self._weights, x)[1].argmax(axis=1) == y)
        now = self._simulator.now
        if accuracy >= self._job.target:
            self.seconds = now
            self._simulator.stop()
        elif accuracy < HOPELESS and now > self._job.limit / 4:
            self._simulator.stop()


def load() -> tuple[Data, Data]:
    """Returns the images as rows from 0 to 1, and their labels: to train, and to test."""
    builder = mnist_5k.Mnist5k()
    builder.download_and_prepare()
    loaded = [
        builder.as_dataset(split=split, as_supervised=True, batch_size=-1)
        for split in ("train", "test")
    ]
    train, test = (
        (x.numpy().reshape(len(x), -1).astype(np.float32) / 255, y.numpy())
        for x, y in loaded
    )
    return train, test


def table(found: Sequence[dict[str, Any]]) -> str:
    """Returns the median time of each policy at each rate, as Markdown."""
    rates = list(dict.fromkeys(each["rate"] for each in found))
    lines = [
        f"| policy | staleness | {' | '.join(f'{rate:g}' for rate in rates)} |",
        "| --- " * (len(rates) + 2) + "|",
    ]
    for policy in dict.fromkeys(each["policy"] for each in found):
        own = [each for each in found if each["policy"] == policy]
        staleness = statistics.mean(each["staleness"] for each in own)
        times = [
            statistics.median(
                math.inf if each["seconds"] is None else each["seconds"]
                for each in own
                if each["rate"] == rate
            )
            for rate in rates
        ]
        cells = ["–" if math.isinf(each) else f"{each:.0f}" for each in times]
        lines.append(f"| {policy} | {staleness:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    del argv
    job = Job(*(FLAGS[name].value for name in Job._fields))
    train, test = load()
    found = []
    for policy in FLAGS.policies:
        for rate in map(float, FLAGS.rates):
            for seed in range(FLAGS.seeds):
                training = Training(job, Setting(policy, rate, seed), train, test)
                seconds = training.run()
                staleness = training.gate.staleness
                found.append(
                    {"policy": policy, "rate": rate, "seed": seed}
                    | {"staleness": staleness}
                    | {"seconds": seconds if math.isfinite(seconds) else None}
                )
        print(table(found).splitlines()[-1], flush=True)
    print(table(found))
    if FLAGS.output:
        Path(FLAGS.output).write_text(
            json.dumps({**job._asdict(), "runs": found}) + "\n"
        )


if __name__ == "__main__":
    define_flags()
    app.run(main)
