"""The decisions on a ps are those of the pure policy, after every event."""

import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdist.consistency.bounded_staleness import BoundedStaleness
from tfdist.consistency.policy import Phase
from tfdist.consistency.step_schedule import StepSchedule
from tfdist.parameter_server.gate import decisions
from tfdist.parameter_server.gate.decisions import IDLE, GateSlots

EVENTS = {"arrive": Phase.STARTING, "computed": Phase.READY, "finished": IDLE}


@tf.function
def after(slots, slot, phase, bound):
    ticket = None if phase == Phase.STARTING else tf.gather(slots.ticket, slot)
    slots = decisions.at(slots, slot, phase, ticket)
    return decisions.release(slots, bound)


@given(st.integers(0, 8), st.sampled_from([1, 2, 4]), st.data())
def test_as_the_pure_policy(bound, workers, data):
    schedule = StepSchedule(BoundedStaleness(bound))
    slots = GateSlots(*(tf.zeros(n, tf.int64) for n in (2, workers, workers, workers)))
    for _ in range(data.draw(st.integers(1, 40))):
        phases = {step.worker: step.phase for step in schedule.state.steps}
        moves = [("arrive", worker) for worker in range(workers)]
        for worker, phase in phases.items():
            moves += [("computed", worker)] * (3 * (phase == Phase.COMPUTING))
            moves += [("finished", worker)] * (3 * (phase == Phase.WRITING))
            # A lost worker's step.
            moves += [("finished", worker)]
        event, worker = data.draw(st.sampled_from(moves))
        released = getattr(schedule, event)(worker)
        slots, goes_on, writes, staleness = after(
            slots,
            tf.constant(worker, tf.int64),
            EVENTS[event],
            tf.constant(bound, tf.int64),
        )
        written = {each.worker: each.staleness for each in released.written}
        assert {i for i, w in enumerate(writes.numpy()) if w} == written.keys()
        assert all(staleness[i] == each for i, each in written.items())
        assert {i for i, g in enumerate(goes_on.numpy()) if g} == {
            *written,
            *released.started,
        }
        assert slots.counts[0] == schedule.state.written
        for step in schedule.state.steps:
            assert slots.phase[step.worker] == step.phase
