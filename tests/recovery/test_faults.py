"""Schedules of faults: drawn from a seed, and nothing but data."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.fault.faults import (
    CHECKPOINT_KINDS,
    FAULT_KINDS,
    KILL,
    LETHAL_KINDS,
    SLOW,
    STOP,
    Fault,
    FaultError,
    Schedule,
    draw,
)

from ..support.raising import raises

TASKS = ("chief", "ps:0", "ps:1", "worker:0", "worker:1")

arguments = st.tuples(
    st.integers(0, 2**64),
    st.lists(st.sampled_from(TASKS), min_size=1, unique=True),
    st.integers(1, 10**6),
    st.lists(st.sampled_from(FAULT_KINDS), min_size=1, unique=True),
    st.integers(0, 20),
)


@settings(deadline=None)
@given(arguments)
def test_a_seed_has_one_schedule_which_json_keeps(drawn):
    schedule = draw(*drawn)
    assert draw(*drawn) == schedule
    assert Schedule.from_json(schedule.to_json()) == schedule


@settings(deadline=None)
@given(arguments)
def test_a_schedule_has_what_was_asked_for(drawn):
    seed, tasks, steps, kinds, count = drawn
    schedule = draw(*drawn)
    assert len(schedule.faults) == count
    assert schedule.kinds <= set(kinds)
    assert sorted(schedule.faults, key=lambda fault: fault.step) == [*schedule.faults]
    for fault in schedule.faults:
        assert 0 <= fault.step < steps
        assert fault.task in (["chief"] if fault.kind in CHECKPOINT_KINDS else tasks)
        assert (fault.seconds > 0) == (fault.kind not in LETHAL_KINDS)


def test_the_schedule_of_a_seed_is_the_same_in_every_version():
    [first, second] = draw(42, TASKS, 1000, (KILL, STOP), 2).faults
    assert first == Fault("stop", "chief", 247, 0.223, 3.209)
    assert second == Fault("stop", "chief", 379, 0.03, 1.656)


def test_every_task_and_kind_is_struck_sooner_or_later():
    struck = [
        (fault.kind, fault.task)
        for seed in range(300)
        for fault in draw(seed, TASKS, 100, FAULT_KINDS, 3).faults
    ]
    assert {kind for kind, _ in struck} == set(FAULT_KINDS)
    assert {task for kind, task in struck if kind == KILL} == set(TASKS)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "explode", "task": "ps:0"}, "unknown fault 'explode'.* kill, stop"),
        ({"kind": "corrupt", "task": "ps:0"}, "strikes the chief.*'ps:0'"),
        ({"kind": "kill", "task": "ps:0", "step": -1}, "must be >= 0"),
        ({"kind": SLOW, "task": "ps:0"}, "must be > 0 bytes per second"),
    ],
)
def test_a_fault_that_there_is_not(fault, message):
    with pytest.raises(FaultError, match=message):
        Fault(**fault)
    with pytest.raises(FaultError, match=message):
        Schedule.from_json(json.dumps({"faults": [fault]}))


@settings(deadline=None)
@given(st.text() | st.recursive(st.none(), st.lists).map(json.dumps))
def test_what_is_no_schedule_is_said_to_be_none(text):
    with raises(FaultError, "JSON such as"):
        Schedule.from_json(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"fault": []}', "no list of faults: {'fault'"),
        ('{"faults": [1]}', "received the fault 1"),
        ('{"faults": [{"kind": "kill"}]}', "a fault needs a 'task'"),
        ('{"faults": [{"kind": "kill", "who": 1}]}', "a fault has kind, .* 'who'"),
        (
            '{"faults": [{"kind": "kill", "task": 1}]}',
            "'task' of a fault must be a string",
        ),
        ('{"faults": [{"kind": "kill", "step": "1"}]}', "'step' .* must be a number"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(text, message):
    with pytest.raises(FaultError, match=message):
        Schedule.from_json(text)


def test_a_schedule_by_hand_may_be_short():
    text = '{"faults": [{"kind": "kill", "task": "ps:0", "step": 100}]}'
    assert Schedule.from_json(text) == Schedule((Fault("kill", "ps:0", 100),))


@pytest.mark.parametrize(
    ("tasks", "steps", "kinds", "count"),
    [
        ([], 9, [KILL], 1),
        (TASKS, 0, [KILL], 1),
        (TASKS, 9, [], 1),
        (TASKS, 9, [KILL], -1),
    ],
)
def test_a_schedule_of_nothing(tasks, steps, kinds, count):
    with raises(FaultError, "at least one"):
        draw(1, tasks, steps, kinds, count)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("kill", "ps:0"), "kill ps:0"),
        (Fault("stop", "chief", seconds=2), "stop chief for 2.0 s"),
        (
            Fault("delay", "ps:1", seconds=2, amount=0.05),
            "delay ps:1 by 50 ms for 2.0 s",
        ),
        (Fault("slow", "ps:1", amount=2e6), "slow ps:1 to 2.0 MB/s"),
    ],
)
def test_a_fault_in_words(fault, words):
    assert str(fault) == words
