"""The network traffic of sparse lookups, with and without aggregation on the ps.

    sudo .venv/bin/python benchmarks/embedding_traffic.py --json=embedding.json

Each ps, the worker and the chief is a process in its own network namespace. The interfaces
of the ps count the bytes, in and out, of whole training steps (forward, backward, and an
update by SGD on the ps). The routes are:

    stock       tf.compat.v1.nn.embedding_lookup_sparse on the same shards
    plain       tfdist, sending rows
    aggregated  tfdist, where each ps sums its rows
    chosen      tfdist, where each shard takes the cheaper of the two

Four parts: `bytes` (batches of many different ids), `grid` (few points of a grid,
measured), `model` (the whole grid, by the cost model that the points verify) and
`speed` (links shaped to --rate).
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from embedding_report import markdown, summary
from lookup_workload import ROUTES, Workload
from namespace_cluster import Cluster, TaskError, cluster, host_names
from netns import NetworkError, network
from turns import command, environment, keep

PARTS = ("bytes", "grid", "model", "speed")
HERE = Path(__file__).resolve().parent
CHIEF = HERE / "lookup_chief.py"


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_list("parts", list(PARTS), f"What to do, of {', '.join(PARTS)}.")
    flags.DEFINE_integer("num_rows", 1_000_000, "Rows of the table.", lower_bound=8)
    flags.DEFINE_integer("batch_size", 256, "Examples a step.", lower_bound=1)
    flags.DEFINE_integer("steps", 4, "Steps that are measured.", lower_bound=1)
    flags.DEFINE_integer("repeats", 5, "Repeats of `speed`.", lower_bound=1)
    flags.DEFINE_string("rate", "1gbit", "Of every link in `speed`, as tc says it.")
    flags.DEFINE_list("dims", ["64", "256", "512", "1024"], "For `bytes`, `speed`.")
    flags.DEFINE_list("grid_ids", ["1", "10", "100", "200"], "Ids a row of `grid`.")
    flags.DEFINE_list("grid_zipf", ["0", "1", "1.5"], "Exponents of `grid`.")
    flags.DEFINE_list("grid_ps", ["1", "4", "8"], "Numbers of ps of `grid`.")
    flags.DEFINE_string("json", None, "Write every measurement to this file.")
    flags.register_validator(
        "parts",
        lambda values: values and set(values) <= set(PARTS),
        f"must be some of {','.join(PARTS)}",
    )


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One run of some steps on one route.

    Attributes:
        part: Of the benchmark.
        repeat: From 0.
        workload: The lookups.
        route: One of `ROUTES`.
        steps: The number of steps.
        seconds: Their total time.
        ps_bytes: Received and sent by all ps, in all steps.
        worker_bytes: Received and sent by the worker, the chief's messages included.
        model_bytes: The bytes predicted by the cost model.
        counted_bytes: The bytes by the lookup's counter; 0 for `stock`.
    """

    part: str
    repeat: int
    workload: Workload
    route: str
    steps: int
    seconds: float
    ps_bytes: int
    worker_bytes: int
    model_bytes: int
    counted_bytes: int


def measure(
    started: Cluster, part: str, repeat: int, workload: Workload, route: str, steps: int
) -> Measurement:
    """Runs steps and reads the interfaces before and after them."""
    before = started.bytes()
    answer = started.ask(do="run", steps=steps)
    after = started.bytes()
    model = sum(workload.bytes(batch)[route] for batch in workload.batches(steps))
    return Measurement(
        part=part,
        repeat=repeat,
        workload=workload,
        route=route,
        steps=steps,
        seconds=answer["seconds"],
        ps_bytes=after[0] - before[0],
        worker_bytes=after[1] - before[1],
        model_bytes=model,
        counted_bytes=int(answer["counted"]),
    )


def prepared(started: Cluster, workload: Workload, route: str, steps: int) -> None:
    """Creates the table and the step, and runs the first steps."""
    started.ask(
        do="prepare",
        route=route,
        steps=steps,
        workload=dataclasses.asdict(workload),
    )


def each_route(
    started: Cluster, part: str, workload: Workload, steps: int
) -> Iterator[Measurement]:
    """Measures every route once."""
    for route in ROUTES:
        prepared(started, workload, route, steps)
        yield measure(started, part, 0, workload, route, steps)


def in_turns(
    started: Cluster, workload: Workload, steps: int, repeats: int
) -> Iterator[Measurement]:
    """Lets the routes take turns, so that other load affects all of them alike."""
    for repeat, route in itertools.product(range(repeats), ROUTES):
        prepared(started, workload, route, steps)
        yield measure(started, "speed", repeat, workload, route, steps)


def sweep(num_rows: int, batch_size: int, steps: int) -> list[dict[str, Any]]:
    """Returns the bytes of every route on the whole grid, by the cost model."""
    points = []
    for num_ps, dim, ids, zipf in itertools.product(
        range(1, 9),
        (64, 256, 1024),
        (1, 2, 3, 5, 10, 20, 50, 100, 150, 200),
        (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5),
    ):
        workload = Workload(num_ps, dim, ids, zipf, num_rows, batch_size)
        totals = [workload.bytes(batch) for batch in workload.batches(steps)]
        points.append(
            dataclasses.asdict(workload)
            | {route: sum(each[route] for each in totals) for route in ROUTES}
        )
    return points


def measurements(values: flags.FlagValues) -> Iterator[Measurement]:
    """Measures the requested parts."""

    def workload(num_ps: int, dim: int, ids: int, zipf: float) -> Workload:
        return Workload(num_ps, dim, ids, zipf, values.num_rows, values.batch_size)

    grid_ps = [int(each) for each in values.grid_ps] if "grid" in values.parts else []
    four = [4] if {"bytes", "speed"} & set(values.parts) else []
    with network(host_names(max([*grid_ps, *four], default=0))) as hosts:
        for num_ps in sorted({*grid_ps, *four}):
            with cluster(hosts, num_ps, CHIEF) as started:
                if num_ps in grid_ps:
                    for ids, zipf in itertools.product(
                        values.grid_ids, values.grid_zipf
                    ):
                        point = workload(num_ps, 64, int(ids), float(zipf))
                        yield from each_route(started, "grid", point, values.steps)
                if num_ps not in four:
                    continue
                for dim in map(int, values.dims):
                    point = workload(num_ps, dim, 100, 0.0)
                    if "bytes" in values.parts:
                        yield from each_route(started, "bytes", point, values.steps)
                    if "speed" in values.parts:
                        hosts.shape(values.rate)
                        yield from in_turns(
                            started, point, values.steps, values.repeats
                        )
                        hosts.shape(None)


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark.

    Returns:
        The exit status: 2 if the network cannot be created.
    """
    if len(argv) > 1:
        raise app.UsageError(f"flags only; received {' '.join(argv[1:])}")
    values = flags.FLAGS
    about = {**environment("tensorflow"), "command": command()}
    done = {"environment": about, "rate": values.rate, "measured": []}
    try:
        for measured in measurements(values):
            done["measured"].append(dataclasses.asdict(measured))
            print(
                f"{measured.part} {measured.workload.num_ps} ps, dim "
                f"{measured.workload.dim}, {measured.workload.ids_per_row} ids, zipf "
                f"{measured.workload.zipf:g}, {measured.route}: "
                f"{measured.ps_bytes / measured.steps:,.0f} B a step, model "
                f"{measured.model_bytes / measured.steps:,.0f}, "
                f"{measured.seconds / measured.steps:.3f} s",
                flush=True,
            )
    except (NetworkError, TaskError) as error:
        print(f"embedding_traffic: {error}", file=sys.stderr)
        return 2
    if "model" in values.parts:
        points = sweep(values.num_rows, values.batch_size, steps=1)
        done["model"] = summary(points, ROUTES)
    keep(values.json, done, indent=None)
    print(markdown(done))
    return 0


if __name__ == "__main__":
    define_flags()
    app.run(main)
