"""All-reduce between hosts: tfdist and TensorFlow, in seconds and bytes.

    sudo .venv/bin/python benchmarks/all_reduce.py --parts=reduce --json=...
    sudo .venv/bin/python benchmarks/all_reduce.py --parts=overlap --json=...
    .venv/bin/python benchmarks/all_reduce_report.py  # into a page of docs/

Each host is a network namespace, whose interface counts the bytes. The rows take turns on
the same hosts:

    choice                     tfdist.AllReduce(), which chooses by size
    ring                       the ring of tfdist
    ring_bfloat16              the same, with chunks sent as bfloat16
    reduce_then_broadcast      the star of tfdist
    RING, AUTO                 tf.distribute.MultiWorkerMirroredStrategy; one program per host
    ReductionToOneDevice       TensorFlow's, in one graph like ours
    HierarchicalCopyAllReduce  likewise

The part `reduce` times one all-reduce per call, like a training step that only reduces,
and several chained ones in one graph, which excludes the cost of starting a graph. The
part `overlap` times steps of a model whose backward pass takes as long as the exchange of
its gradients (see all_reduce_bench.py).
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import app, flags
from all_reduce_tasks import Clusters, clusters, host_names
from namespace_cluster import TaskError
from netns import Namespaces, NetworkError, network
from turns import command, environment, keep

PARTS = ("reduce", "overlap")
UNSHAPED = "none"


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_list("parts", list(PARTS), f"What to do, of {', '.join(PARTS)}.")
    flags.DEFINE_list("hosts", ["4", "8"], "Numbers of hosts.")
    flags.DEFINE_list(
        "rates",
        ["200mbit", "1gbit", UNSHAPED],
        f"Of every link, as tc says it; {UNSHAPED} for links as fast as they are.",
    )
    flags.DEFINE_list(
        "sizes",
        ["4e3", "32e3", "256e3", "1e6", "4e6", "25e6", "100e6"],
        "Of what is reduced, in bytes.",
    )
    flags.DEFINE_float(
        "most_slow", 25e6, "Bytes up to which the slow rows are tried on shaped links."
    )
    flags.DEFINE_float("most_chained", 1e6, "Bytes up to which rounds share a graph.")
    flags.DEFINE_integer("rounds", 10, "Of one graph.", lower_bound=2)
    flags.DEFINE_integer("repeats", 5, "Of everything.", lower_bound=1)
    flags.DEFINE_integer("overlap_hosts", 4, "Hosts of `overlap`.", lower_bound=2)
    flags.DEFINE_string("overlap_rate", "200mbit", "Of the links in `overlap`.")
    flags.DEFINE_integer("layers", 8, "Of the model.", lower_bound=1)
    flags.DEFINE_float("layer_bytes", 3.1e6, "Of the weights of a layer.")
    flags.DEFINE_float("compute", 1.6, "Seconds of the backward pass.")
    flags.DEFINE_string("json", None, "Write every measurement to this file.")
    flags.register_validator(
        "parts",
        lambda values: values and set(values) <= set(PARTS),
        f"must be some of {','.join(PARTS)}",
    )


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to reduce.

    Attributes:
        name: The name in the report.
        of_cluster: Which cluster runs it: `chief` or `members`.
        ops: What reduces, by its name there; None to reduce nothing.
        options: The options of `ops`.
        slow: Whether its busiest link carries several times the others' bytes.
    """

    name: str
    of_cluster: str
    ops: str | None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    slow: bool = False


CHOICE = "choice"
ROWS = (
    Row(CHOICE, "chief", CHOICE),
    Row("ring", "chief", "ring"),
    Row("ring_bfloat16", "chief", "ring", {"wire_dtype": "bfloat16"}),
    Row("reduce_then_broadcast", "chief", "reduce_then_broadcast", slow=True),
    Row("RING", "members", "RING"),
    Row("AUTO", "members", "AUTO"),
    Row("ReductionToOneDevice", "chief", "ReductionToOneDevice", slow=True),
    Row("HierarchicalCopyAllReduce", "chief", "HierarchicalCopyAllReduce", slow=True),
)
ONE_BUCKET = {"bucket_bytes": 1e12}
OVERLAP_ROWS = (
    Row("compute alone, in one graph", "chief", None),
    Row("compute alone, a program a host", "members", None),
    Row("ring, default buckets", "chief", "ring"),
    Row("ring, buckets of 2 MB", "chief", "ring", {"bucket_bytes": 2_000_000}),
    Row("ring, one bucket", "chief", "ring", ONE_BUCKET),
    Row("AllReduce(), default buckets", "chief", CHOICE),
    Row("AUTO, default (one pack)", "members", "AUTO"),
    *(
        Row(
            f"RING, bytes_per_pack={pack:,}",
            "members",
            "RING",
            {"bytes_per_pack": pack},
        )
        for pack in (1_000_000, 3_000_000, 6_000_000, 12_000_000)
    ),
)
"""Of which the exchange alone is timed too, where `ops` reduces."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One timing.

    Attributes:
        part: The part of the benchmark.
        hosts: The number of hosts.
        rate: The rate of their links.
        row: The name of the row.
        size: The bytes that are reduced.
        rounds: All-reduces in one graph.
        compute: Seconds of the backward pass; 0 for none.
        repeat: From 0.
        seconds: The time of one round.
        bytes: The bytes of one round, in the busier direction of the busiest link.
    """

    part: str
    hosts: int
    rate: str
    row: str
    size: int
    rounds: int
    compute: float
    repeat: int
    seconds: float
    bytes: float


def timed(started: Clusters, row: Row, calls: int, **case: Any) -> tuple[float, float]:
    """Returns the seconds of one round, and its bytes on the busiest link."""
    before = started.bytes()
    answer = started.ask(
        row.of_cluster,
        do="run",
        calls=calls,
        ops=row.ops,
        options=row.options,
        **case,
    )
    moved = [
        end - begin
        for pair in zip(before, started.bytes(), strict=True)
        for begin, end in zip(*pair, strict=True)
    ]
    rounds = case.get("rounds", 1)
    return answer["seconds"] / rounds, max(moved) / max(1, calls) / rounds


def reductions(
    started: Clusters, hosts: Namespaces, num_hosts: int, values: flags.FlagValues
) -> Iterator[Measurement]:
    """Measures the part `reduce`: for each rate and size, all rows in turns."""
    for size in (int(float(each)) for each in values.sizes):
        chained = [values.rounds] if size <= values.most_chained else []
        cases = list(itertools.product(ROWS, [1, *chained]))
        for row, rounds in cases:
            timed(started, row, 0, rounds=rounds, size=size)
        for rate in values.rates:
            hosts.shape(None if rate == UNSHAPED else rate)
            for repeat, (row, rounds) in itertools.product(
                range(values.repeats), cases
            ):
                if row.slow and rate != UNSHAPED and size > values.most_slow:
                    continue
                calls = calls_of(size) if rounds == 1 else 1
                found = timed(started, row, calls, rounds=rounds, size=size)
                yield Measurement(
                    *("reduce", num_hosts, rate, row.name, size),
                    *(rounds, 0.0, repeat, *found),
                )
            hosts.shape(None)
        forget(started)


def overlaps(
    started: Clusters, hosts: Namespaces, values: flags.FlagValues
) -> Iterator[Measurement]:
    """Measures the part `overlap`, all rows in turns."""
    model = {"layers": values.layers, "layer_bytes": int(values.layer_bytes)}
    cases = [
        (row, compute)
        for row in OVERLAP_ROWS
        for compute in ([values.compute, 0.0] if row.ops else [values.compute])
    ]
    for row, compute in cases:
        timed(started, row, 0, compute_seconds=compute, **model)
    hosts.shape(values.overlap_rate)
    size = model["layers"] * model["layer_bytes"]
    for repeat, (row, compute) in itertools.product(range(values.repeats), cases):
        found = timed(started, row, 1, compute_seconds=compute, **model)
        yield Measurement(
            *("overlap", values.overlap_hosts, values.overlap_rate, row.name, size),
            *(1, compute, repeat, *found),
        )
    hosts.shape(None)
    forget(started)


def calls_of(size: int) -> int:
    """The number of calls that are timed together: short ones need more."""
    return max(1, min(20, 4_000_000 // size))


def forget(started: Clusters) -> None:
    for each in ("chief", "members"):
        started.ask(each, do="forget")


def measurements(
    values: flags.FlagValues, about: dict[str, Any]
) -> Iterator[Measurement]:
    """Measures the requested parts, and adds the environment."""
    wanted = {int(each) for each in values.hosts} if "reduce" in values.parts else set()
    overlap = {values.overlap_hosts} if "overlap" in values.parts else set()
    for num_hosts in sorted(wanted | overlap):
        with (
            network(host_names(num_hosts)) as hosts,
            clusters(hosts, num_hosts) as started,
        ):
            about |= started.ask("chief", do="defaults")
            if num_hosts in overlap:
                yield from overlaps(started, hosts, values)
            if num_hosts in wanted:
                yield from reductions(started, hosts, num_hosts, values)


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark.

    Returns:
        The exit status: 2 if the network cannot be created, or a task fails.
    """
    if len(argv) > 1:
        raise app.UsageError(f"flags only; received {' '.join(argv[1:])}")
    values = flags.FLAGS
    done: dict[str, Any] = {
        "environment": {**environment("tensorflow"), "command": command()},
        "overlap": {
            "layers": values.layers,
            "layer_bytes": int(values.layer_bytes),
            "compute": values.compute,
        },
        "measured": [],
    }
    try:
        for each in measurements(values, done["overlap"]):
            done["measured"].append(dataclasses.asdict(each))
            print(
                f"{each.part} {each.hosts} hosts, {each.rate}, {each.size:,} B, "
                f"{each.row}, {each.rounds} rounds, compute {each.compute:g} s: "
                f"{each.seconds * 1e3:.2f} ms, {each.bytes:,.0f} B",
                flush=True,
            )
    except (NetworkError, TaskError) as error:
        print(f"all_reduce: {error}", file=sys.stderr)
        return 2
    keep(values.json, done, indent=None)
    return 0


if __name__ == "__main__":
    define_flags()
    app.run(main)
