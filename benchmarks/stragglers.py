"""The cost of a slow worker to the others: one of four is slowed down ten times.

    python benchmarks/stragglers.py --json=benchmarks/measured/stragglers.json

Four workers compete for the few cores of this machine, and a slow one would leave its
share to the others. So steps mostly wait: messages between a worker and other tasks are
delayed by `--delay` (launch/network/links.py). The slow worker is stopped (SIGSTOP) for
nine tenths of the time or, with `--how=delay`, its messages take ten times as long. Epochs
with and without the slow worker take turns on one cluster.

The rate is that of workers 0 to 2 together, from the first steps of an epoch to its last,
without the final wait for the slow worker's step.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import rich
import rich.box
import rich.table
from absl import app, flags
from chaos_report import environment

import launch
from launch.network.links import Link, Links, through
from tf_config import split_address

WORKERS, SLOW, TIMES = 4, 3, 10
FEATURES, BATCH = 8, 16
TARGET = 0.95
HOWS = ("stop", "delay")
PERIOD = 1.0  # seconds


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("repeats", 5, "Pairs of epochs.", lower_bound=1)
    flags.DEFINE_integer("steps", 240, "Steps per epoch.", lower_bound=100)
    flags.DEFINE_float("delay", 0.04, "Delay of all links of workers, in seconds.")
    flags.DEFINE_enum("how", "stop", HOWS, "How a worker is slowed.")
    flags.DEFINE_boolean("chief", False, "Internal: run as the chief.")
    flags.DEFINE_string("json", None, "Write every epoch to this file.")


def chief(steps: int) -> None:
    """Runs as the chief: one epoch for each line of input, reported as a line of JSON."""
    import keras
    import numpy as np

    import tfdist

    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(steps * BATCH, FEATURES))
    y = x.sum(axis=1)
    for _ in sys.stdin:
        before, clock = (
            strategy.worker_report(),
            clock_class()(strategy.in_flight.limit),
        )
        model.fit(x, y, batch_size=BATCH, callbacks=[clock], verbose=0)
        report = strategy.worker_report().since(before)
        others = sum(report.steps) - report.steps[SLOW]
        told = {
            "steps": report.steps,
            "stragglers": report.stragglers,
            "rate": clock.rate * others / sum(report.steps),
        }
        print(json.dumps(told), file=sys.__stdout__, flush=True)
    print(strategy.worker_report(), file=sys.stderr)


def clock_class() -> Any:
    """Keras is the chief's alone to import."""
    import keras

    class Clock(keras.callbacks.Callback):
        """Measures the rate of steps, once the limit of steps in flight is reached."""

        def __init__(self, limit: int) -> None:
            super().__init__()
            self._first = 2 * limit

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == self._first:
                self._began = time.monotonic()
            self._last, self._now = batch, time.monotonic()

        @property
        def rate(self) -> float:
            return (self._last - self._first) / (self._now - self._began)

    return Clock


@contextmanager
def stopping(victim: psutil.Process) -> Iterator[None]:
    """Lets a process run for only a tenth of the time."""
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.is_set():
            victim.suspend()
            over.wait(PERIOD * (1 - 1 / TIMES))
            victim.resume()
            over.wait(PERIOD / TIMES)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def delaying(links: Links) -> Iterator[None]:
    """Delays a worker's messages ten times as much as those of the others."""
    late = Link(delay=(TIMES - 1) * flags.FLAGS.delay)
    mend = links.impair(f"worker:{SLOW}", late)
    try:
        yield
    finally:
        mend()


def measure(
    links: Links, victim: psutil.Process, process: "subprocess.Popen[str]"
) -> list[dict[str, Any]]:
    """Makes the chief run all epochs, and returns their results."""
    assert process.stdin
    assert process.stdout

    def epoch(slow: bool) -> dict[str, Any]:
        how = stopping(victim) if flags.FLAGS.how == "stop" else delaying(links)
        with how if slow else nullcontext():
            print("epoch", file=process.stdin, flush=True)
            line = process.stdout.readline()
        return {"slow": slow, **json.loads(line)}

    for worker in range(WORKERS):
        links.impair(f"worker:{worker}", Link(delay=flags.FLAGS.delay))
    epoch(slow=False)
    epochs = []
    for repeat in range(flags.FLAGS.repeats):
        for slow in (False, True) if repeat % 2 else (True, False):
            epochs.append({"repeat": repeat, **epoch(slow)})
            print(epochs[-1], flush=True)
    return epochs


def ratios(epochs: list[dict[str, Any]]) -> list[float]:
    """The rate beside a slow worker over the rate without one, for each repeat."""
    rates = {(each["repeat"], each["slow"]): each["rate"] for each in epochs}
    repeats = sorted({repeat for repeat, _ in rates})
    return [rates[repeat, True] / rates[repeat, False] for repeat in repeats]


def table(epochs: list[dict[str, Any]]) -> rich.table.Table:
    """The medians, and the ratio."""
    found = rich.table.Table(box=rich.box.ROUNDED, title="Steps of workers 0 to 2")
    for heading in ("worker 3", "a second", "its share", "named a straggler"):
        found.add_column(heading)
    for slow in (False, True):
        chosen = [each for each in epochs if each["slow"] == slow]
        named = sum(tuple(each["stragglers"]) == (SLOW,) for each in chosen)
        share = statistics.median(each["steps"][SLOW] for each in chosen)
        found.add_row(
            f"slowed {TIMES}x" if slow else "like the others",
            f"{statistics.median(each['rate'] for each in chosen):.1f}",
            f"{share / sum(chosen[0]['steps']):.1%}",
            f"{named} of {len(chosen)}",
        )
    paired = ratios(epochs)
    median = statistics.median(paired)
    found.caption = (
        f"paired ratio {median:.3f} ({min(paired):.3f} to {max(paired):.3f}), target "
        f">= {TARGET}: {'reached' if median >= TARGET else 'MISSED'}"
    )
    return found


def sentence(measured: dict[str, Any]) -> str:
    """Returns the sentences in docs/parameter-servers.md."""
    said = []
    for how, words in (
        ("stop", "stopped for nine tenths of the time"),
        ("delay", "whose messages took ten times as long"),
    ):
        epochs = measured[how]
        paired, slow = ratios(epochs), [each for each in epochs if each["slow"]]
        named = sum(tuple(each["stragglers"]) == (SLOW,) for each in slow)
        said.append(
            f"Beside one {words}, the other three of four workers kept "
            f"{statistics.median(paired):.0%} of their steps per second (median of "
            f"{len(paired)} pairs, {min(paired):.0%} to {max(paired):.0%}); the report "
            f"named it in {named} of {len(slow)} epochs."
        )
    return " ".join(said)


def main(argv: list[str]) -> None:
    """Measures, prints and writes."""
    if flags.FLAGS.chief:
        chief(flags.FLAGS.steps)
        return
    with launch.servers(1, WORKERS, network="loopback") as servers:
        ports = {
            f"{job}:{index}": split_address(address)[1]
            for job in ("ps", "worker")
            for index, address in enumerate(servers.tf_config.cluster.as_dict()[job])
        }
        processes = {name: psutil.Process(pid) for name, pid in servers.pids.items()}
        own = servers.tf_config.cluster.chief[0]
        tf_config = through(servers.tf_config.to_json()).replace(through(own), own)
        command = [sys.executable, __file__, "--chief", f"--steps={flags.FLAGS.steps}"]
        # The links are a thread of this process: TensorFlow would keep it waiting.
        with (
            Links(ports, lambda: processes) as links,
            subprocess.Popen(
                command,
                env={**os.environ, "TF_CONFIG": tf_config},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            epochs = measure(links, processes[f"worker:{SLOW}"], process)
            process.stdin.close()
    rich.print(table(epochs))
    if flags.FLAGS.json:
        path = Path(flags.FLAGS.json)
        measured = json.loads(path.read_text()) if path.exists() else {}
        measured |= {"environment": environment(), flags.FLAGS.how: epochs}
        path.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    define_flags()
    app.run(main)
