"""What backup workers save, where one of five workers is ten times slower.

    python -m launch.local --num_ps=2 --num_workers=5 benchmarks/backup_workers.py

Runs on the chief. Cases take turns in one cluster, on the MNIST CNN: rounds of 4 gradients
while all are healthy, and rounds with and without a backup while worker 0 is held up by
signals. The time is that of a round, and each ratio is one of the same repeat. It includes
the wait for the slow worker's last step at the end of an epoch, which is long beside one of
few steps (`--passes`). The CPU time is that of all tasks: on a machine with fewer cores than
tasks, it decides.
"""

import contextlib
import gc
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import psutil
from absl import app, flags
from consistency import BATCH, compile_model
from results import Spread
from slow_worker import Condition, held_up, processes

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

import mnist_5k  # noqa: E402
import mnist_cnn  # noqa: E402

import tfdist  # noqa: E402

HEALTHY = Condition("healthy", 0.0, 0.0)
SLOW = Condition("10x slower", 0.05, 0.45)
CASES = {
    "4 of 5 healthy": (tfdist.Synchronous(replicas_to_aggregate=4), HEALTHY),
    "1 backup, healthy": (tfdist.Synchronous(1), HEALTHY),
    "1 backup, one slow": (tfdist.Synchronous(1), SLOW),
    '"auto", one slow': (tfdist.Synchronous("auto"), SLOW),
    "no backup, one slow": (tfdist.Synchronous(), SLOW),
}
FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_integer("rounds", 5, "Repeats of each case.", lower_bound=1)
    help = "Passes over 5,000 images in the epoch of each, of 62 steps per pass."
    flags.DEFINE_integer("passes", 4, help, lower_bound=1)


class Cost(NamedTuple):
    """What has been spent, in seconds."""

    time: float
    cpu: float

    @classmethod
    def so_far(cls) -> "Cost":
        """Returns that of all tasks until now."""
        tasks = [psutil.Process(pid) for pid in processes("ps") + processes("worker")]
        used = [each.cpu_times() for each in (psutil.Process(), *tasks)]
        return cls(time.monotonic(), sum(each.user + each.system for each in used))


class Timed(keras.callbacks.Callback):
    """Holds worker 0 up from the first step to the last, and takes the time.

    Not earlier: when `fit` begins, TensorFlow tells all tasks of new functions, and waits.
    It also waits for all of them whenever a function is deleted.
    """

    def __init__(self, condition: Condition) -> None:
        super().__init__()
        self._condition = condition
        self._held = contextlib.ExitStack()
        self.cost = Cost(0.0, 0.0)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins."""
        gc.collect()
        self._held.enter_context(held_up(self._condition))
        self._start = Cost.so_far()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Takes what was spent."""
        pairs = zip(Cost.so_far(), self._start, strict=True)
        self.cost = Cost(*(now - then for now, then in pairs))

    def on_train_end(self, logs: Any = None) -> None:
        """Lets worker 0 go on."""
        self._held.close()


def cost_of_a_round(strategy: Any, model: Any, data: Any, case: str) -> Cost:
    """Trains for an epoch."""
    strategy.consistency, condition = CASES[case]
    before = int(model.optimizer.iterations)
    timed = Timed(condition)
    x, y = (np.concatenate([each] * FLAGS.passes) for each in data)
    model.fit(x, y, batch_size=BATCH, callbacks=[timed], verbose=0)
    rounds = int(model.optimizer.iterations) - before
    return Cost(*(each / rounds for each in timed.cost))


def main(argv: list[str]) -> None:
    del argv
    strategy = tfdist.ParameterServerStrategy(consistency=tfdist.Synchronous())
    builder = mnist_5k.Mnist5k()
    builder.download_and_prepare()
    train = builder.as_dataset(split="train", as_supervised=True, batch_size=-1)
    data = [each.numpy() for each in train]
    with strategy.scope():
        model = mnist_cnn.build_model()
        compile_model(model)
    for policy, _ in CASES.values():  # Traced, and "auto" has chosen.
        strategy.consistency = policy
        model.fit(*data, batch_size=BATCH, verbose=0)
    found: dict[str, list[Cost]] = {case: [] for case in CASES}
    for _ in range(FLAGS.rounds):
        for case, costs in found.items():
            costs.append(cost_of_a_round(strategy, model, data, case))
            print(case, costs[-1], flush=True)
    print(table(found))


def table(found: dict[str, list[Cost]]) -> str:
    """Returns the medians as Markdown."""
    healthy = next(iter(found.values()))
    lines = [
        "| rounds | ms per round | / 4 healthy | CPU ms per round | / 4 healthy |",
        "| --- " * 5 + "|",
    ]
    for case, costs in found.items():
        cells = [case]
        for kind in Cost._fields:
            mine, theirs = ([getattr(c, kind) for c in of] for of in (costs, healthy))
            ratio = Spread.of(a / b for a, b in zip(mine, theirs, strict=True))
            cells += [f"{1000 * Spread.of(mine).median:.1f}", str(ratio)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    define_flags()
    app.run(main)
