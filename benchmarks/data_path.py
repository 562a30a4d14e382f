"""One pipeline of TFRecord files, read by the chief, by the workers, or by tf.data service.

    python benchmarks/data_path.py --json=benchmarks/measured/data_path.json

Four workers, a ps and the chief are hosts of their own (network namespaces) on links of
`--rates`. Each record is an image of 150,528 bytes, and the model is small: what limits
training is the way of the data. Epochs by each route take turns on one cluster, and two
epochs of a turn have one ratio.

| route     | who reads                                                                |
| --------- | ------------------------------------------------------------------------ |
| `chief`   | the chief, which sends the batches: `AutoShardPolicy.OFF`                |
| `leases`  | the workers, told where the records are: what `fit` finds by itself      |
| `endless` | the workers, told nothing: with `repeat()`, each keeps one batch in four |
| `service` | two data workers of tf.data service, whose files are sharded `DYNAMIC`   |

Only the first two end. The others go on for as many steps, and in them miss examples and see
others twice: a worker has batches ahead that nobody asks for, and a data worker with fewer
of the files begins again before the other one has ended. `missed` counts them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
SERVICE = ("dispatcher", "data0", "data1")
CHIEF, DATA_SERVICE = (
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("data_path_chief", "data_service")
)
SHAPE = (224, 224, 3)
BYTES = 224 * 224 * 3
ROUTES = ("chief", "leases", "endless", "service")
# How many times the examples a second of each other route leases have to reach.
LEAST_RATIOS, MOST_SENT = {"chief": 3.0, "endless": 0.97, "service": 1.0}, 0.01


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_integer(
        "repeats", 5, "Epochs of each route at each rate.", lower_bound=1
    )
    flags.DEFINE_integer(
        *("examples", 1024, "Per epoch."), lower_bound=BATCH, upper_bound=2**16
    )
    flags.DEFINE_list("rates", ["1gbit", "200mbit"], "Of each host's link, as of tc.")
    flags.DEFINE_string("json", None, "Write every epoch to this file.")


def write_records(directory: Path, examples: int) -> None:
    """Writes the examples into eight files."""
    import tensorflow as tf

    for part in range(8):
        with tf.io.TFRecordWriter(str(directory / f"{part}.tfrecord")) as file:
            for number in range(part, examples, 8):
                file.write(number.to_bytes(2, "little") * (BYTES // 2))


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
                self._start(name, ["-m", "tfdist.server"], self._task(job, index))
        service = {name: f"{hosts.address(name)}:{PORT}" for name in SERVICE}
        dispatcher = service["dispatcher"]
        for name, address in service.items():
            self._start(name, [DATA_SERVICE, dispatcher, address])
        told = [records, str(flags.FLAGS.examples), dispatcher]
        self._chief = self._start("chief", [CHIEF, *told], self._task("chief", 0))

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

    def _task(self, job: str, index: int) -> dict[str, str]:
        task = tf_config.TFConfig(self._cluster, tf_config.Task(job, index))
        return {"TF_CONFIG": task.to_json()}

    def _start(
        self, name: str, program: Sequence[str], env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        with (self._logs / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                self._hosts.command(name, [sys.executable, *program]),
                env={
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "CUDA_VISIBLE_DEVICES": "-1",
                    **os.environ,
                    **(env or {}),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if name == "chief" else log,
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


def ratios(epochs: Sequence[dict[str, Any]], other: str) -> list[float]:
    """How many times the examples a second of another route, for each repeat."""
    seconds = {(each["repeat"], each["route"]): each["seconds"] for each in epochs}
    repeats = sorted({repeat for repeat, _ in seconds})
    return [seconds[each, other] / seconds[each, "leases"] for each in repeats]


def table(epochs: Sequence[dict[str, Any]], examples: int) -> rich.table.Table:
    """The medians at each rate, and the targets."""
    found = rich.table.Table(box=rich.box.ROUNDED, title=f"{examples} records an epoch")
    headings = ("link", "route", "examples/s", "missed", "bytes of the chief", "leases")
    for heading in headings:
        found.add_column(heading)
    for rate in dict.fromkeys(each["rate"] for each in epochs):
        here = [each for each in epochs if each["rate"] == rate]
        for route in ROUTES:
            by = [each for each in here if each["route"] == route]
            seconds, missed, sent = (
                statistics.median(each[key] for each in by)
                for key in ("seconds", "missed", "bytes")
            )
            share = sent / (examples * BYTES)
            found.add_row(
                *(rate, route, f"{examples / seconds:.0f}", f"{missed:.0f}"),
                f"{share:.2%}",
                _judged(here, route, share),
            )
    found.caption = "bytes: of an example; leases: times the examples/s of the route"
    return found


def _judged(epochs: Sequence[dict[str, Any]], route: str, share: float) -> str:
    """What leases reach beside a route, and of leases, what they send."""
    if route == "leases":
        return f"at most {MOST_SENT:.0%}: {_said(share <= MOST_SENT)}"
    paired, least = ratios(epochs, route), LEAST_RATIOS[route]
    ratio = statistics.median(paired)
    return (
        f"{ratio:.2f} ({min(paired):.2f} to {max(paired):.2f}), at least {least:g}: "
        f"{_said(ratio >= least)}"
    )


def _said(is_reached: bool) -> str:
    return "reached" if is_reached else "MISSED"


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    if len(argv) > 1:
        raise app.UsageError(f"only flags are allowed; received {argv[1:]}")
    values = flags.FLAGS
    names = [name for of_job in jobs().values() for name in of_job] + [*SERVICE]
    with tempfile.TemporaryDirectory() as directory, network(names) as hosts:
        logs, records = Path(directory, "logs"), Path(directory, "records")
        logs.mkdir()
        records.mkdir()
        write_records(records, values.examples)
        cluster = Cluster(hosts, str(records), logs)
        try:
            # Traces, also of longer messages, and the files in the memory of the machine.
            for route in 2 * ROUTES:
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
