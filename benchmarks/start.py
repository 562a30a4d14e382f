"""Seconds from the command to the first step, and to a test accuracy, as in `make mnist`.

    python benchmarks/start.py --repeats=5
    python benchmarks/start.py --other=../before      # another tree takes turns, too

Tasks that are forked and tasks that are spawned take turns. A job ends when it has
reached the accuracy.
"""

import argparse
import math
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from recovery import ROOT, running, spread

FIRST_STEP = "the first step has finished"
START = "starting chief"
ACCURACY = 0.95
_ACCURACY_LINE = re.compile(r"val_accuracy: ([0-9.]+)")
# More than it takes, so that the job never ends by itself.
_EPOCHS = 40


def seconds_to_marks(tree: Path, *options: str) -> list[float]:
    """Runs a job until it has reached the accuracy.

    Args:
        tree: Where the launcher, the library and the example are taken from.
        *options: Further flags of the launcher.

    Returns:
        The seconds until the launcher started the chief, until the first step ended, and
        until an epoch ended with the accuracy; NaN for what an older launcher does not
        say.
    """
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "launch.local", f"--log_dir={directory}/logs"]
        command += ["--num_ps=2", "--num_workers=2", *options]
        command += [str(tree / "examples" / "mnist_cnn.py"), f"--epochs={_EPOCHS}"]
        command += ["--strategy=parameter_server"]
        marks, began = [math.nan] * 3, time.monotonic()
        with running(command, directory, tree) as lines:
            for line in lines:
                accuracy = _ACCURACY_LINE.search(line)
                is_mark = [
                    START in line,
                    FIRST_STEP in line,
                    accuracy is not None and float(accuracy[1]) >= ACCURACY,
                ]
                for index, is_here in enumerate(is_mark):
                    if is_here and math.isnan(marks[index]):
                        marks[index] = time.monotonic() - began
                if is_mark[-1]:
                    return marks
    raise RuntimeError("the job has ended too soon")


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another tree, with its defaults")
    values = parser.parse_args()
    ways = {
        "forked": lambda: seconds_to_marks(ROOT, "--fork_server=auto"),
        "spawned": lambda: seconds_to_marks(ROOT, "--fork_server=off"),
    }
    if values.other:
        ways[values.other.name] = lambda: seconds_to_marks(values.other.resolve())
    repeats = [{way: run() for way, run in ways.items()} for _ in range(values.repeats)]
    others = [way for way in ways if way != "forked"]
    heads = [*ways, *(f"forked / {way}" for way in others)]
    print(f"| seconds from the command to | {' | '.join(heads)} |")
    print(f"| --- |{' --- |' * len(heads)}")
    marks = (
        "the start of the chief",
        "the first step",
        f"a test accuracy of {ACCURACY}",
    )
    for index, mark in enumerate(marks):
        cells = [spread(each[way][index] for each in repeats) for way in ways]
        cells += [
            f"{statistics.median(r['forked'][index] / r[way][index] for r in repeats):.2f}"
            for way in others
        ]
        print(f"| {mark} | {' | '.join(cells)} |")
    print(f"load of the machine: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
