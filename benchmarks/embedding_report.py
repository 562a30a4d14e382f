"""Tables of the results of embedding_traffic.py: pure functions of its JSON.

    python benchmarks/embedding_report.py           # into docs/measured-embeddings.md
    python benchmarks/embedding_report.py --check   # exits with status 1 if they differ

No number there is typed by hand.
"""

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pages
from turns import Spread

Row = dict[str, Any]
Point = tuple[int, int, int, float]


def markdown(done: dict[str, Any]) -> str:
    """Returns the tables of the measured parts, in Markdown."""
    measured, about = done["measured"], done["environment"]
    parts: dict[str, Callable[[list[Row]], str]] = {
        "bytes": _bytes_table,
        "speed": lambda rows: _speed_table(rows, done["rate"]),
        "grid": _grid_text,
    }
    tables = [
        table(rows)
        for part, table in parts.items()
        if (rows := [row for row in measured if row["part"] == part])
    ]
    if measured:
        tables.append(_model_error(measured))
    if "model" in done:
        tables.append(_model_summary(done["model"]))
    versions = f"Python {about['python']}, TensorFlow {about['tensorflow']}"
    tables.append(f"{versions}, {about['cores']} cores.\n\n    {about['command']}\n")
    return "\n".join(tables)


def summary(points: Sequence[Row], routes: Sequence[str]) -> Row:
    """Summarizes a sweep of the cost model: `stock`, `chosen`... for each point."""
    better = [min(point["stock"], point["aggregated"]) for point in points]
    ratios = [
        point["chosen"] / least for point, least in zip(points, better, strict=True)
    ]
    axes = [name for name in points[0] if name not in routes]
    return {
        "axes": {name: sorted({point[name] for point in points}) for name in axes},
        "points": len(points),
        "worse": sum(ratio > 1 for ratio in ratios),
        "better_than_both": sum(
            point["chosen"] < min(point["plain"], point["aggregated"])
            for point in points
        ),
        "chosen_over_better": [min(ratios), max(ratios)],
        "stock_over_chosen": [
            min(point["stock"] / point["chosen"] for point in points),
            max(point["stock"] / point["chosen"] for point in points),
        ],
    }


def times_fewer(rows: Sequence[Row]) -> list[float]:
    """Returns the bytes of `embedding_lookup_sparse` over ours, for each workload."""
    return [
        _per_step(routes["stock"], "ps_bytes") / _per_step(routes["chosen"], "ps_bytes")
        for routes in _by_point(rows).values()
    ]


def _bytes_table(rows: list[Row]) -> str:
    lines = []
    for point, routes in _by_point(rows).items():
        per_step = {
            route: _per_step(each, "ps_bytes") for route, each in routes.items()
        }
        lines.append(
            [
                f"{point[1]}",
                *(_mega(per_step[r]) for r in ("stock", "aggregated", "chosen")),
                f"{per_step['stock'] / per_step['chosen']:.1f}",
            ]
        )
    about = rows[0]["workload"]
    return (
        f"Bytes per training step at the interfaces of {about['num_ps']} ps, in and out: "
        f"batch {about['batch_size']}, {about['ids_per_row']} ids per example, uniform from "
        f"{about['num_rows']:,} rows.\n\n"
        + pages.table(
            [
                "dim",
                "`embedding_lookup_sparse`, MB",
                "aggregated, MB",
                "chosen, MB",
                "times fewer",
            ],
            lines,
        )
    )


def _speed_table(rows: list[Row], rate: str) -> str:
    lines = []
    for point, routes in _by_point(rows).items():
        speeds = {
            route: [
                row["workload"]["batch_size"] * row["steps"] / row["seconds"]
                for row in sorted(each, key=lambda row: row["repeat"])
            ]
            for route, each in routes.items()
        }
        lines.append(
            [
                f"{point[1]}",
                *(f"{Spread.of(speeds[r]):,.0f}" for r in ("stock", "plain", "chosen")),
                f"{Spread.of_ratios(speeds['chosen'], speeds['stock']):.1f}",
            ]
        )
    repeats = 1 + max(row["repeat"] for row in rows)
    return (
        f"Examples per second on the same batches, with every link shaped to {rate}, in "
        f"{repeats} paired repeats.\n\n"
        + pages.table(
            ["dim", "`embedding_lookup_sparse`", "plain", "chosen", "times faster"],
            lines,
        )
    )


def _grid_text(rows: list[Row]) -> str:
    ratios, above = [], []
    for routes in _by_point(rows).values():
        per_step = {
            route: _per_step(each, "ps_bytes") for route, each in routes.items()
        }
        better = min(per_step["stock"], per_step["aggregated"])
        ratios.append(per_step["chosen"] / better)
        if ratios[-1] > 1:
            model = {r: _per_step(each, "model_bytes") for r, each in routes.items()}
            least = min(model["stock"], model["aggregated"])
            above.append(model["chosen"] - least)
    return (
        f"The choice, measured at {len(ratios)} points of the grid (dim "
        f"{rows[0]['workload']['dim']}), of which `benchmarks/measured/"
        "embedding_traffic.json` has each. Relative to the better of the two routes, it "
        f"moved {statistics.median(ratios):.4f} (median) and {max(ratios):.4f} "
        f"(maximum). The ratio was above 1 at {len(above)} points; at "
        f"{sum(each <= 0 for each in above)} of these, the tensors were no larger, and "
        "the difference is TCP overhead.\n"
    )


def _model_error(rows: list[Row]) -> str:
    beside = [
        (row["ps_bytes"] - row["model_bytes"])
        / row["steps"]
        / row["workload"]["num_ps"]
        for row in rows
    ]
    share = [row["ps_bytes"] / row["model_bytes"] - 1 for row in rows]
    large = [s for s, row in zip(share, rows, strict=True) if _megabyte_a_step(row)]
    counted = [row for row in rows if row["route"] != "stock"]
    exact = sum(row["counted_bytes"] == row["model_bytes"] for row in counted)
    return (
        f"In addition to the tensors that the cost model counts, the interfaces carried "
        f"{min(beside):,.0f} to {max(beside):,.0f} bytes per step and ps (messages, "
        f"TCP, acknowledgements): at most {max(large, default=0):.1%} in steps that move "
        f"a megabyte or more. The lookup's counter agreed with the model in {exact} of "
        f"{len(counted)} runs.\n"
    )


def _model_summary(model: Row) -> str:
    axes = model["axes"]
    low, high = model["chosen_over_better"]
    least, most = model["stock_over_chosen"]
    return (
        f"By the cost model, on {model['points']:,} points (ps "
        f"{_ends(axes['num_ps'])}, dim {_ends(axes['dim'])}, ids per example "
        f"{_ends(axes['ids_per_row'])}, Zipf {_ends(axes['zipf'])}), the choice moves "
        f"more bytes than the better of the two routes on {model['worse']}, and fewer "
        f"than either route alone on {model['better_than_both']:,}, where shards differ. "
        f"It moves {low:.3f} to {high:.3f} times the bytes of the better route, and "
        f"{least:.2f} to {most:.1f} times fewer bytes than `embedding_lookup_sparse`.\n"
    )


def _by_point(rows: Iterable[Row]) -> dict[Point, dict[str, list[Row]]]:
    found: dict[Point, dict[str, list[Row]]] = {}
    for row in rows:
        workload = row["workload"]
        names = ("num_ps", "dim", "ids_per_row", "zipf")
        point: Any = tuple(workload[name] for name in names)
        found.setdefault(point, {}).setdefault(row["route"], []).append(row)
    return found


def _per_step(rows: Sequence[Row], name: str) -> float:
    return sum(row[name] for row in rows) / sum(row["steps"] for row in rows)


def _megabyte_a_step(row: Row) -> bool:
    return bool(row["model_bytes"] / row["steps"] >= 1e6)


def _mega(value: float) -> str:
    return f"{value / 1e6:,.3f}"


def _ends(values: Sequence[float]) -> str:
    return f"{values[0]:g} to {values[-1]:g}"


def main(argv: Sequence[str]) -> int:
    """Writes the document, or checks it; returns the exit status."""
    name = "embedding_traffic"
    tables = f"{markdown(pages.measured(name))}\n{pages.recorded(name)}"
    page = pages.DOCS / "measured-embeddings.md"
    sections = {"embedding-traffic": f"\n{tables}\n"}
    return pages.publish(page, sections, "--check" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
