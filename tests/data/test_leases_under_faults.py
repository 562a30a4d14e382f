"""Each example is seen as often as there are epochs, and more only if a worker was lost."""

import importlib

import pytest

from launch.chaos import Fault

STEPS = 10_000


@pytest.fixture
def exactly_once(benchmark):
    return benchmark("exactly_once")


@pytest.mark.cluster
def test_none_is_missed_under_a_schedule_of_faults(exactly_once):
    workload = exactly_once.Workload(examples=120_000, epochs=3, batch=32)
    run = exactly_once.measure(1, workload)
    assert not run["broken"], (run["broken"], run["log"])
    assert {each["kind"] for each in run["faults"]} == {"kill", "stop"}
    assert exactly_once.count(run["times"], workload.epochs)[0] == 0


def test_a_seed_kills_a_worker_and_the_chief_and_stops_a_worker(exactly_once):
    for seed in range(20):
        faults = exactly_once.schedule(seed, STEPS).faults
        assert sorted((each.kind, each.task.partition(":")[0]) for each in faults) == [
            ("kill", "chief"),
            ("kill", "worker"),
            ("stop", "worker"),
        ]
        assert len({each.step for each in faults}) == 3
        assert max(each.step for each in faults) < STEPS
        assert exactly_once.joins_at(seed, STEPS) < STEPS
        assert exactly_once.schedule(seed, STEPS).faults == faults


@pytest.mark.parametrize(
    ("times", "struck", "broken"),
    [
        ([0, 0, 0, 10], [], []),
        ([0, 0, 1, 9], [], ["none is missed"]),
        ([0, 0, 0, 9, 1], [], ["few are seen again"]),
        ([0, 0, 0, 9, 1], [Fault("kill", "chief")], ["few are seen again"]),
        ([0, 0, 0, 9, 1], [Fault("kill", "worker:0")], []),
        ([], [], ["each is counted"]),
    ],
)
def test_what_does_not_hold_is_named(exactly_once, times, struck, broken):
    workload = exactly_once.Workload(examples=10, epochs=3, batch=1)
    found = exactly_once.judge(times, struck, workload)
    assert [each.name for each in found if not each.holds] == broken


def test_a_late_server_begins_with_its_step(exactly_once, monkeypatch, tmp_path):
    late_server = importlib.import_module("late_server")
    reports = tmp_path / "progress.jsonl"
    monkeypatch.setenv("LAUNCH_PROGRESS", str(reports))
    assert not late_server.is_reported(20)
    reports.write_text('{"time": 1.0, "step": 20}\n')
    assert late_server.is_reported(20)
