"""Stages that do not wait: which batch each computes when."""

from hypothesis import given
from hypothesis import strategies as st

from tfdist.research.model_parallel.schedule import BACKWARD, FORWARD, active, batch_of

lags = st.integers(1, 2)
few = st.integers(1, 5)


@given(lags, few, st.integers(0, 30))
def test_a_batch_passes_from_stage_to_stage(lag, stages, step):
    forward, backward = (
        [batch_of(stages, lag, stage, kind, step) for stage in range(stages)]
        for kind in (FORWARD, BACKWARD)
    )
    assert forward[0] == step
    assert forward[-1] == backward[-1]
    for stage in range(1, stages):
        before = step - lag
        assert forward[stage] == batch_of(stages, lag, stage - 1, FORWARD, before)
        assert backward[stage - 1] == batch_of(stages, lag, stage, BACKWARD, before)


@given(lags, few, st.integers(1, 12))
def test_each_stage_computes_each_batch_once_each_way(lag, stages, batches):
    forward, backward = {}, {}
    step = 0
    # The last batches come when they come; then the pipe drains.
    while step < batches or active(stages, lag, step, batches):
        now = active(stages, lag, step, min(step + 1, batches))
        for found, kind, at in (
            (forward, FORWARD, now.forward),
            (backward, BACKWARD, now.backward),
        ):
            for stage in at:
                batch = batch_of(stages, lag, stage, kind, step)
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
    lag, step = 2, 0
    sent = []
    while step < batches or active(stages, lag, step, batches):
        now = active(stages, lag, step, batches)
        sent += [("forward", each) for each in now.sent_forward]
        sent += [("backward", each) for each in now.sent_backward]
        step += 1
    for stage in range(stages):
        assert sent.count(("forward", stage)) == (batches if stage < stages - 1 else 0)
        assert sent.count(("backward", stage)) == (batches if stage else 0)
