"""What must hold at the end of a job under faults, and what its program reports."""

import pytest

from launch.fault import progress
from launch.fault.invariants import Ending, judge
from launch.fault.progress import Progress, Result
from tf_config import contract


def ending(**values):
    result = Result(steps=400, expected=400, in_flight=8)
    return Ending(
        **{
            "status": 0,
            "reason": "",
            "seconds": 30.0,
            "faults": 2,
            "progress": Progress((), result),
            **values,
        }
    )


def steps(number, ahead=0):
    return Progress((), Result(number, expected=400, in_flight=8, ahead=ahead))


def broken(invariants):
    return [each for each in invariants if not each.holds]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"status": None}, "it ends"),
        ({"status": 137}, "it ends"),
        ({"status": 137, "reason": "ps:0 was killed"}, "it ends"),
        ({"progress": Progress()}, "no step is lost"),
        ({"progress": steps(399)}, "no step is lost"),
        ({"progress": steps(417)}, "no step is lost"),
        ({"progress": steps(402, ahead=3)}, "no step is lost"),
        ({"left": ("process 12 (python)",)}, "no process is left"),
    ],
)
def test_one_invariant_is_broken(values, name):
    [found] = broken(judge(ending(**values)))
    assert found.name.startswith(name)


@pytest.mark.parametrize(("number", "ahead"), [(400, 0), (416, 0), (419, 3)])
def test_all_invariants_hold(number, ahead):
    assert broken(judge(ending(progress=steps(number, ahead)))) == []


def test_an_error_will_do_where_it_may_be_if_it_gives_a_reason():
    failed = ending(status=1, reason="ps:0 was lost\nand more")
    assert broken(judge(failed, may_fail=True)) == []
    assert judge(failed, may_fail=True)[0].seen == "ps:0 was lost"
    assert len(broken(judge(ending(status=1), may_fail=True))) == 1
    assert len(broken(judge(ending(status=None), may_fail=True))) == 1


def test_a_program_reports_where_it_is_asked_to(tmp_path, monkeypatch):
    path = tmp_path / "progress"
    monkeypatch.delenv(contract.PROGRESS, raising=False)
    progress.report_step(1)
    assert progress.read(str(path)) == Progress()
    monkeypatch.setenv(contract.PROGRESS, str(path))
    for step in (1, 2, 40, 30):
        progress.report_step(step)
    progress.report_result(steps=50, expected=48, in_flight=8)
    with open(path, "a") as file:
        file.write('null\n{"time": 1}\n{"time": 1, "st')
    found = progress.read(str(path))
    assert [step for _, step in found.steps] == [1, 2, 40, 30]
    assert found.furthest == 40
    assert found.result == Result(50, 48, 8)


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ([], 0),
        ([(0, 1), (5, 2), (9, 3)], 0),
        ([(0, 10), (5, 20), (9, 30), (50, 20), (60, 30)], 4),
        ([(0, 10), (5, 20), (50, 10), (51, 20), (59, 30), (70, 20)], 8),
        ([(0, 10), (5, 20), (50, 1)], 5),
    ],
)
def test_work_that_was_done_again(steps, seconds):
    assert Progress(steps).most_repeated == seconds
