"""Schedules of a pipeline: every formula equals what its schedule and a simulation say."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.model_parallel import cost
from tfdist.model_parallel.may_start import Place, Stale, Synchronous, check_order
from tfdist.model_parallel.pipeline import simulate
from tfdist.model_parallel.schedule import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    Schedule,
    ScheduleError,
    Task,
    gpipe,
    make_schedule,
    one_forward_one_backward,
)

names = st.sampled_from(sorted(SCHEDULES))
few = st.integers(1, 7)
durations = st.integers(1, 9)


def longest_chain(schedule, seconds):
    """The step's seconds, told by the order and the needs alone: no simulation."""
    rule, ends = Synchronous(), {}
    left = [list(tasks) for tasks in schedule.stages]
    free = [0.0] * schedule.num_stages
    while any(left):
        progress = False
        for stage, tasks in enumerate(left):
            while tasks:
                needed = rule.waits_for(schedule, Place(0, stage, tasks[0]))
                if not all(each in ends for each in needed):
                    break
                start = max([free[stage], *(ends[each] for each in needed)])
                task = tasks.pop(0)
                free[stage] = start + seconds[task.kind]
                ends[Place(0, stage, task)] = free[stage]
                progress = True
        assert progress, f"deadlock in\n{schedule}"
    return max(free)


@given(names, few, few)
def test_every_stage_computes_each_microbatch_forward_then_backward(name, k, m):
    schedule = make_schedule(name, k, m)
    assert (schedule.num_stages, schedule.num_microbatches) == (k, m)
    check_order(schedule)


@given(names, few, few, durations, durations)
def test_seconds_and_bubble_are_those_of_the_formulas(name, k, m, forward, backward):
    schedule = make_schedule(name, k, m)
    seconds = longest_chain(schedule, {FORWARD: forward, BACKWARD: backward})
    assert seconds == cost.step_seconds(k, m, forward, backward)
    assert 1 - Fraction(m * (forward + backward), int(seconds)) == cost.bubble(k, m)


@settings(deadline=None)
@given(names, few, few, durations, durations)
def test_the_simulation_finds_the_same(name, k, m, forward, backward):
    schedule = make_schedule(name, k, m)
    outcome = simulate(schedule, [forward] * k, [backward] * k)
    assert outcome.seconds == cost.step_seconds(k, m, forward, backward)
    assert outcome.bubble == pytest.approx(float(cost.bubble(k, m)))
    for stage in range(k):
        assert outcome.kept(stage) == cost.peak_kept(name, stage, k, m)


@given(names, few, few)
def test_what_is_kept_is_what_the_formula_says(name, k, m):
    schedule = make_schedule(name, k, m)
    for stage in range(k):
        assert schedule.kept(stage) == cost.peak_kept(name, stage, k, m)


@settings(deadline=None)
@given(names, few, few, st.data())
def test_unequal_stages_take_as_long_as_the_longest_chain_says(name, k, m, data):
    seconds = st.lists(durations, min_size=k, max_size=k)
    forward, backward = data.draw(seconds), data.draw(seconds)
    outcome = simulate(make_schedule(name, k, m), forward, backward)
    slowest = max(f + b for f, b in zip(forward, backward, strict=True))
    assert outcome.seconds >= max(m * slowest, sum(forward) + sum(backward))
    ends = {each.place: each.end for each in outcome.tasks}
    for each in outcome.tasks:
        needed = Synchronous().waits_for(make_schedule(name, k, m), each.place)
        assert all(ends[other] <= each.start for other in needed)


@settings(deadline=None)
@given(names, few, st.floats(0.0, 3.0))
def test_a_message_takes_its_time_each_way(name, k, message):
    outcome = simulate(make_schedule(name, k, 1), [1.0] * k, [2.0] * k, message=message)
    assert outcome.seconds == pytest.approx(3.0 * k + 2 * (k - 1) * message)


@given(names, few, few, st.integers(1, 3))
def test_steps_follow_each_other(name, k, m, steps):
    schedule = make_schedule(name, k, m)
    outcome = simulate(schedule, [1] * k, [1] * k, steps=steps)
    assert len(outcome.tasks) == steps * 2 * k * m
    # Without a rule that says so, a step does not wait for the end of the one before it.
    assert outcome.seconds <= steps * cost.step_seconds(k, m, 1, 1)


@given(names, st.integers(2, 5), few, st.integers(1, 2))
def test_without_waiting_the_same_schedules_have_no_bubble(name, k, m, lag):
    outcome = simulate(
        make_schedule(name, k, m), [1] * k, [1] * k, steps=3, rule=Stale(lag)
    )
    assert outcome.seconds == 3 * 2 * m
    assert outcome.bubble == 0


def test_a_task_waits_for_the_results_of_its_own_step():
    def needed(stage, kind):
        place = Place(7, stage, Task(kind, 1))
        return Synchronous().waits_for(gpipe(3, 2), place)

    assert needed(0, FORWARD) == ()
    assert needed(2, FORWARD) == (Place(7, 1, Task(FORWARD, 1)),)
    assert needed(0, BACKWARD) == (Place(7, 1, Task(BACKWARD, 1)),)
    assert needed(2, BACKWARD) == (Place(7, 2, Task(FORWARD, 1)),)


def test_a_rule_that_waits_for_itself_is_refused():
    class Circular:
        def waits_for(self, schedule, place):
            return (place,)

    with pytest.raises(ValueError, match="F0 of stage 0 never starts"):
        simulate(gpipe(2, 1), [1, 1], [1, 1], rule=Circular())


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
        (lambda: make_schedule("2f2b", 1, 1), "'2f2b': choose one of gpipe, 1f1b"),
        (lambda: cost.bubble(0, 1), "stage 0 of 0"),
        (lambda: cost.peak_kept("gpipe", 2, 2, 1), "stage 2 of 2"),
        (lambda: cost.peak_kept("2f2b", 0, 1, 1), "choose one of gpipe, 1f1b"),
    ],
)
def test_what_does_not_exist_is_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()


@pytest.mark.parametrize(
    "tasks",
    [
        (Task(FORWARD, 0), Task(FORWARD, 0)),
        (Task(BACKWARD, 0), Task(FORWARD, 0)),
    ],
)
def test_a_schedule_out_of_order_is_refused(tasks):
    with pytest.raises(ValueError, match="one forward and then one backward"):
        simulate(Schedule("mine", (tasks,)), [1], [1])


def test_seconds_of_every_stage_are_needed():
    with pytest.raises(ValueError, match="each of the 2 stages"):
        simulate(gpipe(2, 1), [1], [1, 1])
