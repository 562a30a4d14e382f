"""One pipeline of TFRecord files, read by the chief or by the workers.

    python benchmarks/data_path.py --json=benchmarks/measured/data_path.json

Four workers, a ps and the chief are hosts of their own (network namespaces) on links of
`--rates`. Each record is an image of 150,528 bytes, and the model is small: what limits
training is the way of the data. Epochs by each route take turns on one cluster, and a pair
of epochs has one ratio. Who reads is said by `auto_shard_policy` alone:

| route    | the chief sends                                        |
| -------- | ------------------------------------------------------ |
| `chief`  | the batches, as with `AutoShardPolicy.OFF`             |
| `leases` | where the records are: what `fit` finds by itself      |
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich
import rich.box
import rich.table
from absl import app, flags
from chaos_report import environment
from netns import Network, network

import tf_config

WORKERS, PORT, BATCH = 4, 2222, 8
SHAPE = (224, 224, 3)
BYTES = 224 * 224 * 3
ROUTES = ("chief", "leases")
LEAST_RATIO, MOST_SENT = 3.0, 0.01


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer("repeats", 5, "Pairs of epochs at each rate.", lower_bound=1)
    flags.DEFINE_integer("examples", 1024, "Per epoch.", lower_bound=BATCH)
    flags.DEFINE_list("rates", ["1gbit", "200mbit"], "Of each host's link, as of tc.")
    flags.DEFINE_string("chief", None, "Internal: run as the chief, on these files.")
    flags.DEFINE_string("json", None, "Write every epoch to this file.")


def write_records(directory: Path, examples: int) -> None:
    """Writes the examples into eight files."""
    import tensorflow as tf

    for part in range(8):
        with tf.io.TFRecordWriter(str(directory / f"{part}.tfrecord")) as file:
            for number in range(part, examples, 8):
                file.write(bytes([number % 256]) * BYTES)


def chief(directory: str) -> None:
    """Runs as the chief: an epoch by the route in each line, reported in JSON."""
    import keras
    import tensorflow as tf

    import tfdist

    strategy = tfdist.ParameterServerStrategy(startup_timeout=200.0)

    def parse(records: Any) -> tuple[Any, Any]:
        images = tf.reshape(tf.io.decode_raw(records, tf.uint8), [-1, *SHAPE])
        return images, tf.cast(images[:, 0, 0, :1], tf.float32)

    def pipeline(route: str) -> Any:
        files = tf.data.Dataset.list_files(f"{directory}/*.tfrecord", seed=1)
        records = files.interleave(
            tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE
        )
        options = tf.data.Options()
        if route == "chief":
            options.experimental_distribute.auto_shard_policy = (
                tf.data.experimental.AutoShardPolicy.OFF
            )
        batches = records.shuffle(64, seed=1).batch(BATCH)
        return batches.map(parse, tf.data.AUTOTUNE).with_options(options)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input(SHAPE, dtype="uint8"),
                keras.layers.Rescaling(1 / 255),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse")
    data = {route: pipeline(route) for route in ROUTES}
    for line in sys.stdin:
        began = time.perf_counter()
        model.fit(data[line.strip()], verbose=0)
        seconds = time.perf_counter() - began
        told = {"seconds": seconds, "steps": list(strategy.worker_report().steps)}
        print(json.dumps(told), file=sys.__stdout__, flush=True)


class Cluster:
    """The processes of a cluster, each on its host."""

    def __init__(self, hosts: Network, records: str, logs: Path) -> None:
        self._hosts, self._logs = hosts, logs
        self._cluster = tf_config.Cluster(
            **{
                job: tuple(f"{hosts.address(name)}:{PORT}" for name in names)
                for job, names in jobs().items()
            }
        )
        self._processes: list[subprocess.Popen[str]] = []
        for job in ("ps", "worker"):
            for index, name in enumerate(jobs()[job]):
                self._start(name, job, index, ["-m", "tfdist.server"])
        self._chief = self._start("chief", "chief", 0, [__file__, f"--chief={records}"])

    def epoch(self, route: str) -> dict[str, Any]:
        """Trains for an epoch, and returns its seconds and the bytes of the chief."""
        assert self._chief.stdin
        assert self._chief.stdout
        before = sum(self._hosts.bytes("chief"))
        print(route, file=self._chief.stdin, flush=True)
        line = self._chief.stdout.readline()
        if not line:
            raise RuntimeError((self._logs / "chief.log").read_text()[-2000:])
        sent = sum(self._hosts.bytes("chief")) - before
        return {"route": route, "bytes": sent, **json.loads(line)}

    def close(self) -> None:
        """Ends every process."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _start(
        self, name: str, job: str, index: int, program: Sequence[str]
    ) -> "subprocess.Popen[str]":
        task = tf_config.TFConfig(self._cluster, tf_config.Task(job, index))
        with (self._logs / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                self._hosts.command(name, [sys.executable, *program]),
                env={
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "CUDA_VISIBLE_DEVICES": "-1",
                    **os.environ,
                    "TF_CONFIG": task.to_json(),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if job == "chief" else log,
                stderr=log,
                text=True,
            )
        self._processes.append(process)
        return process


def jobs() -> dict[str, list[str]]:
    """Returns the names of the hosts of each job."""
    workers = [f"worker{index}" for index in range(WORKERS)]
    return {"chief": ["chief"], "ps": ["ps0"], "worker": workers}


def measure(hosts: Network, cluster: Cluster, rate: str) -> list[dict[str, Any]]:
    """Returns the epochs at a rate."""
    hosts.shape(rate)
    epochs = []
    for repeat in range(flags.FLAGS.repeats):
        # Whoever is first finds the machine as the other left it.
        for route in ROUTES[::-1] if repeat % 2 else ROUTES:
            epochs.append({"rate": rate, "repeat": repeat, **cluster.epoch(route)})
            print(epochs[-1], flush=True)
    hosts.shape(None)
    return epochs


def ratios(epochs: Sequence[dict[str, Any]]) -> list[float]:
    """How many times the examples a second of the chief's route, for each repeat."""
    seconds = {(each["repeat"], each["route"]): each["seconds"] for each in epochs}
    repeats = sorted({repeat for repeat, _ in seconds})
    return [seconds[each, "chief"] / seconds[each, "leases"] for each in repeats]


def table(epochs: Sequence[dict[str, Any]], examples: int) -> rich.table.Table:
    """The medians at each rate, and the targets."""
    found = rich.table.Table(box=rich.box.ROUNDED, title=f"{examples} records an epoch")
    for heading in ("link", "examples/s: chief", "leases", "ratio", "bytes by leases"):
        found.add_column(heading)
    for rate in dict.fromkeys(each["rate"] for each in epochs):
        here = [each for each in epochs if each["rate"] == rate]
        by = {
            route: [each for each in here if each["route"] == route] for route in ROUTES
        }
        speeds = [
            examples / statistics.median(each["seconds"] for each in by[route])
            for route in ROUTES
        ]
        paired = ratios(here)
        sent = statistics.median(each["bytes"] for each in by["leases"])
        share = sent / (examples * BYTES)
        reached = statistics.median(paired) >= LEAST_RATIO and share <= MOST_SENT
        found.add_row(
            rate,
            *(f"{speed:.0f}" for speed in speeds),
            f"{statistics.median(paired):.2f} ({min(paired):.2f} to {max(paired):.2f})",
            f"{share:.2%} of an example: {'reached' if reached else 'MISSED'}",
        )
    found.caption = (
        f"targets: a ratio of {LEAST_RATIO:g} or more, {MOST_SENT:.0%} or less"
    )
    return found


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    if len(argv) > 1:
        raise app.UsageError(f"only flags are allowed; received {argv[1:]}")
    values = flags.FLAGS
    if values.chief:
        chief(values.chief)
        return
    names = [name for of_job in jobs().values() for name in of_job]
    with tempfile.TemporaryDirectory() as directory, network(names) as hosts:
        logs, records = Path(directory, "logs"), Path(directory, "records")
        logs.mkdir()
        records.mkdir()
        write_records(records, values.examples)
        cluster = Cluster(hosts, str(records), logs)
        try:
            for route in ROUTES:  # Traces, and the files in the memory of the machine.
                cluster.epoch(route)
            epochs = [
                each for rate in values.rates for each in measure(hosts, cluster, rate)
            ]
        finally:
            cluster.close()
    rich.print(table(epochs, values.examples))
    if values.json:
        kept = {"environment": environment(), "epochs": epochs}
        Path(values.json).write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    define_flags()
    app.run(main)
