"""Which combinations of versions the matrix runs."""

import configparser
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TENSORFLOWS = ("2.16", "2.17", "2.18", "2.19", "2.20", "2.21")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Every TensorFlow of the matrix has a wheel for it.
COMMON_PYTHON = "3.11"


@dataclass(frozen=True)
class Versions:
    """The versions that a run asks for.

    Attributes:
        tensorflow: A minor version, such as `2.16`; the run gets its last patch.
        python: A minor version.
        keras: An exact version, or "" for the one that TensorFlow resolves to.
    """

    tensorflow: str
    python: str
    keras: str = ""

    def __str__(self) -> str:
        keras = f"-keras{self.keras}" if self.keras else ""
        return f"tf{self.tensorflow}-py{self.python}{keras}"


def chosen(
    tensorflow: str, python: str, keras: str, at_hand: Sequence[str], setup: Path
) -> list[Versions]:
    """Returns the runs to make.

    Args:
        tensorflow: A minor version, or "" for all of them.
        python: A minor version, or "" for what the plan has.
        keras: An exact version, or "" for what the plan has.
        at_hand: The minor versions of Python that this machine has.
        setup: Path of setup.cfg, whose lower bounds are a run of their own.
    """
    tensorflows = [tensorflow] if tensorflow else TENSORFLOWS
    if python or keras:
        return [Versions(each, python or COMMON_PYTHON, keras) for each in tensorflows]
    return [each for each in plan(at_hand, setup) if each.tensorflow in tensorflows]


def plan(at_hand: Sequence[str], setup: Path) -> list[Versions]:
    """Returns all runs: each TensorFlow, each Python, and the lowest of everything.

    The full product would take hours. What breaks does so by TensorFlow, by Keras or
    by Python, hardly by a pair of them.
    """
    runs = [Versions(each, COMMON_PYTHON) for each in TENSORFLOWS]
    runs += [Versions(TENSORFLOWS[-1], each) for each in PYTHONS]
    low = lower_bounds(setup)
    runs.append(Versions(low["tensorflow"], low["python"], low["keras"]))
    return [each for each in dict.fromkeys(runs) if each.python in at_hand]


def lower_bounds(setup: Path) -> dict[str, str]:
    """Returns the lower bounds of setup.cfg on tensorflow, keras and python."""
    config = configparser.ConfigParser()
    config.read(setup)
    lines = config["options"]["install_requires"].splitlines()
    wanted = [*lines, f"python{config['options']['python_requires']}"]
    found = (re.fullmatch(r"(tensorflow|keras|python)>=([\d.]+).*", w) for w in wanted)
    return {match[1]: match[2] for match in found if match}


def as_numbers(version: str) -> tuple[int, ...]:
    """Returns a version in the form that sorts: `3.9.0` before `3.12`."""
    return tuple(
        int("".join(itertools.takewhile(str.isdigit, part)) or 0)
        for part in version.split(".")
    )
