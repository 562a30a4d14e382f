"""A plan as a table, as text bars, and as a picture."""

import os
from collections.abc import Iterable, Sequence

from tfdist._support import views
from tfdist._support.views import bar, render, table_of
from tfdist.placement.partition import Partition
from tfdist.planning.weight import PlannedVariable


def loads(held: Sequence[int], moved: Sequence[float]) -> str:
    """Returns one bar per ps for its bytes, and one for its bytes a step."""
    rows = table_of("ps", ">bytes", "memory", ">bytes a step", "traffic")
    for ps, (size, traffic) in enumerate(zip(held, moved, strict=True)):
        memory_bar, traffic_bar = bar(size, max(held)), bar(traffic, max(moved))
        rows.add_row(str(ps), f"{size:,}", memory_bar, f"{traffic:,.0f}", traffic_bar)
    rows.add_section()
    rows.add_row("all", f"{sum(held):,}", "", f"{sum(moved):,.0f}", "")
    return render(rows)


def splits(split: Iterable[PlannedVariable]) -> str:
    """Returns one row per variable that is split: its shards."""
    rows = table_of("split", "shape", "axis", "ps [from, to)")
    for variable in split:
        assert variable.partition is not None
        axis, shape = str(variable.partition.axis), _shape(variable.spec.shape)
        rows.add_row(variable.spec.name, shape, axis, _homes(variable))
    return render(rows)


def variables(planned: Iterable[PlannedVariable]) -> str:
    """Returns one row per variable: its size, its slots and its ps."""
    rows = table_of("variable", "shape", "dtype", ">slots", ">bytes", "ps")
    for variable in planned:
        spec, weight = variable.spec, variable.weight
        size, slots = f"{weight.memory:,}", str(len(weight.slots))
        shape, homes = _shape(spec.shape), _homes(variable)
        rows.add_row(spec.name, shape, spec.dtype, slots, size, homes)
    return render(rows).rstrip("\n")


def plot(
    path: str | os.PathLike[str], *kinds: tuple[str, Sequence[float], float]
) -> None:
    """Draws one bar per ps for each kind of load, and the mean, as a PNG file.

    A kind is its label, the bytes on each ps, and the fullest over the mean.
    """
    views.check_picture_path(path)
    num_ps = len(kinds[0][1])
    figure = views.new_figure(min(24.0, 4 + 0.3 * num_ps), 5)
    all_axes = figure.subplots(len(kinds), 1, sharex=True)
    for axes, (label, amounts, imbalance) in zip(all_axes, kinds, strict=True):
        axes.bar(range(num_ps), [amount / 1e6 for amount in amounts])
        axes.axhline(sum(amounts) / num_ps / 1e6, color="black", linewidth=1)
        axes.set_ylabel(label)
        axes.set_title(f"fullest / mean: {imbalance:.3f}", fontsize="medium")
    axes.set_xlabel("ps")
    axes.xaxis.get_major_locator().set_params(integer=True)
    views.save_picture(figure, path)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


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
