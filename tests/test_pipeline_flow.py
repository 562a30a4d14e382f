"""Stages that do not wait: which batch each computes when, by the rule alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.model_parallel.flow import active
from tfdist.model_parallel.may_start import Place, Stale
from tfdist.model_parallel.schedule import BACKWARD, FORWARD, Task, gpipe

lags = st.integers(1, 2)
few = st.integers(1, 5)


@given(lags, few, st.integers(0, 30), st.sampled_from([FORWARD, BACKWARD]), st.data())
def test_a_task_waits_for_results_of_its_own_batch(lag, stages, step, kind, data):
    rule = Stale(lag)
    stage = data.draw(st.integers(0, stages - 1))
    batch = rule.batch_of(stages, stage, kind, step)
    place = Place(step, stage, Task(kind, 0))
    for needed in rule.waits_for(gpipe(stages, 1), place):
        assert batch == rule.batch_of(
            stages, needed.stage, needed.task.kind, needed.step
        )
        assert needed.step == (step if needed.stage == stage else step - lag)


@given(lags, few, st.integers(1, 12))
def test_each_stage_computes_each_batch_once_each_way(lag, stages, batches):
    rule = Stale(lag)
    forward, backward = {}, {}
    step = 0
    # The last batches come when they come; then the pipe drains.
    while step < batches or active(stages, rule, step, batches):
        now = active(stages, rule, step, min(step + 1, batches))
        for found, kind, at in (
            (forward, FORWARD, now.forward),
            (backward, BACKWARD, now.backward),
        ):
            for stage in at:
                batch = rule.batch_of(stages, stage, kind, step)
                assert found.setdefault((stage, batch), step) == step
        step += 1
    every = {(stage, batch) for stage in range(stages) for batch in range(batches)}
    assert forward.keys() == backward.keys() == every
    for stage, batch in every:
        waits = 2 * lag * (stages - 1 - stage)
        assert backward[stage, batch] - forward[stage, batch] == waits
    assert step == batches + 2 * lag * (stages - 1)


@given(st.integers(2, 5), st.integers(1, 12))
def test_with_a_lag_of_two_every_result_is_sent_on_once(stages, batches):
    rule, step = Stale(2), 0
    sent = []
    while step < batches or active(stages, rule, step, batches):
        now = active(stages, rule, step, batches)
        sent += [("forward", each) for each in now.sent_forward]
        sent += [("backward", each) for each in now.sent_backward]
        step += 1
    for stage in range(stages):
        assert sent.count(("forward", stage)) == (batches if stage < stages - 1 else 0)
        assert sent.count(("backward", stage)) == (batches if stage else 0)


def test_a_lag_of_no_step_is_refused():
    with pytest.raises(ValueError, match="1 or more steps; received 0"):
        Stale(0)
