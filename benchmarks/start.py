"""Seconds from the command to the end of the first step, as in `make mnist`.

    python benchmarks/start.py --repeats=5

Tasks that are forked and tasks that are spawned take turns. A job ends after its first
step.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

from recovery import ROOT, running, spread

MNIST = (str(ROOT / "examples" / "mnist_cnn.py"), "--strategy=parameter_server")
FIRST_STEP = "the first step has finished"
START = "starting chief"


def seconds_to_first_step(fork_server: str) -> tuple[float, float]:
    """Runs a job until its first step.

    Returns:
        The seconds until the launcher started the chief, and until the first step ended.
    """
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "launch.local", f"--fork_server={fork_server}"]
        sizes = ["--num_ps=2", "--num_workers=2", f"--log_dir={directory}/logs"]
        chief, began = 0.0, time.monotonic()
        with running([*command, *sizes, *MNIST], directory) as lines:
            for line in lines:
                taken = time.monotonic() - began
                if START in line:
                    chief = taken
                if FIRST_STEP in line:
                    return chief, taken
    raise RuntimeError("the job has ended without a step")


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    pairs = [
        (seconds_to_first_step("auto"), seconds_to_first_step("off"))
        for _ in range(repeats)
    ]
    print(
        "| seconds from the command to | forked | spawned | ratio of paired repeats |"
    )
    print("| --- | --- | --- | --- |")
    for index, name in enumerate(("the start of the chief", "the first step")):
        forked, spawned = (
            spread(each[index] for each in column)
            for column in zip(*pairs, strict=True)
        )
        ratio = statistics.median(auto[index] / off[index] for auto, off in pairs)
        print(f"| {name} | {forked} | {spawned} | {ratio:.2f} |")
    print(f"load of the machine: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
