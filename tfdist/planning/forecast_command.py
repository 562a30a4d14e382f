"""The command `python -m tfdist.simulate SCRIPT.py:FUNCTION`, which needs no cluster."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tf_config import contract, flag_help
from tf_config.speedup import Speedup
from tfdist import _picture
from tfdist.parameter_server.consistency.setting import policy_of
from tfdist.planning.arguments import NotAModelError, UnknownSizesError
from tfdist.planning.forecast import (
    CHIEF_CPU,
    PS_CPU_PER_BYTE,
    Data,
    Faults,
    cost_of_plan,
    forecast,
    lost_seconds,
    lost_share,
)
from tfdist.planning.script import (
    UsageError,
    check_directory,
    load_function,
    lookups_of,
    split_arguments,
)
from tfdist.simulation.calibration import cost_of
from tfdist.simulation.size import announce, check_workers, size_of
from tfdist.simulation.step_cost import Hosts, StepCost

USAGE = """Says how a model would train on a cluster that you do not have.

    python -m tfdist.simulate --workers=10,100,1000 --ps=50 --step_seconds=0.2 \\
        SCRIPT.py:FUNCTION
    python -m tfdist.simulate --workers=1000 --ps=50 --measured=speedup.json \\
        MODULE:FUNCTION -- --flag_of_the_script=1

FUNCTION takes no arguments and returns a compiled model, which is planned as by
`python -m tfdist.plan`. What a step takes comes from a run of `launch.speedup` with one
worker, or is the time that a worker computes. Each task has a host of its own. Given a
file of launch.speedup alone, the command predicts its curve.
"""
_MEGABYTE = 1e6
_GIGABIT = 125e6
_DAY = 86_400.0


def main(argv: Sequence[str]) -> int:
    """Forecasts, prints the table, and returns the exit status.

    Args:
        argv: The command's name and its arguments.
    """
    ours, theirs = split_arguments(argv[1:])
    options = _flags()
    try:
        names = options([argv[0], *ours])[1:]
        if options.help:
            print(f"{USAGE}\n{flag_help.describe(options)}")
            return 0
        if len(names) != 1:
            raise UsageError(f"name one function, as MODULE:FUNCTION; received {names}")
        sizes = _sizes(options.workers)
        if options.ps is None:
            raise UsageError("give the number of ps, for example --ps=4")
        if options.plot:
            check_directory(options.plot)
            _picture.check_path(options.plot)
        policy = policy_of(options.consistency)
        _check_finite(options)
        measured = _measured(options)
        lookups = lookups_of(options.lookups)
        build_model = load_function(names[0], theirs)
    except (flags.Error, ValueError, OSError) as error:
        print(f"{error}\n\n{USAGE}", file=sys.stderr)
        return 2
    try:
        # Imported late: TensorFlow takes seconds to import, and `--help` needs none.
        from tfdist.planning.model import plan

        planned = plan(build_model, options.ps, lookups=lookups, balance="traffic")
        _tell(options, planned, measured, sizes, policy)
    except (
        UnknownSizesError,
        NotAModelError,
        ValueError,
        ImportError,
        OSError,
    ) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _tell(
    options: Any,
    planned: Any,
    measured: StepCost | None,
    sizes: Sequence[int],
    policy: Any,
) -> None:
    # `rich` and the plan's own view, not needed for `--help`.
    from tfdist.planning import forecast_view

    data = Data(
        options.examples,
        options.batch_size,
        options.example_bytes,
        from_chief=options.data == "chief",
    )
    faults = Faults(
        options.checkpoint_seconds,
        options.restart_seconds,
        options.disk * _MEGABYTE,
        options.mtbf_days * _DAY if options.mtbf_days else math.inf,
    )
    cost = cost_of_plan(
        planned, data, measured=measured, step_seconds=options.step_seconds
    )
    hosts = Hosts(cores=options.cores, rate=options.gbits * _GIGABIT)
    announce(size_of(policy, each, options.steps) for each in sizes)
    found = forecast(cost, hosts, sizes, policy, data, steps=options.steps)
    print(forecast_view.table(found))
    print(_step(cost, options, is_measured=measured is not None))
    print(_failure(planned, faults))
    if options.plot:
        forecast_view.plot(found, options.plot)


def _step(cost: StepCost, options: Any, is_measured: bool) -> str:
    told = (
        f"a step: {1e3 * cost.worker_cpu:.1f} ms of CPU on the worker, "
        f"{1e3 * cost.ps_cpu:.1f} ms on all ps, {1e3 * cost.chief_cpu:.1f} ms on the "
        f"chief; {cost.pulled / 1e6:.2f} MB from the ps and as much back, "
        f"{cost.fullest_ps:.1%} of it on the fullest of {options.ps}; "
        f"{cost.fed / 1e6:.2f} MB from the chief"
    )
    if is_measured:
        return told
    return (
        f"{told}\nassumed: {1e3 * CHIEF_CPU:g} ms of the chief per step, "
        f"{1e9 * PS_CPU_PER_BYTE:g} s of a ps per GB. launch.speedup measures them"
    )


def _failure(planned: Any, faults: Faults) -> str:
    from tfdist.planning.forecast_view import duration

    restoring = max(planned.bytes_per_ps) / faults.disk
    told = (
        f"a failed ps costs {duration(lost_seconds(planned, faults))}: "
        f"{duration(faults.restart_seconds)} until a new one answers, "
        f"{duration(restoring)} to read {max(planned.bytes_per_ps) / 1e6:,.0f} MB, and "
        f"{duration(faults.checkpoint_seconds / 2)} of steps to repeat"
    )
    if not math.isfinite(faults.mtbf_seconds):
        return told
    return f"{told}; with {planned.num_ps} ps, {lost_share(planned, faults):.1%} of the time"


def _sizes(workers: Sequence[str]) -> list[int]:
    sizes = [int(each) for each in workers if each.isdecimal()]
    if not workers or len(sizes) != len(workers) or min(sizes) < 1:
        raise UsageError(
            "--workers is one number of workers or several, for example 10,100,1000; "
            f"received {','.join(workers)!r}"
        )
    check_workers(max(sizes))
    return sorted(set(sizes))


def _check_finite(options: Any) -> None:
    for name in ("disk", "restart_seconds", "checkpoint_seconds"):
        if not math.isfinite(options[name].value):
            raise UsageError(
                f"--{name} is a finite number; received {options[name].value}"
            )


def _measured(options: Any) -> StepCost | None:
    if bool(options.measured) == (options.step_seconds is not None):
        both = "; received both" if options.measured else ""
        raise UsageError(
            "say what a step takes: either --measured=speedup.json, or --step_seconds, "
            f"the seconds that a worker computes{both}"
        )
    if not options.measured:
        return None
    measured = Speedup.from_json(Path(options.measured).read_text())
    return cost_of(measured, options.consistency)


def _flags() -> flags.FlagValues:
    # Not absl's global FLAGS: the script may define flags with the same names.
    values = flags.FlagValues()
    flags.DEFINE_list(
        "workers", [], "The numbers of workers, as 10,100,1000.", flag_values=values
    )
    flags.DEFINE_integer(
        "ps", None, "The number of ps.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_string(
        "measured",
        None,
        "A file of launch.speedup for the same model, with runs with 1 worker.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "consistency",
        contract.ASYNCHRONOUS,
        "The policy, as bounded:8.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "lookups",
        [],
        "The number of rows of an embedding that a step looks up, as PATTERN=ROWS. Can "
        "be repeated.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "steps",
        0,
        "How many steps to simulate at each size; 0 for 8 per worker, and 2,000 or more.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "plot", None, "Draw the curve to this PNG file.", flag_values=values
    )
    flags.DEFINE_bool("help", False, "Show this help.", flag_values=values)
    _define_numbers(values)
    _define_data(values)
    return values


def _define_numbers(values: flags.FlagValues) -> None:
    for name, default, least, what in (
        ("step_seconds", None, 1e-6, "The seconds that a worker computes for a step."),
        ("gbits", 10.0, 1e-6, "The rate of each host's link, in Gbit/s."),
        ("cores", 4.0, 0.01, "The cores of each host."),
        ("checkpoint_seconds", 600.0, 0.0, "The time between two checkpoints."),
        ("restart_seconds", 30.0, 0.0, "From a fault until a new ps answers."),
        ("disk", 200.0, 1e-6, "How fast a ps reads a checkpoint, in MB/s."),
        ("mtbf_days", 0.0, 0.0, "The days between failures of one ps; 0 for none."),
        ("example_bytes", 0.0, 0.0, "The bytes of an example."),
    ):
        flags.DEFINE_float(name, default, what, lower_bound=least, flag_values=values)


def _define_data(values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "examples",
        0,
        "The examples of an epoch; 0 for an endless one.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "batch_size",
        1,
        "The examples of a step.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_enum(
        "data",
        "workers",
        ["chief", "workers"],
        "Who reads the examples: workers, from files or leases, or the chief.",
        flag_values=values,
    )
