"""The comparison finds what differs, and nothing else; programs are plain data."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .compare import NOISE, TOLERANCE, differences
from .fixed import FIXED
from .programs import (
    HEADS,
    LAYERS,
    OPTIMIZERS,
    STEPS,
    Program,
    is_possible,
    program_of,
    programs,
    smaller,
    smallest,
)

WEIGHT = np.float32([[1.0, -4.0], [0.01, 0.0]])


def test_equal_programs_do_not_differ():
    arrays = {"w": WEIGHT, "count": np.int64(3), "empty": np.float32([])}
    assert differences(arrays, dict(arrays)) == []


@given(st.integers(0, 3), st.sampled_from([-1, 1]))
def test_the_limit_is_a_share_of_the_largest_number(element, sign):
    limit = TOLERANCE * 4 + NOISE
    for factor, found in (0.9, 0), (1.1, 1):
        ours = WEIGHT.astype("float64")
        ours.flat[element] += sign * factor * limit
        assert len(differences({"w": ours}, {"w": WEIGHT.astype("float64")})) == found


@pytest.mark.parametrize(
    ("ours", "plain", "says"),
    [
        (np.int32([1, 2]), np.int32([1, 3]), r"w: \[1 2\], not \[1 3\]"),
        (np.float32([1]), np.float32([[1]]), r"w: shape \(1,\), not \(1, 1\)"),
        (np.float32([1]), np.float64([1]), "w: dtype float32, not float64"),
        (np.float32([np.nan]), np.float32([1]), r"w: \[nan\], not \[1.\]"),
        (np.float32([0.5]), np.float32([0]), "w: differs by 0.5, of at most 0"),
    ],
)
def test_what_differs_is_said(ours, plain, says):
    (line,) = differences({"w": ours}, {"w": plain})
    assert re.fullmatch(says, line)


def test_what_one_of_them_lacks_is_named():
    assert differences({"a": 1.0}, {"b": 1.0}) == [
        "a: tfdist alone has it",
        "b: one process alone has it",
    ]


def test_rounding_of_a_sum_that_is_zero_is_none():
    assert differences({"w": np.float32([NOISE / 2])}, {"w": np.float32([0])}) == []


@given(programs())
def test_a_program_is_an_expression(program):
    assert eval(repr(program)) == program
    assert set(program.layers) <= set(LAYERS[program.inputs])
    assert program.head in HEADS
    assert program.optimizer in OPTIMIZERS
    assert program.step in STEPS
    assert is_possible(program)
    assert all(map(is_possible, smaller(program)))


def test_a_seed_has_one_program():
    assert program_of(17) == program_of(17)
    assert len(set(map(program_of, range(1000)))) > 990


def test_the_programs_of_the_gate_are_possible_and_differ():
    assert all(map(is_possible, FIXED.values()))
    assert len(set(FIXED.values())) == len(FIXED)


def test_a_program_that_fails_is_made_small():
    def fails(program):
        return "dropout" in program.layers and program.stride > 1

    program = next(p for p in map(program_of, range(1000)) if fails(p))
    assert smallest(program, fails) in (
        Program(layers=("dropout",), stride=3),
        Program(inputs="sequence", layers=("dropout",), stride=3),
        Program(inputs="ids", layers=("dropout",), stride=3),
    )
