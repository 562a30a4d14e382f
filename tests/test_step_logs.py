"""When the chief reads the metrics on the ps for the logs of a step."""

from types import SimpleNamespace

import pytest

from tfdist.keras import logs


@pytest.fixture
def reads(monkeypatch):
    """Returns the logs of a model that counts its steps, the readings, and a clock."""
    model = SimpleNamespace(steps=0, readings=0)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(logs.time, "monotonic", lambda: clock.now)

    def result():
        model.readings += 1
        return {"steps": model.steps}

    model.get_metrics_result = result
    return logs.StepLogs(model), model, clock


def test_logs_that_are_shown_are_read_a_few_times_a_second(reads):
    step_logs, model, clock = reads
    for step in range(100):
        model.steps = step
        clock.now = step / 100
        shown = step_logs.latest()["steps"]
        assert step - shown <= 100 * logs.MAX_AGE + 1
    assert 4 <= model.readings <= 1 / logs.MAX_AGE + 1


def test_logs_that_nobody_sees_are_read_once(reads):
    step_logs, model, clock = reads
    for step in range(100):
        model.steps = step
        clock.now = step / 100
        assert step_logs.known() == {"steps": 0}
    assert model.readings == 1
    assert step_logs.now() == {"steps": 99}
