"""The command `python -m tfdist.local_update.mixing`, which compares graphs."""

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial

from absl import flags

from tf_config import flag_help
from tf_config.commands import as_typed, error_of
from tfdist.local_update.mixing import graphs, view
from tfdist.local_update.mixing.topology import Topology

USAGE = """Compares graphs for gossip: how fast models agree, and how many bytes that takes.

    python -m tfdist.local_update.mixing --topology=ring,torus --participants=16 --plot=graphs.png
"""
TOPOLOGIES: dict[str, Callable[[int], Topology]] = {
    "ring": graphs.ring,
    "torus": graphs.torus,
    "exponential": graphs.exponential,
    "one_peer_exponential": graphs.one_peer_exponential,
    "random_regular": graphs.random_regular,
    "complete": graphs.complete,
    "star": graphs.star,
}


def main(argv: Sequence[str]) -> int:
    """Prints the table, draws the graphs if asked, and returns the exit status."""
    usage, options = as_typed(USAGE, argv[0]), _flags()
    try:
        rest = options(flag_help.normalized(argv, options))[1:]
        if options.help:
            print(f"{usage}\n{flag_help.describe(options)}")
            return 0
        if rest:
            raise ValueError(f"only flags are allowed; received {rest}")
        if not options.topology:
            raise ValueError(f"--topology takes some of {', '.join(TOPOLOGIES)}")
        names = options.topology
        # A prime number fills no grid: by default the torus is left out, and one that
        # was asked for is refused.
        if options["topology"].using_default_value and _is_prime(options.participants):
            names = [each for each in names if each != "torus"]
        topologies = [_topology(each, options.participants) for each in names]
        print(view.table(topologies, options.megabytes), end="")
        if options.plot:
            view.plot(topologies, options.plot)
    except (flags.Error, ValueError, OSError, ImportError) as error:
        print(error_of("tfdist.local_update.mixing", error, argv[0]), file=sys.stderr)
        return 2
    return 0


def _topology(name: str, participants: int) -> Topology:
    if name not in TOPOLOGIES:
        raise ValueError(
            f"--topology takes some of {', '.join(TOPOLOGIES)}; received {name!r}"
        )
    return TOPOLOGIES[name](participants)


def _is_prime(number: int) -> bool:
    return all(number % each for each in range(2, math.isqrt(number) + 1))


def _flags() -> flags.FlagValues:
    values = flags.FlagValues()
    names = (
        f"Some of {', '.join(TOPOLOGIES)}. By default those that need no networkx; a "
        "torus needs participants that fill a grid."
    )
    usual = [name for name in TOPOLOGIES if name != "random_regular"]
    flags.DEFINE_list("topology", usual, names, flag_values=values)
    whole = partial(flags.DEFINE_integer, lower_bound=2, flag_values=values)
    whole("participants", 16, "How many mix.", upper_bound=1000)
    size = "The size of the model on the wire, in 10^6 bytes."
    flags.DEFINE_float("megabytes", 100.0, size, 0.0, flag_values=values)
    plot = "Draw the graphs to this PNG file."
    flags.DEFINE_string("plot", None, plot, flag_values=values)
    flags.DEFINE_bool("help", False, "Show this help.", flag_values=values)
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv))
