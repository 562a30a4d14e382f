"""When the chief reads the metrics on the ps for the logs of a step."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.keras import logs


class State:
    """What the metrics are after so many whole steps, and how often that was read."""

    def __init__(self):
        self.steps = self.readings = 0
        self.is_reset = False

    def begin(self, is_read):
        begins, self.is_reset = self.is_reset and is_read, False
        if begins:
            self.steps = 0
        return begins

    def whole(self, given):
        return logs.WholeLogs(
            given, [key == "steps" for key in sorted(given)], self.steps
        )

    def results(self):
        self.readings += 1
        return {"steps": self.steps} if self.steps else None


@pytest.fixture
def reads(monkeypatch):
    """Returns the logs of a model that counts its steps, their state, and a clock."""
    state, clock = State(), SimpleNamespace(now=0.0)
    monkeypatch.setattr(logs.time, "monotonic", lambda: clock.now)
    model = SimpleNamespace(get_metrics_result=lambda: {"steps": state.steps})
    return logs.StepLogs(model, state), state, clock


def test_logs_that_are_shown_are_read_a_few_times_a_second(reads):
    step_logs, state, clock = reads
    for step in range(1, 100):
        state.steps = step
        clock.now = step / 100
        shown = step_logs.latest()["steps"]
        assert step - shown <= 100 * logs.MAX_AGE + 1
    assert 4 <= state.readings <= 1 / logs.MAX_AGE + 1


def test_logs_that_nobody_sees_are_not_read(reads):
    step_logs, state, clock = reads
    for step in range(100):
        state.steps = step
        clock.now = step / 100
        assert step_logs.known() == {"steps": 0}
    assert state.readings == 0
    assert step_logs.now() == {"steps": 99}


def test_no_logs_are_those_of_a_reset_or_of_the_epoch_before(reads):
    step_logs, state, _ = reads
    state.steps = 7
    of_epoch = step_logs.latest()
    assert of_epoch == {"steps": 7}
    state.is_reset = True
    step_logs.begin(True)
    assert step_logs.are_unknown
    assert step_logs.latest() == {}
    state.steps = 1
    # Keras has kept the dict.
    assert step_logs.latest() is of_epoch
    assert of_epoch == {"steps": 1}


def test_metrics_are_those_of_the_newest_step_and_other_logs_of_the_last(reads):
    step_logs, state, _ = reads
    vectors = []
    for state.steps in (3, 2):
        shown = {"steps": tf.constant(state.steps), "target": tf.constant(-state.steps)}
        vectors.append(step_logs.pack(shown))
    for vector, is_newest in zip(vectors, (False, True), strict=True):
        step_logs.take(vector, is_newest)
    assert step_logs.known() == {"steps": 3, "target": -2}
    step_logs.take(step_logs.pack({"other": tf.constant(5)}), True)
    assert step_logs.known() == {"steps": 3, "target": -2, "other": 5}
    step_logs.pack(shown)
    step_logs.forget()
    for vector, is_newest in zip(reversed(vectors), (True, False), strict=True):
        step_logs.take(vector, is_newest)
    assert step_logs.known() == {"steps": 3, "target": -2}
