"""The command `python -m tfdist.research.simulate`: training on clusters that you do not have."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from absl import flags

from tf_config import flag_help
from tf_config.commands import as_typed, error_of
from tf_config.speedup import Speedup
from tfdist._support import views
from tfdist.consistency.setting import policy_of
from tfdist.research.simulation import view
from tfdist.research.simulation.prediction import JobChanges, predict, sizes_of
from tfdist.research.simulation.size import MOST_WORKERS, announce, size_of

USAGE = """Predicts training on other clusters, from a measured file.

    python -m launch.speedup --workers=1,2,4,8 --output=speedup.json train.py
    python -m tfdist.research.simulate --up_to=1000 --plot=curve.png speedup.json
    python -m tfdist.research.simulate --num_ps=2,4,8 --own_hosts --gbits=10 speedup.json

The runs with 1 worker tell what a step takes; a simulation tells the rest.
"""
_GIGABIT = 125e6  # bytes


def main(argv: Sequence[str]) -> int:
    """Predicts, prints the tables, and returns the exit status."""
    usage, options = as_typed(USAGE, argv[0]), _flags()
    try:
        names = options(flag_help.normalized(argv, options))[1:]
        if options.help:
            print(f"{usage}\n{flag_help.describe(options)}")
            return 0
        if len(names) != 1:
            raise ValueError(f"name one file of launch.speedup; received {names}")
        if options.plot:
            views.check_picture_path(options.plot)
        changes = _changes(options)
        measured = Speedup.from_json(Path(names[0]).read_text())
        policies = options.consistency or measured.policies
        announce(
            size_of(policy_of(policy), workers, options.steps)
            for policy in policies
            for workers in sizes_of(measured.sizes, options.up_to)
            for _ in changes
        )
        curves = [
            predict(measured, policy, each, up_to=options.up_to, steps=options.steps)
            for policy in policies
            for each in changes
        ]
        for curve in curves:
            print(view.table(curve))
        if options.plot:
            view.plot(measured, curves, options.plot)
    except (flags.Error, ValueError, OSError, ImportError) as error:
        print(error_of("tfdist.research.simulate", error, argv[0]), file=sys.stderr)
        return 2
    return 0


def _changes(options: flags.FlagValues) -> list[JobChanges]:
    """Returns one for each number of ps."""
    numbers = options.num_ps
    if not all(each.isdecimal() and int(each) for each in numbers):
        raise ValueError(
            "--num_ps must be one number of ps or several, for example 2,4,8; received "
            f"{','.join(numbers)!r}"
        )
    return [
        JobChanges(
            num_ps=num_ps,
            own_hosts=options.own_hosts,
            cores=options.cores,
            rate=None if options.gbits is None else options.gbits * _GIGABIT,
            steps_per_epoch=options.steps_per_epoch,
            segments=options.segments,
            half_of_the_bits=options.wire_dtype is not None,
        )
        for num_ps in (map(int, numbers) if numbers else [None])
    ]


def _flags() -> flags.FlagValues:
    values = flags.FlagValues()
    whole = partial(flags.DEFINE_integer, lower_bound=0, flag_values=values)
    number = partial(flags.DEFINE_float, flag_values=values)
    several = partial(flags.DEFINE_list, flag_values=values)
    whole("up_to", 0, "The largest number of workers.", upper_bound=MOST_WORKERS)
    ps = (
        "The numbers of ps, a curve for each, with the bytes evenly on them, as a plan "
        "places them. By default as measured."
    )
    several("num_ps", [], ps)
    several("consistency", [], "The policies; by default those that were measured.")
    hosts = "Give each task a host of its own, in place of one for all."
    flags.DEFINE_bool("own_hosts", False, hosts, flag_values=values)
    cores = "The cores of each host, without other programs. By default as measured."
    number("cores", None, cores, lower_bound=0.01)
    rate = "The rate of each task's link, in Gbit/s. By default as measured."
    number("gbits", None, rate, lower_bound=1e-6)
    epoch = (
        "The steps of an epoch, at whose end workers wait for each other; 0 for an "
        "endless one. By default as measured."
    )
    whole("steps_per_epoch", None, epoch)
    segments = (
        "In how many parts a worker's gradients go out one after the other: as many as ps, "
        "if steps were measured before large weights were split over these."
    )
    whole("segments", 1, segments, lower_bound=1)
    bits = "Have weights and gradients travel in half of the bits that were measured."
    flags.DEFINE_enum("wire_dtype", None, ["bfloat16"], bits, flag_values=values)
    steps = "How many steps to simulate at each size; 0 for 8 per worker, and 2,000 or more."
    whole("steps", 0, steps)
    plot = "Draw the curves to this PNG file."
    flags.DEFINE_string("plot", None, plot, flag_values=values)
    flags.DEFINE_bool("help", False, "Show this help.", flag_values=values)
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv))
