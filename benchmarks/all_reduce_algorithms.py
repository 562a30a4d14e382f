"""The cost model of the all-reduce algorithms: which is fastest, where, and why.

    python benchmarks/all_reduce_algorithms.py             # print tables
    python benchmarks/all_reduce_algorithms.py --latency=1e-4 --bandwidth=1.25e9
    python benchmarks/all_reduce_algorithms.py --markdown  # into docs/algorithms.md
    python benchmarks/all_reduce_algorithms.py --check     # status 1 if it differs

Nothing is measured: steps, bytes and seconds come from `tfdist.all_reduce.cost`, for the
network that the flags describe, and the diagrams are drawn from the schedules.
`--markdown` writes all of them between the marks of the page, and draws its plot. The
plot stores a digest of its curves, by which `--check` recognizes an outdated one.
"""

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import pages
from absl import app, flags

from tfdist.all_reduce.cost import COSTS, CostError, Network, lower_bound
from tfdist.all_reduce.schedule import SCHEDULES, Transfer, TransferSchedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT = pages.DOCS / "all_reduce_algorithms.png"
NETWORK = Network(
    latency=1e-3,
    bandwidth=25e6,
    seconds_per_reduced_byte=2e-10,
    seconds_per_message=1e-4,
)
DIAGRAM_DEVICES = 4
TABLE_DEVICES = (4, 6, 64)
TABLE_SIZES = {"4 KB": 4_000, "1 MB": 1_000_000, "100 MB": 100_000_000}
PLOT_DEVICES = 8
PLOT_SIZES = tuple(4**exponent for exponent in range(4, 15))
PLOT_MOST_DEVICES = 32

Curves = dict[str, list[float]]


def diagram(schedule: TransferSchedule) -> str:
    """Returns one line per step: which chunks (A, B...) each device sends to which other."""
    devices = range(schedule.num_devices)
    rows = [["", *(f"device {device}" for device in devices)]]
    for number, transfers in enumerate(schedule.steps):
        does = "add" if transfers[0].reduces else "copy"
        rows.append(
            [f"step {number}: {does}", *(_sends(d, transfers) for d in devices)]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "   ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows
    )


def _sends(device: int, transfers: Sequence[Transfer]) -> str:
    sent = sorted(
        (each.receiver, each.chunk) for each in transfers if each.sender == device
    )
    return ", ".join(
        f"{''.join(chr(ord('A') + chunk) for _, chunk in chunks)} to {receiver}"
        for receiver, chunks in groupby(sent, key=lambda pair: pair[0])
    )


def counts_table() -> str:
    """Returns the steps and bytes of each algorithm, whatever the network."""
    heads = ["algorithm", *(f"{n} devices" for n in TABLE_DEVICES)]
    rows = [
        [
            f"`{name}`",
            *(
                f"{cost(n).steps} steps, {float(cost(n).busiest_link):.3f}"
                for n in TABLE_DEVICES
            ),
        ]
        for name, cost in COSTS.items()
    ]
    bounds = [f"{float(lower_bound(n)):.3f}" for n in TABLE_DEVICES]
    return pages.table(heads, [*rows, ["the least possible", *bounds]])


def seconds_table(network: Network) -> str:
    """Returns the predicted time of each algorithm; the fastest in bold."""
    rows = []
    for label, size in TABLE_SIZES.items():
        for n in TABLE_DEVICES:
            times = [cost(n).seconds(size, network) for cost in COSTS.values()]
            cells = [
                f"**{_duration(time)}**" if time == min(times) else _duration(time)
                for time in times
            ]
            rows.append([label, n, *cells])
    heads = ["size", "devices", *(f"`{name}`" for name in COSTS)]
    return pages.table(heads, rows)


def describe(network: Network) -> str:
    return (
        f"latency {network.latency * 1e3:g} ms, {network.bandwidth / 1e6:g} MB/s each "
        f"way, {network.gap * 1e3:g} ms between messages, "
        f"{network.seconds_per_reduced_byte * 1e9:g} ns to add one byte"
    )


def sections(network: Network) -> dict[str, str]:
    """Returns the text between each pair of marks of the page."""
    diagrams = {
        name: f"```text\n{diagram(build(DIAGRAM_DEVICES))}```\n"
        for name, build in SCHEDULES.items()
    }
    return {
        **diagrams,
        "counts": counts_table(),
        "seconds": (
            f"{seconds_table(network)}\n**A model, not a measurement**, of this network: "
            f"{describe(network)}. Computed by "
            "`python benchmarks/all_reduce_algorithms.py`; its flags set the network.\n"
        ),
    }


def load_curves() -> Curves:
    """The load of the busiest interface, in sizes of the tensor, for 2, 3... devices."""
    devices = range(2, PLOT_MOST_DEVICES + 1)
    return {
        name: [float(cost(n).busiest_link) for n in devices]
        for name, cost in COSTS.items()
    }


def time_curves(network: Network) -> Curves:
    """Seconds over the least time for the bytes alone, for each size."""
    least = float(lower_bound(PLOT_DEVICES)) / network.bandwidth
    return {
        name: [
            cost(PLOT_DEVICES).seconds(size, network) / (least * size)
            for size in PLOT_SIZES
        ]
        for name, cost in COSTS.items()
    }


def plot(network: Network) -> pages.Plot:
    """Returns the plot of both curves."""
    rounded = [
        {name: [f"{y:.9g}" for y in ys] for name, ys in each.items()}
        for each in (load_curves(), time_curves(network))
    ]
    return pages.Plot(PLOT, [describe(network), rounded], draw)


def draw(shown: tuple[str, tuple[Curves, Curves]]) -> "Figure":
    """Returns the figure of what `plot` shows."""
    from matplotlib.figure import Figure

    described, of_both = shown
    load_of, time_of = (
        {name: list(map(float, ys)) for name, ys in each.items()} for each in of_both
    )
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    loads, times = figure.subplots(1, 2)
    figure.suptitle(f"A model, not a measurement: {described}", fontsize=9)
    # Some curves lie on each other: each is thinner than the one below it.
    widths = dict(zip(COSTS, (5, 2, 2, 3, 1.2), strict=True))
    for name, ys in load_of.items():
        loads.plot(range(2, len(ys) + 2), ys, linewidth=widths[name], label=name)
    loads.set_yscale("log", base=2)
    loads.yaxis.set_major_formatter("{x:g}")
    loads.set_xlabel("devices")
    loads.set_title("Bytes of the busiest interface / size of the tensor", fontsize=10)
    for name, ys in time_of.items():
        times.plot(PLOT_SIZES, ys, linewidth=widths[name], label=name)
    times.set_xscale("log")
    times.set_yscale("log")
    times.set_xlabel(f"bytes of the tensor, on {PLOT_DEVICES} devices")
    times.set_title("Time / time of the least possible bytes alone", fontsize=10)
    for axes in (loads, times):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def _duration(time: float) -> str:
    return f"{time:.3g} s" if time >= 1 else f"{time * 1e3:.3g} ms"


def main(options: flags.FlagValues) -> int:
    """Prints tables, or writes or checks the page; returns the exit status."""
    try:
        network = Network(
            options.latency,
            options.bandwidth,
            options.seconds_per_reduced_byte,
            options.seconds_per_message,
        )
    except CostError as error:
        print(error, file=sys.stderr)
        return 1
    if options.markdown or options.check:
        page, shown = pages.DOCS / "algorithms.md", sections(network)
        return pages.publish(page, shown, options.check, plot(network))
    for section in sections(network).values():
        print(section)
    return 0


def define_flags(into: flags.FlagValues) -> None:
    for name, meaning in (
        ("latency", "Seconds per empty message."),
        (
            "bandwidth",
            "Bytes/s that an interface can send, and receive at the same time.",
        ),
        ("seconds_per_reduced_byte", "Seconds to add one byte."),
        ("seconds_per_message", "Seconds from one message to the next."),
    ):
        flags.DEFINE_float(name, getattr(NETWORK, name), meaning, flag_values=into)
    for name, meaning in (
        ("markdown", "Write docs/algorithms.md and its plot."),
        ("check", "Check docs/algorithms.md and its plot."),
    ):
        flags.DEFINE_bool(name, False, meaning, flag_values=into)


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    app.run(lambda argv: sys.exit(main(flags.FLAGS)))
