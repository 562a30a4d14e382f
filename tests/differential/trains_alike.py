"""The test of a generated program, for the files that share the seeds."""

from collections.abc import Callable

import pytest

from .programs import Program, program_of, smallest

ALL = 1000
IN_PART = 120
"""How many of the seeds the part `differential` runs: what ten minutes allow."""


def of_seeds(seeds: range) -> pytest.MarkDecorator:
    """Parametrizes a test by seeds, most of which only `make sweeps` runs."""
    rest = pytest.mark.thorough
    cases = [s if s < IN_PART else pytest.param(s, marks=rest) for s in seeds]
    return pytest.mark.parametrize("seed", cases)


def check(seed: int, alike: Callable[[Program], list[str]]) -> None:
    """Fails with the smallest program that differs, if that of the seed does."""
    if alike(program_of(seed)):
        small = smallest(program_of(seed), lambda each: bool(alike(each)))
        pytest.fail("\n".join([repr(small), *alike(small)]))
