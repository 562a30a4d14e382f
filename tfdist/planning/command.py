"""The command `python -m tfdist.plan`, which needs no cluster."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from absl import flags

from tf_config import flag_help
from tf_config.commands import as_typed, error_of
from tfdist._support import views
from tfdist.planning.arguments import (
    BALANCES,
    TARGET,
    NotAModelError,
    UnknownSizesError,
    check_arguments,
)

USAGE = """Plans which ps holds each variable of a model. Needs no cluster.

    python -m tfdist.plan MODULE:FUNCTION --num_ps=4 [--json=FILE] [--plot=FILE]
    python -m tfdist.plan SCRIPT.py:FUNCTION --num_ps=4 -- --flag_of_the_script=1

FUNCTION takes no arguments and returns a compiled model. The command imports the
script, so keep its training code under `if __name__ == "__main__":`. The arguments
after `--` become the script's sys.argv; if it defines absl flags, they are parsed.
"""


def main(argv: Sequence[str]) -> int:
    """Plans, prints the plan, and returns the exit status."""
    ours, theirs = _split(argv[1:])
    usage, options = as_typed(USAGE, argv[0]), _flags()
    try:
        names = options(flag_help.normalized([argv[0], *ours], options))[1:]
        if options.help:
            print(f"{usage}\n{flag_help.describe(options)}")
            return 0
        if len(names) != 1:
            raise ValueError(f"name one function, as MODULE:FUNCTION; received {names}")
        if options.num_ps is None:
            raise ValueError("give the number of ps, for example --num_ps=4")
        check_arguments(options.num_ps, options.balance, options.target)
        for path in filter(None, (options.json, options.plot)):
            _check_directory(path)
        if options.plot:
            views.check_picture_path(options.plot)
        lookups = _lookups_of(options.lookups)
        build_model = load_function(names[0], theirs)
    except (flags.Error, ValueError, OSError) as error:
        print(error_of("tfdist.plan", error, argv[0]), file=sys.stderr)
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
                f"--lookups must be PATTERN=ROWS, as '*/embeddings=256'; received {pair!r}"
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
    text = partial(flags.DEFINE_string, flag_values=values)
    flags.DEFINE_integer("num_ps", None, "The number of ps.", flag_values=values)
    text("json", None, "Write the plan to this file.")
    text("plot", None, "Draw one bar per ps to this PNG file.")
    flags.DEFINE_bool("variables", False, "List every variable.", flag_values=values)
    what = "What to balance."
    flags.DEFINE_enum("balance", "memory", BALANCES, what, flag_values=values)
    flags.DEFINE_float("target", TARGET, "The imbalance to reach.", flag_values=values)
    lookups = (
        "The number of rows of an embedding that a step looks up, as PATTERN=ROWS, for "
        "example '*/embeddings=256'. Can be repeated."
    )
    flags.DEFINE_multi_string("lookups", [], lookups, flag_values=values)
    flags.DEFINE_bool("help", False, "Show this help.", flag_values=values)
    return values


def load_function(name: str, arguments: Sequence[str]) -> Callable[[], Any]:
    """Imports a script, and returns one of its functions.

    The name is `MODULE:FUNCTION` or `SCRIPT.py:FUNCTION`; the arguments are what the
    script finds in `sys.argv`.
    """
    where, _, function = name.rpartition(":")
    if not where or not function.isidentifier():
        raise ValueError(
            f"name a function as MODULE:FUNCTION or SCRIPT.py:FUNCTION; received "
            f"{name!r}"
        )
    sys.argv = [where, *arguments]
    with _flags_of_the_script_parsed():
        module = _script(where) if where.endswith(".py") else _module(where)
    try:
        build_model: Callable[[], Any] = getattr(module, function)
    except AttributeError:
        raise ValueError(f"{where} has no function {function!r}") from None
    if not callable(build_model):
        raise ValueError(f"{name} must be a function; received {build_model!r}")
    return build_model


@contextmanager
def _flags_of_the_script_parsed() -> Iterator[None]:
    """Parses the absl flags that the script defines, and rejects unknown ones.

    A script that defines no absl flags may parse `sys.argv` differently, for example
    with argparse, so then unknown flags are ignored.
    """
    # TensorFlow defines flags too. Imported first, they do not count as the script's.
    import tensorflow as tf  # noqa: F401

    before = {*flags.FLAGS}
    yield
    if not flags.FLAGS.is_parsed():
        has_its_own = bool({*flags.FLAGS} - before)
        flags.FLAGS(sys.argv, known_only=not has_its_own)


def _script(path: str) -> Any:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    # As Python does for a script, so that it can import modules next to it.
    sys.path.insert(0, str(Path(path).absolute().parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before the script runs, since `dataclasses`, for one, looks its module up there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An import that fails inside the user's module is an error of theirs, and keeps
        # its traceback.
        if error.name is not None and not name.startswith(error.name):
            raise
        raise ValueError(f"there is no module {name}") from error
