"""A plan as a table, as text bars, and as a picture."""

import io
import os

import rich.box
import rich.console
import rich.table

from tfdist import _picture
from tfdist.placement.partition import Partition
from tfdist.planning.plan import Plan, PlannedVariable

BAR = 30  # characters


def table_of(*headings: str) -> rich.table.Table:
    """Returns an empty table; a `>` before a heading aligns its column right."""
    table = rich.table.Table(box=rich.box.ROUNDED)
    for heading in headings:
        right = heading.startswith(">")
        table.add_column(heading.lstrip(">"), justify="right" if right else "left")
    return table


def render(table: rich.table.Table) -> str:
    """Returns a table as text, without truncating any cell."""
    text = io.StringIO()
    # Rich shrinks a table to the width of its console.
    rich.console.Console(file=text, width=10_000).print(table)
    return text.getvalue()


def bar(amount: float, largest: float) -> str:
    """Returns a bar whose length is proportional to `amount`."""
    return "#" * round(BAR * amount / largest) if largest else ""


def summary(plan: Plan) -> str:
    """Returns one bar per ps, the variables that are split, and the bounds."""
    held, moved = plan.bytes_per_ps, plan.traffic_per_ps
    ps_table = table_of("ps", ">bytes", "memory", ">bytes a step", "traffic")
    for ps in range(plan.num_ps):
        ps_table.add_row(
            str(ps),
            f"{held[ps]:,}",
            bar(held[ps], max(held)),
            f"{moved[ps]:,.0f}",
            bar(moved[ps], max(moved)),
        )
    ps_table.add_section()
    ps_table.add_row("all", f"{sum(held):,}", "", f"{sum(moved):,.0f}", "")
    lines = [render(ps_table)]
    if plan.split:
        split_table = table_of("split", "shape", "axis", "ps [from, to)")
        for each in plan.split:
            split_table.add_row(*_split_row(each))
        lines.append(render(split_table))
    lines.append(
        f"{len(plan.variables):,} variables on {plan.num_ps} ps, {len(plan.split)} of "
        f"them split; cuts: {plan.cuts}\n"
        f"fullest ps / mean: {plan.imbalance:.4f} in memory "
        f"(at best {plan.bound:.4f}; without splits at best {plan.unsplit_bound:.4f}),"
        f" {plan.traffic_imbalance:.4f} in traffic"
    )
    return "".join(lines)


def table(plan: Plan) -> str:
    """Returns one row per variable: its size, its slots and its ps."""
    rows = table_of("variable", "shape", "dtype", ">slots", ">bytes", "ps")
    for each in plan.variables:
        spec = each.spec
        rows.add_row(
            spec.name,
            _shape(spec.shape),
            spec.dtype,
            str(len(each.weight.slots)),
            f"{each.weight.memory:,}",
            _homes(each),
        )
    return render(rows).rstrip("\n")


def plot(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draws one bar per ps for memory and one for traffic, and their means.

    Raises:
        ValueError: If the file's name does not end with `.png`.
        ImportError: If matplotlib is not installed.
    """
    _picture.check_path(path)
    width = min(24.0, 4 + 0.3 * plan.num_ps)
    figure = _picture.new_figure(width, 5)
    kinds = (
        ("MB of variables", plan.bytes_per_ps, plan.imbalance),
        ("MB a step", plan.traffic_per_ps, plan.traffic_imbalance),
    )
    for axes, (label, amounts, imbalance) in zip(
        figure.subplots(2, 1, sharex=True), kinds, strict=True
    ):
        axes.bar(range(plan.num_ps), [amount / 1e6 for amount in amounts])
        axes.axhline(sum(amounts) / plan.num_ps / 1e6, color="black", linewidth=1)
        axes.set_ylabel(label)
        axes.set_title(f"fullest / mean: {imbalance:.3f}", fontsize="medium")
    axes.set_xlabel("ps")
    axes.xaxis.get_major_locator().set_params(integer=True)
    _picture.save(figure, path)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _split_row(variable: PlannedVariable) -> tuple[str, str, str, str]:
    assert variable.partition is not None
    axis = str(variable.partition.axis)
    return variable.spec.name, _shape(variable.spec.shape), axis, _homes(variable)


def _homes(variable: PlannedVariable) -> str:
    if not isinstance(variable.home, Partition):
        return str(variable.home)
    bounds = variable.home.bounds
    if variable.weight.dealt:
        return ", ".join(
            f"{shard.ps} [{i}::{len(bounds)}]" for i, shard in enumerate(bounds)
        )
    return ", ".join(
        f"{shard.ps} [{shard.start:,}, {shard.stop:,})" for shard in bounds
    )
