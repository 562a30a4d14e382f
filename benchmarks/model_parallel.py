"""Model parallelism: bubbles, speed, bytes and memory, measured beside their formulas.

    python benchmarks/model_parallel.py --json=benchmarks/measured/model_parallel.json
    python benchmarks/model_parallel.py --markdown

Two workers, each on a core of its own, train a chain in two stages; beside them one process
on one core has the same stages, so that what it takes is what both stages compute. Four
stages that sleep show more stages than there are cores. Bytes are counted at the interfaces
of hosts in network namespaces. Needs root for these.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import model_parallel_program as program
import pages
import turns
from absl import app, flags
from local_updates import said

from launch import local
from launch.job.plan import Program
from launch.measure.run import run
from launch.measure.shaped import shaped_hosts
from tfdist.research.model_parallel.schedule import make_schedule

PROGRAM = Path(program.__file__)
CLUSTER = ("--num_ps=0", "--num_workers=2", "--program=coordinator")
MEMORY = {
    "gpipe": ["--schedule=gpipe"],
    "1f1b": ["--schedule=1f1b"],
    "gpipe, recompute": ["--schedule=gpipe", "--recompute"],
}
MEMORY_SIZE = ["--rows=4096", "--width=512"]
BYTES_ROWS = 64
ACCURACY_SIZE = ["--repeats=2", "--epochs=6"]
BUBBLE_SIZE = ["--rows=256", "--width=1024"]
PARTS = ("bubble", "speed", "sleep", "memory", "bytes", "accuracy")
FLAGS = flags.FLAGS


def on_workers(options: Sequence[str]) -> Any:
    """Runs the program on two workers, and returns what it prints."""
    with tempfile.TemporaryDirectory() as logs:
        command = ["-m", "launch.local", *CLUSTER, f"--log_dir={logs}"]
        subprocess.run(
            [sys.executable, *command, str(PROGRAM), *options],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(_last_line(Path(logs, "chief.log").read_text()))


def in_one_process(part: str) -> Any:
    """Runs a part on the devices of one process, and returns what it prints."""
    size = ACCURACY_SIZE if part == "accuracy" else []
    command = [sys.executable, str(PROGRAM), f"--part={part}", *size]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(_last_line(done.stdout))


def _last_line(text: str) -> str:
    return [line for line in text.splitlines() if line.startswith(("{", "["))][-1]


def bytes_of_links() -> dict[str, float]:
    """Returns the bytes that each worker receives in a step."""
    values = local.define_flags()
    with shaped_hosts("1gbit", 0, 2) as hosts, tempfile.TemporaryDirectory() as logs:
        values(["launch.local", *CLUSTER, f"--log_dir={logs}", "--startup_timeout=200"])
        options = "--part=bytes", f"--rows={BYTES_ROWS}", "--epochs=5"
        job = local.job_of(values, Program(str(PROGRAM), options), hosts.cluster)
        job = hosts.place(job)
        found = run(job, {}, partial(hosts.bytes_of, job))
        if found.status:
            raise RuntimeError(said(found, logs))
    # Functions are traced and sent in the first epoch.
    return {
        f"worker:{each}": statistics.median(
            epoch.received[f"worker:{each}"] / program.SENT
            for epoch in found.epochs[1:]
        )
        for each in range(2)
    }


def predicted_bytes(rows: int, width: int) -> dict[str, int]:
    """Returns the same by the shapes: what crosses the cut, and what the chief gives."""
    batch = rows * program.MICROBATCHES[-1] * 4
    return {
        "worker:0": batch * (width + program.FEATURES),
        "worker:1": batch * (width + 1),
    }


def medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the median of each."""
    return {name: statistics.median(each) for name, each in times.items()}


def bubble_table(measured: Mapping[str, Any]) -> str:
    """Returns bubbles beside the formula."""
    two, four = medians(measured["bubble"]), medians(measured["sleep"])
    cells = []
    for each in program.MICROBATCHES:
        busy = 1 - two[f"one core {each}"] / (2 * two[str(each)])
        idle = 1 - each * 3 * program.SLEEP / four[str(each)]
        formulas = [(k - 1) / (each + k - 1) for k in (2, 4)]
        ratio = (1 - formulas[0]) / (1 - busy)
        of_two = f"{busy:.1%}", f"{formulas[0]:.1%}", f"{ratio:.2f}"
        cells.append((each, *of_two, f"{idle:.1%}", f"{formulas[1]:.1%}"))
    heads = (
        *("M", "K = 2, computing", "formula", "step / formula"),
        *("K = 4, sleeping", "formula"),
    )
    return pages.table(heads, cells)


def speed_table(measured: Mapping[str, Any]) -> str:
    """Returns steps on the same batch beside one process on one core."""
    times = medians(measured["speed"])
    last = program.MICROBATCHES[-1]
    names = {
        "one core plain": "one process, one core",
        "whole": "M = 1",
        str(last): f"M = {last}",
        "stale 1": "M = 1, `max_staleness=1`",
        "stale 2": "M = 1, `max_staleness=2`",
    }
    cells = [
        (text, f"{times[name]:.2f}", f"{times['one core plain'] / times[name]:.2f}")
        for name, text in names.items()
    ]
    return pages.table(("", "seconds of a step", "times one core"), cells)


def memory_table(measured: Mapping[str, Any]) -> str:
    """Returns the peak of each stage beside the microbatches that it keeps."""
    cells = []
    for name, found in measured["memory"].items():
        schedule = make_schedule(name.partition(",")[0], 2, program.MICROBATCHES[-1])
        kept = [schedule.kept(stage) for stage in range(2)]
        cells.append((name, *(f"{each / 1e6:.0f}" for each in found), *kept))
    heads = ("", "stage 0, MB", "stage 1, MB", "stage 0 keeps", "stage 1 keeps")
    return pages.table(heads, cells)


def accuracy_table(measured: Mapping[str, Any]) -> str:
    """Returns the test accuracy for stages and staleness, over seeds."""
    found = measured["accuracy"]
    cells = []
    for stages, staleness in dict.fromkeys(tuple(name.split()[1:]) for name in found):
        late = 2 * int(staleness) * (int(stages) - 1)
        of_rates = [found[f"{each} {stages} {staleness}"] for each in program.RATES]
        means = [f"{statistics.mean(e):.3f} ({min(e):.3f})" for e in of_rates]
        cells.append((stages, staleness, late, *means))
    rates = (f"rate {each}" for each in program.RATES)
    heads = ("stages", "`max_staleness`", "steps that stage 0 is late", *rates)
    return pages.table(heads, cells)


def bytes_table(measured: Mapping[str, Any]) -> str:
    """Returns the bytes of each link beside those predicted."""
    predicted = predicted_bytes(BYTES_ROWS, program.WIDTH)
    cells = [
        (
            name,
            f"{found:,.0f}",
            f"{predicted[name]:,}",
            f"{found / predicted[name]:.3f}",
        )
        for name, found in measured["bytes"].items()
    ]
    return pages.table(("received by", "bytes a step", "by the shapes", "ratio"), cells)


def sections(measured: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the page has between its marks."""
    return {
        "bubbles": bubble_table(measured),
        "speed": speed_table(measured),
        "memory": memory_table(measured),
        "bytes": bytes_table(measured),
        "staleness": f"{accuracy_table(measured)}\n{pages.recorded('model_parallel')}",
    }


def main(argv: Sequence[str]) -> int:
    """Measures, or writes or checks the page."""
    if FLAGS.markdown or FLAGS.check:
        shown = sections(pages.measured("model_parallel"))
        return pages.publish(pages.DOCS / "measured-pieces.md", shown, FLAGS.check)
    found = turns.kept(FLAGS.json)
    for part in FLAGS.measure:
        if part == "memory":
            found[part] = {
                name: on_workers(["--part=memory", *MEMORY_SIZE, *options])
                for name, options in MEMORY.items()
            }
        elif part == "bytes":
            found[part] = bytes_of_links()
        elif part in ("bubble", "speed"):
            size = BUBBLE_SIZE if part == "bubble" else []
            found[part] = on_workers([f"--part={part}", *size])
        else:
            found[part] = in_one_process(part)
        found.setdefault("load", {})[part] = os.getloadavg()[0]
        print(part, json.dumps(found[part]), flush=True)
        turns.keep(FLAGS.json, found, [part])
    return 0


if __name__ == "__main__":
    pages.define_flags()
    flags.DEFINE_multi_enum("measure", list(PARTS), list(PARTS), "Which parts.")
    app.run(main)
