"""How close placements of layers come to the best, on well-known models.

    python benchmarks/place.py --json=benchmarks/measured/place.json
    python benchmarks/place.py --markdown  # into docs/model-parallel.md
    python benchmarks/place.py --check     # exits with status 1 if it differs
    python benchmarks/place.py --plot=docs/layer_placement.png

Each model's layers are measured once, on this machine; all else is simulated. Three
tables: the models on devices of several kinds; random graphs that are small enough to try
every assignment; and a graph of 10,000 nodes.
"""

import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import pages
import turns
from absl import app, flags

from tfdist import Device, LayerEdge, LayerGraph, LayerNode, Links, place_layers
from tfdist.model_parallel.heft import place_by_finish_time
from tfdist.model_parallel.plan import EQUAL_STAGES
from tfdist.model_parallel.search import EFFORT
from tfdist.model_parallel.step import simulate
from tfdist.model_parallel.work import Work

NUM_DEVICES = (2, 4, 8)
# 10 Gbit/s.
LINKS = Links(bandwidth=1.25e9, latency=50e-6)
MICROBATCHES = 8
RANDOM = 20
SEEDS = range(200)
SCALE_NODES, SCALE_DEVICES = 10_000, 8
EQUAL, UNEQUAL, TIGHT = "equal", "unequal", "tight"


@dataclass(frozen=True)
class Model:
    """A measured model. Times are in seconds.

    Attributes:
        layers: The sum of its layers.
        step: One step of the whole model, measured beside it.
    """

    model: str
    nodes: int
    batch_size: int
    megabytes: float
    layers: float
    step: float


@dataclass(frozen=True)
class Row:
    """A model on some devices: seconds of a step, None for what does not fit."""

    model: str
    num_devices: int
    kind: str
    microbatches: int
    placed: float
    bound: float
    one: float | None
    stages: float | None
    by_finish_time: float | None
    random: float | None
    sent: int
    search: float


@dataclass(frozen=True)
class Small:
    """A random graph: seconds of a step over the best of all assignments."""

    seed: int
    nodes: int
    num_devices: int
    microbatches: int
    placed: float
    by_finish_time: float
    stages: float


@dataclass(frozen=True)
class Scale:
    """The placement of a large graph. Times are in seconds."""

    nodes: int
    num_devices: int
    seconds: float
    over_bound: float
    stages_over_bound: float


def devices_of(kind: str, num_devices: int, graph: LayerGraph) -> list[Device]:
    """Returns devices: equal ones; every second half as fast; or with little memory.

    The little memory is one and a half times an even share, and half of that on the last
    device; the first has room for the largest layer, whatever it takes.
    """
    speeds = [0.5 if kind == UNEQUAL and at % 2 else 1.0 for at in range(num_devices)]
    memories: list[int | None] = [None] * num_devices
    if kind == TIGHT:
        sizes = Work(graph, (Device("one"),), LINKS).unit_bytes
        share = int(1.5 * sum(sizes) / num_devices)
        memories = [share] * (num_devices - 1) + [share // 2]
        memories[0] = max(share, max(sizes))
    return [
        Device(f"device {at}", speed, memory)
        for at, (speed, memory) in enumerate(zip(speeds, memories, strict=True))
    ]


def compare(
    model: str, graph: LayerGraph, num_devices: int, kind: str, microbatches: int
) -> Row:
    devices = devices_of(kind, num_devices, graph)
    start = time.perf_counter()
    plan = place_layers(graph, devices, LINKS, microbatches=microbatches)
    search = time.perf_counter() - start
    work = Work(graph, tuple(devices), LINKS, microbatches)
    by_finish_time = place_by_finish_time(work)
    alone = [
        seconds
        for name, seconds in plan.compared.items()
        if name.startswith("all on ") and seconds is not None
    ]
    return Row(
        model,
        num_devices,
        kind,
        microbatches,
        plan.seconds,
        plan.bound,
        min(alone, default=None),
        plan.compared[EQUAL_STAGES],
        simulate(work, by_finish_time).seconds if work.fits(by_finish_time) else None,
        random_placement(work),
        plan.bytes_sent,
        round(search, 2),
    )


def random_placement(work: Work) -> float | None:
    """Returns the median of up to 20 random placements that fit."""
    draw, found = random.Random(1), []
    for _ in range(50 * RANDOM):
        assignment = [draw.randrange(len(work.devices)) for _ in work.graph.units]
        if work.fits(assignment):
            found.append(simulate(work, assignment).seconds)
        if len(found) == RANDOM:
            break
    return statistics.median(found) if found else None


def random_graph(seed: int, nodes: int, reach: int = 1_000_000) -> LayerGraph:
    """Returns a graph in which each node needs one to three of those before it."""
    draw = random.Random(seed)
    sizes = [draw.choice((10, 100, 1000)) for _ in range(nodes)]
    edges = [
        LayerEdge(f"n{source}", f"n{target}", sizes[source])
        for target in range(1, nodes)
        for first in [max(0, target - reach)]
        for source in sorted(
            draw.sample(
                range(first, target), min(target - first, draw.choice((1, 1, 2, 3)))
            )
        )
    ]
    return LayerGraph(
        tuple(
            LayerNode(f"n{at}", draw.uniform(0.1, 3.0), draw.uniform(0.1, 6.0))
            for at in range(nodes)
        ),
        tuple(edges),
    )


def small(seed: int) -> Small:
    """Tries every assignment of a graph: 2 devices for 8 nodes, 3 for 6."""
    draw = random.Random(seed)
    nodes, num_devices = draw.choice(((8, 2), (6, 3)))
    work = Work(
        random_graph(seed, nodes),
        tuple(Device(f"d{at}", draw.choice((1, 1, 0.5))) for at in range(num_devices)),
        Links(draw.choice((100, 1000, 1e9)), draw.choice((0.0, 0.1))),
        draw.choice((1, 1, 4)),
    )
    everything = itertools.product(range(num_devices), repeat=nodes)
    best = min(simulate(work, each).seconds for each in everything)
    plan = place_layers(
        work.graph, work.devices, work.links, microbatches=work.microbatches
    )
    return Small(
        seed,
        nodes,
        num_devices,
        work.microbatches,
        plan.seconds / best,
        simulate(work, place_by_finish_time(work)).seconds / best,
        (plan.compared[EQUAL_STAGES] or 0.0) / best,
    )


def scale(
    nodes: int = SCALE_NODES, num_devices: int = SCALE_DEVICES, effort: int = EFFORT
) -> Scale:
    graph = random_graph(1, nodes, reach=20)
    devices = [Device(f"d{at}") for at in range(num_devices)]
    start = time.perf_counter()
    plan = place_layers(graph, devices, Links(1000.0, 0.01), effort=effort)
    seconds = time.perf_counter() - start
    stages = plan.compared[EQUAL_STAGES] or 0.0
    return Scale(
        nodes,
        num_devices,
        round(seconds, 2),
        plan.seconds / plan.bound,
        stages / plan.bound,
    )


def measure() -> dict:
    # Imported late: only this needs Keras, and `--check` should be quick.
    import keras
    import place_models

    models, rows = [], []
    for name, (build, batch_size) in place_models.MODELS.items():
        found, graph = measured(name, build(), batch_size)
        models.append(found)
        print(found, flush=True)
        cases = [(kind, 1) for kind in (EQUAL, UNEQUAL, TIGHT)] + [
            (EQUAL, MICROBATCHES)
        ]
        for num_devices, case in itertools.product(NUM_DEVICES, cases):
            rows.append(compare(name, graph, num_devices, *case))
            print(rows[-1], flush=True)
        keras.backend.clear_session()
    return {
        "models": [asdict(each) for each in models],
        "rows": [asdict(each) for each in rows],
        "small": [asdict(small(seed)) for seed in SEEDS],
        "scale": asdict(scale()),
        "environment": {
            **turns.environment("keras", "tensorflow"),
            "bandwidth": LINKS.bandwidth,
            "latency": LINKS.latency,
        },
    }


def measured(name: str, model, batch_size: int) -> tuple[Model, LayerGraph]:
    """Measures a model's layers, and a step of the whole model before and after."""
    import place_models

    from tfdist import measure_layers

    step = place_models.StepTime(model, batch_size)
    before = step.seconds()
    graph = measure_layers(model, batch_size=batch_size)
    found = Model(
        name,
        len(graph.nodes),
        batch_size,
        sum(Work(graph, (Device("one"),), LINKS).unit_bytes) / 1e6,
        graph.seconds,
        statistics.mean((before, step.seconds())),
    )
    return found, graph


def plot(path: str) -> None:
    """Draws the timeline of the two towers on two devices."""
    import place_models

    from tfdist import measure_layers

    build, batch_size = place_models.MODELS["two towers"]
    graph = measure_layers(build(), batch_size=batch_size)
    place_layers(graph, devices_of(EQUAL, 2, graph), LINKS).plot(path)


def models_table(models: Sequence[Model]) -> str:
    heads = ("model", "calls", "batch", "MB", "layers, ms", "whole step, ms", "ratio")
    cells = [
        (
            each.model,
            each.nodes,
            each.batch_size,
            f"{each.megabytes:.0f}",
            f"{1e3 * each.layers:.1f}",
            f"{1e3 * each.step:.1f}",
            f"{each.layers / each.step:.2f}",
        )
        for each in models
    ]
    return pages.table(heads, cells)


def rows_table(rows: Sequence[Row]) -> str:
    """Returns a table of steps as multiples of the lower bound."""
    heads = (
        *("model", "devices", "bound, ms", "**placed**", "one device"),
        *("equal stages", "HEFT alone", "random", "MB sent"),
    )

    def over(row: Row, seconds: float | None) -> str:
        return "none fits" if seconds is None else f"{seconds / row.bound:.2f}"

    cells = [
        (
            row.model,
            row.num_devices,
            f"{1e3 * row.bound:.1f}",
            f"**{over(row, row.placed)}**",
            *(
                over(row, each)
                for each in (row.one, row.stages, row.by_finish_time, row.random)
            ),
            f"{row.sent / 1e6:.1f}",
        )
        for row in rows
    ]
    return pages.table(heads, cells)


def small_table(found: Sequence[Small]) -> str:
    heads = ("placement", "mean", "worst", "best found exactly")
    columns: dict[str, Callable[[Small], float]] = {
        "**placed**": lambda each: each.placed,
        "HEFT alone": lambda each: each.by_finish_time,
        "stages of equal cost": lambda each: each.stages,
    }
    cells = []
    for name, ratio in columns.items():
        ratios = [ratio(each) for each in found]
        exact = sum(each < 1 + 1e-9 for each in ratios)
        cells.append(
            (
                name,
                f"{statistics.mean(ratios):.3f}",
                f"{max(ratios):.3f}",
                f"{exact} of {len(ratios)}",
            )
        )
    return pages.table(heads, cells)


def sections(measured: dict) -> dict[str, str]:
    """Returns the text between each pair of marks of the page."""
    rows = [Row(**row) for row in measured["rows"]]
    size = Scale(**measured["scale"])
    about = measured["environment"]

    def of(kind: str, microbatches: int) -> str:
        chosen = (kind, microbatches)
        return rows_table([r for r in rows if (r.kind, r.microbatches) == chosen])

    return {
        "models": (
            f"{models_table([Model(**each) for each in measured['models']])}\n"
            f"Measured by `python benchmarks/place.py` with TensorFlow "
            f"{about['tensorflow']} and Keras {about['keras']}. Links have "
            f"{about['bandwidth'] / 1.25e8:g} Gbit/s and {1e6 * about['latency']:g} µs.\n"
        ),
        "equal": of(EQUAL, 1),
        "unequal": of(UNEQUAL, 1),
        "tight": of(TIGHT, 1),
        "microbatches": of(EQUAL, MICROBATCHES),
        "small": small_table([Small(**each) for each in measured["small"]]),
        "scale": (
            f"A graph of {size.nodes:,} nodes is placed on {size.num_devices} devices in "
            f"{size.seconds:.1f} s: {size.over_bound:.2f} times the lower bound, where "
            f"stages of equal cost take {size.stages_over_bound:.2f} times the bound.\n"
        ),
    }


def main(argv: Sequence[str]) -> int:
    """Measures, or writes or checks the page, and returns the exit status."""
    options = flags.FLAGS
    if options.markdown or options.check:
        shown = sections(pages.measured("place"))
        return pages.publish(pages.DOCS / "model-parallel.md", shown, options.check)
    if options.plot:
        plot(options.plot)
        return 0
    found = measure()
    for section in sections(found).values():
        print(section)
    turns.keep(options.json, found)
    return 0


if __name__ == "__main__":
    flags.DEFINE_string("plot", None, "Draw a timeline to this file.")
    pages.define_flags()
    app.run(lambda argv: sys.exit(main(argv)))
