"""The command `python -m tfdist.plan`, which needs no cluster."""

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tf_config import flag_help
from tfdist import _picture
from tfdist.planning.arguments import (
    TARGET,
    NotAModelError,
    UnknownSizesError,
    check_arguments,
)
from tfdist.planning.plan import BALANCES
from tfdist.planning.script import load_function

USAGE = """Plans which ps holds each variable of a model. Needs no cluster.

    python -m tfdist.plan MODULE:FUNCTION --num_ps=4 [--json=FILE] [--plot=FILE]
    python -m tfdist.plan SCRIPT.py:FUNCTION --num_ps=4 -- --flag_of_the_script=1

FUNCTION takes no arguments and returns a compiled model. The command imports the
script, so keep its training code under `if __name__ == "__main__":`. The arguments
after `--` become the script's sys.argv; if it defines absl flags, they are parsed.
"""


def main(argv: Sequence[str]) -> int:
    """Plans, prints the plan, and returns the exit status.

    Args:
        argv: The command's name and its arguments.
    """
    ours, theirs = _split(argv[1:])
    options = _flags()
    try:
        names = options([argv[0], *ours])[1:]
        if options.help:
            print(f"{USAGE}\n{flag_help.describe(options)}")
            return 0
        if len(names) != 1:
            raise ValueError(f"name one function, as MODULE:FUNCTION; received {names}")
        if options.num_ps is None:
            raise ValueError("give the number of ps, for example --num_ps=4")
        check_arguments(options.num_ps, options.balance, options.target)
        for path in filter(None, (options.json, options.plot)):
            _check_directory(path)
        if options.plot:
            _picture.check_path(options.plot)
        lookups = _lookups_of(options.lookups)
        build_model = load_function(names[0], theirs)
    except (flags.Error, ValueError, OSError) as error:
        print(f"{error}\n\n{USAGE}", file=sys.stderr)
        return 2
    try:
        # Imported late: TensorFlow takes seconds to import, and `--help` needs none.
        from tfdist.planning.model import plan

        planned = plan(
            build_model,
            options.num_ps,
            lookups=lookups,
            balance=options.balance,
            target=options.target,
        )
        if options.variables:
            print(planned.table())
        print(planned)
        if options.json:
            planned.save(options.json)
        if options.plot:
            planned.plot(options.plot)
    except (UnknownSizesError, NotAModelError, ImportError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits arguments into ours and, after `--`, the script's."""
    if "--" not in arguments:
        return list(arguments), []
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


def _lookups_of(pairs: Sequence[str]) -> dict[str, int]:
    """Returns the rows that a step looks up, by pattern, from `--lookups`."""
    lookups = {}
    for pair in pairs:
        pattern, _, rows = pair.rpartition("=")
        if not pattern or not rows.isdecimal():
            raise ValueError(
                f"--lookups is PATTERN=ROWS, as '*/embeddings=256'; received {pair!r}"
            )
        lookups[pattern] = int(rows)
    return lookups


def _check_directory(path: str) -> None:
    directory = Path(path).absolute().parent
    if not directory.is_dir():
        raise ValueError(f"there is no directory {directory} to write {path} to")


def _flags() -> flags.FlagValues:
    # Not absl's global FLAGS: the script may define flags with the same names.
    values = flags.FlagValues()
    flags.DEFINE_integer("num_ps", None, "The number of ps.", flag_values=values)
    flags.DEFINE_string(
        "json", None, "Write the plan to this file.", flag_values=values
    )
    flags.DEFINE_string(
        "plot", None, "Draw one bar per ps to this PNG file.", flag_values=values
    )
    flags.DEFINE_bool("variables", False, "List every variable.", flag_values=values)
    flags.DEFINE_enum(
        "balance", "memory", BALANCES, "What to balance.", flag_values=values
    )
    flags.DEFINE_float("target", TARGET, "The imbalance to reach.", flag_values=values)
    flags.DEFINE_multi_string(
        "lookups",
        [],
        "The number of rows of an embedding that a step looks up, as PATTERN=ROWS, for "
        "example '*/embeddings=256'. Can be repeated.",
        flag_values=values,
    )
    flags.DEFINE_bool("help", False, "Show this help.", flag_values=values)
    return values
