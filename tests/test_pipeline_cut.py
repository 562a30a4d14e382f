"""Where a chain is cut, how a batch is divided, and what is refused: without TensorFlow."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.model_parallel.schedule import SCHEDULES, make_schedule
from tfdist.pipeline import arguments
from tfdist.pipeline.cut import cut
from tfdist.pipeline.errors import PipelineError
from tfdist.pipeline.order import in_order

COSTS = st.lists(st.integers(0, 20), min_size=1, max_size=7)


def greatest(costs, stages):
    return max(
        sum(c for c, at in zip(costs, stages, strict=True) if at == stage)
        for stage in set(stages)
    )


@given(COSTS, st.integers(1, 4))
def test_no_other_cut_has_a_cheaper_costliest_stage(costs, count):
    if count > len(costs):
        with pytest.raises(PipelineError, match="needs a layer for each stage"):
            cut(costs, count)
        return
    stages = cut(costs, count)
    assert stages == sorted(stages)
    assert set(stages) == set(range(count))
    others = [
        [sum(i >= end for end in ends) for i in range(len(costs))]
        for ends in itertools.combinations(range(1, len(costs)), count - 1)
    ]
    assert greatest(costs, stages) == min(greatest(costs, each) for each in others)


def test_calls_of_one_layer_stay_together():
    assert cut([1, 1, 1, 1], 2, [(1, 2)]) in ([0, 1, 1, 1], [0, 0, 0, 1])
    with pytest.raises(PipelineError, match="Choose between 1 and 2 stages"):
        cut([1, 1, 1, 1], 3, [(0, 2)])


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_tasks_come_in_an_order_that_keeps_each_stages_own(name, stages, microbatches):
    schedule = make_schedule(name, stages, microbatches)
    found = list(in_order(schedule))
    for number, tasks in enumerate(schedule.stages):
        assert tuple(task for stage, task in found if stage == number) == tasks


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (arguments.checked_stages, 0, "a number of stages of at least 1.*received 0"),
        (arguments.checked_stages, "half", "received 'half'"),
        (arguments.checked_stages, ["a", "b"], "a list with a list of layer names"),
        (arguments.checked_stages, [["a"], []], "stage 1 of 2 has no layer"),
        (arguments.checked_stages, [["a"], ["a"]], "has the layer 'a' twice"),
        (arguments.checked_stages, [["a"], [1]], "names layers; received 1"),
        (arguments.checked_microbatches, 0, "at least 1; received 0"),
        (arguments.checked_microbatches, 2.0, "must be an int; received 2.0"),
        (arguments.checked_schedule, "pipedream", "'gpipe', '1f1b'; received"),
    ],
)
def test_arguments_are_refused_with_what_is_allowed(check, value, message):
    with pytest.raises(PipelineError, match=message):
        check(value)
