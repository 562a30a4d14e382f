"""Schedules of a pipeline: every formula equals what its schedule and a simulation say."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.research.model_parallel.pipeline.step_time import (
    Execution,
    StageCosts,
    step_seconds,
)
from tfdist.research.model_parallel.schedule import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    PipelineScheduleError,
    StageTask,
    gpipe,
    make_schedule,
    one_forward_one_backward,
)

names = st.sampled_from(sorted(SCHEDULES))
few = st.integers(1, 7)
durations = st.integers(1, 9)


def needed(schedule, stage, task):
    """What a task waits for, apart from those before it on its own stage."""
    if task.kind == FORWARD:
        return [(stage - 1, task)] if stage else []
    if stage < schedule.num_stages - 1:
        return [(stage + 1, task)]
    return [(stage, StageTask(FORWARD, task.microbatch))]


def longest_chain(schedule, forward, backward, message=0):
    """The seconds of a step, by the order of tasks and what they need alone."""
    seconds = {FORWARD: forward, BACKWARD: backward}
    ends, free = {}, [0] * schedule.num_stages
    for stage, task in schedule.in_order():
        there = [
            ends[source] + message * (source[0] != stage)
            for source in needed(schedule, stage, task)
        ]
        free[stage] = max([free[stage], *there]) + seconds[task.kind][stage]
        ends[stage, task] = free[stage]
    return max(free)


def simulated(schedule, forward, backward, message=0):
    pairs = list(pairwise(range(schedule.num_stages)))
    ways = pairs + [(b, a) for a, b in pairs]
    free, late = dict.fromkeys(ways, 0), dict.fromkeys(ways, message)
    costs = StageCosts(forward, backward, free, late)
    return step_seconds(Execution(schedule), costs)


@given(names, few, few)
def test_every_stage_computes_each_microbatch_forward_then_backward(name, k, m):
    schedule = make_schedule(name, k, m)
    assert (schedule.num_stages, schedule.num_microbatches) == (k, m)
    wanted = {
        StageTask(kind, each) for kind in (FORWARD, BACKWARD) for each in range(m)
    }
    for tasks in schedule.stages:
        assert len(tasks) == len(wanted)
        assert set(tasks) == wanted
        for each in range(m):
            assert tasks.index(StageTask(FORWARD, each)) < tasks.index(
                StageTask(BACKWARD, each)
            )


@given(names, few, few)
def test_tasks_come_in_an_order_after_what_they_need(name, k, m):
    schedule = make_schedule(name, k, m)
    found = list(schedule.in_order())
    for number, tasks in enumerate(schedule.stages):
        assert tuple(task for stage, task in found if stage == number) == tasks
    place = {each: at for at, each in enumerate(found)}
    for stage, task in found:
        for source in needed(schedule, stage, task):
            assert place[source] < place[stage, task]


@given(names, few, few, durations, durations)
def test_seconds_are_those_of_the_formula(name, k, m, forward, backward):
    schedule = make_schedule(name, k, m)
    seconds = simulated(schedule, [forward] * k, [backward] * k)
    assert seconds == (m + k - 1) * (forward + backward)


@given(names, few, few)
def test_what_is_kept_is_what_the_formula_says(name, k, m):
    schedule = make_schedule(name, k, m)
    formulas = {"gpipe": lambda stage: m, "1f1b": lambda stage: min(m, k - stage)}
    for stage in range(k):
        assert schedule.kept(stage) == formulas[name](stage)


@settings(deadline=None)
@given(names, few, few, st.integers(0, 5), st.data())
def test_a_step_takes_as_long_as_its_longest_chain(name, k, m, message, data):
    seconds = st.lists(st.integers(0, 9), min_size=k, max_size=k)
    forward, backward = data.draw(seconds), data.draw(seconds)
    schedule = make_schedule(name, k, m)
    found = simulated(schedule, forward, backward, message)
    assert found == longest_chain(schedule, forward, backward, message)
    slowest = max(f + b for f, b in zip(forward, backward, strict=True))
    assert found >= max(m * slowest, sum(forward) + sum(backward))


def test_the_schedules_as_text():
    assert str(gpipe(2, 3)).splitlines()[0] == "stage 0: F0 F1 F2 B2 B1 B0"
    assert str(one_forward_one_backward(3, 4)).splitlines() == [
        "stage 0: F0 F1 F2 B0 F3 B1 B2 B3",
        "stage 1: F0 F1 B0 F2 B1 F3 B2 B3",
        "stage 2: F0 B0 F1 B1 F2 B2 F3 B3",
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gpipe(0, 1), "at least one stage; received 0"),
        (lambda: one_forward_one_backward(1, 0), "at least one microbatch; received 0"),
        (lambda: make_schedule("2f2b", 1, 1), "one of gpipe, 1f1b; received '2f2b'"),
    ],
)
def test_what_does_not_exist_is_refused(make, message):
    with pytest.raises(PipelineScheduleError, match=message):
        make()
