"""All-reduce within one process, whose devices share memory: tfdist and TensorFlow.

    python benchmarks/all_reduce_local.py --json=benchmarks/measured/all_reduce_local.json
    python benchmarks/all_reduce_local.py --markdown  # into docs/algorithms.md
    python benchmarks/all_reduce_local.py --check     # exits with status 1 if it differs

Logical CPU devices reduce one tensor, or 60 tensors of the same size, in a function of a
`tf.distribute.MirroredStrategy`. The contenders take turns, in a different order in each
round, so that other load affects all of them alike; the table shows medians.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import pages
import turns
from absl import app, flags

NUM_DEVICES = (4, 8)
NUM_TENSORS = (1, 60)
SIZES = {
    "4 KB": 4_000,
    "64 KB": 64_000,
    "1 MB": 1_000_000,
    "10 MB": 10_000_000,
    "100 MB": 100_000_000,
}
LEAST_ROUNDS = 101
OURS = ("AllReduce", "RingAllReduce")
THEIRS = ("ReductionToOneDevice", "HierarchicalCopyAllReduce", "CollectiveAllReduce")


@dataclass(frozen=True)
class Case:
    """The tensors that are reduced, `size` bytes in total."""

    devices: int
    tensors: int
    size: int


@dataclass(frozen=True)
class Row:
    """The medians of the rounds of one case.

    Attributes:
        case: What was reduced.
        rounds: The number of turns of each contender.
        milliseconds: The time that each contender took.
        default: The time of the default choice over that of the best of TensorFlow's
            own, in the same round.
        ring: The time of the ring over that of TensorFlow's default, the same way.
    """

    case: Case
    rounds: int
    milliseconds: dict[str, float]
    default: float
    ring: float


def contender(name: str, case: Case) -> Callable[[], object]:
    """Returns a function that reduces, and waits until all devices have the result."""
    import tensorflow as tf

    import tfdist

    ops = {
        "AllReduce": tfdist.AllReduce,
        "RingAllReduce": tfdist.RingAllReduce,
        "ReductionToOneDevice": tf.distribute.ReductionToOneDevice,
        "HierarchicalCopyAllReduce": tf.distribute.HierarchicalCopyAllReduce,
        "CollectiveAllReduce": lambda: None,  # MirroredStrategy's default.
    }[name]()
    devices = [f"CPU:{i}" for i in range(case.devices)]
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=ops)
    shape = [case.size // case.tensors // 4]

    def made() -> list[tf.Tensor]:
        return [tf.ones(shape) for _ in range(case.tensors)]

    def reduced(*values: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        here = [tf.identity(value) for value in values]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, here)
        return tf.add_n([each[-1] for each in sums])

    values = tuple(strategy.run(made))
    step = tf.function(lambda: strategy.run(reduced, args=values))

    def run() -> None:
        for value in step().values:
            assert value.numpy() == case.devices * case.tensors

    return run


def measure(case: Case, seconds: float) -> Row:
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * case.devices
    )
    run = {name: contender(name, case) for name in (*OURS, *THEIRS)}
    for warm in (*run.values(), *run.values()):
        warm()
    taken: dict[str, list[float]] = {name: [] for name in run}
    order = list(run)
    shuffle = random.Random(0).shuffle
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(taken[order[0]]) < LEAST_ROUNDS:
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            run[name]()
            taken[name].append(time.perf_counter() - start)
    medians = {
        name: round(1e3 * statistics.median(each), 3) for name, each in taken.items()
    }

    def ratio(ours: str, theirs: str) -> float:
        return round(turns.Spread.of_ratios(taken[ours], taken[theirs]).median, 3)

    best = min(THEIRS, key=medians.__getitem__)
    return Row(
        case,
        len(taken[order[0]]),
        medians,
        ratio("AllReduce", best),
        ratio("RingAllReduce", "CollectiveAllReduce"),
    )


def measure_all(seconds: float) -> dict:
    """Measures each case in a separate process, since devices are configured only once."""
    rows = []
    for devices in NUM_DEVICES:
        for tensors in NUM_TENSORS:
            for size in SIZES.values():
                case = json.dumps(asdict(Case(devices, tensors, size)))
                done = subprocess.run(
                    [
                        sys.executable,
                        __file__,
                        f"--case={case}",
                        f"--seconds={seconds}",
                    ],
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                print(rows[-1], flush=True)
    about = {**turns.environment("tensorflow"), "load": round(os.getloadavg()[2], 1)}
    return {"rows": rows, "environment": about}


def rows_of(measured: dict) -> list[Row]:
    return [Row(**{**row, "case": Case(**row["case"])}) for row in measured["rows"]]


def table(rows: Sequence[Row]) -> str:
    """Returns a Markdown table of all cases."""
    labels = {size: label for label, size in SIZES.items()}
    heads = [
        "devices",
        "size",
        "tensors",
        *(f"`{name}`" for name in (*OURS, *THEIRS)),
        "default / best of TensorFlow",
        "ring / TensorFlow's default",
    ]
    cells = [
        [
            row.case.devices,
            labels[row.case.size],
            row.case.tensors,
            *(f"{row.milliseconds[name]:.3g} ms" for name in (*OURS, *THEIRS)),
            f"{row.default:.2f}",
            f"{row.ring:.2f}",
        ]
        for row in rows
    ]
    return pages.table(heads, cells)


def section(measured: dict) -> str:
    rows, about = rows_of(measured), measured["environment"]
    return (
        f"{table(rows)}\nMedians of {min(row.rounds for row in rows)} or more rounds, "
        "measured by `python benchmarks/all_reduce_local.py` with TensorFlow "
        f"{about['tensorflow']} on {about['cores']} cores, shared with other programs "
        f"(load {about['load']:g}).\n"
    )


def main(argv: Sequence[str]) -> int:
    """Measures, or writes or checks the page, and returns the exit status."""
    options = flags.FLAGS
    if options.case:
        row = measure(Case(**json.loads(options.case)), options.seconds)
        print(json.dumps(asdict(row)))
        return 0
    if options.markdown or options.check:
        sections = {"local": section(pages.measured("all_reduce_local"))}
        return pages.publish(pages.DOCS / "algorithms.md", sections, options.check)
    measured = measure_all(options.seconds)
    print(section(measured))
    turns.keep(options.json, measured)
    return 0


def define_flags() -> None:
    flags.DEFINE_float("seconds", 15, "How long each case is measured.", lower_bound=0)
    flags.DEFINE_string("case", None, "Measure this one case, JSON, and print it.")
    pages.define_flags()


if __name__ == "__main__":
    define_flags()
    app.run(lambda argv: sys.exit(main(argv)))
