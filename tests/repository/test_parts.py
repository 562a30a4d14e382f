"""Every test file is in a part, and the gate has what its table says."""

import contextlib
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import psutil
import pytest

from .. import check, parts, results
from ..support.deadline import DEADLINE
from ..support.processes import still_running

TESTS = parts.TESTS
FILES = {
    path.relative_to(TESTS).with_suffix("").as_posix(): path
    for path in TESTS.glob("*/test_*.py")
}


def test_each_test_is_in_a_folder_which_is_its_part():
    assert sorted(TESTS.rglob("test_*.py")) == sorted(FILES.values())
    assert {"parameter_server", "differential", "slurm"} <= set(parts.PARTS)


@pytest.mark.parametrize(
    ("markers", "cases"),
    [
        ({"parametrize": ()}, "xy"),
        ({"not_in_gate": ()}, ""),
        ({"slow": ()}, ""),
        ({"cluster": (), "in_gate": ()}, "xy"),
        ({"cluster": (), "in_gate": ("x",)}, "x"),
        ({"cluster": (), "thorough": (), "in_gate": ()}, ""),
    ],
)
def test_the_gate_has_what_is_quick_and_of_clusters_what_is_marked(markers, cases):
    assert [each for each in "xy" if parts.is_in_gate(each, markers)] == [*cases]


def outcome(step, status, **result):
    result = {"passed": 0, "skipped": 0, "failed": [], "retried": [], **result}
    return check.Outcome(step, status, 12.4, [result])


def test_the_closing_table_names_every_failure_with_its_command():
    outcomes = [
        check.Outcome("lint", 0, 3.0),
        outcome("gate", 1, passed=7, failed=["tests/test_a.py::test_b[it's 1]"]),
        outcome("recovery", 0, passed=2, retried=["tests/test_c.py::test_d"]),
        check.Outcome("doctests"),
    ]
    lines = check.table(outcomes).splitlines()
    assert lines == [
        "lint             passed        3 s",
        "gate             FAILED       12 s  7 tests passed",
        "recovery         passed       12 s  2 tests passed",
        "doctests         not run       0 s",
        ANY,
        "run twice: tests/test_c.py::test_d",
    ]
    (failed,) = [each for each in lines if each.startswith("FAILED: ")]
    python, *rest = shlex.split(failed.removeprefix("FAILED: "))
    assert check.ROOT / python == Path(sys.executable)
    assert rest == ["-m", "pytest", "tests/test_a.py::test_b[it's 1]"]


def test_a_command_that_hangs_is_ended_with_what_it_started(capfd):
    command = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    assert check.run_in_time(command, 3.0) == check.OUT_OF_TIME
    pid = int(capfd.readouterr().out.split()[0])
    with contextlib.suppress(psutil.NoSuchProcess):
        assert still_running([psutil.Process(pid)]) == []


def test_all_steps_run_and_those_that_need_the_wheel_do_not_without_it(
    monkeypatch, capsys
):
    ran = []

    def run(group, *_):
        ran.append(group)
        return [check.Outcome(it, 1 if it in ("lint", "wheel") else 0) for it in group]

    monkeypatch.setattr(check, "run", run)
    assert check.main(["lint", "types", "types", "wheel", "gate"]) == 1
    assert ran == [["lint", "types"], ["wheel"]]
    assert "gate             not run" in capsys.readouterr().out


def test_the_targets_between_the_wheel_and_the_tests_run_at_the_same_time():
    steps = ["wheel", "lint", "types", "lint", "docs", "doctests", "gate"]
    together = ["lint", "types", "docs", "doctests"]
    assert check.groups_of(steps) == [["wheel"], together, ["gate"]]


def test_each_target_ends_with_its_own_status_and_output(capsys, monkeypatch):
    monkeypatch.setattr(check, "TARGETS", ("help", "nothing-of-this-name"))
    ended = check.run(check.TARGETS, 0, False, [])
    assert [each.status for each in ended] == [0, 2]
    shown = capsys.readouterr().out
    assert (
        shown.index("make check") < shown.index("--- nothing") < shown.index("No rule")
    )


def test_a_step_that_there_is_not_is_refused_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        check.main(["recovry"])
    words = capsys.readouterr().err
    assert "no step is called 'recovry': choose of lint" in words
    assert "recovery" in words


def test_the_result_of_a_part_is_kept_and_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FILE", tmp_path / "results.json")
    monkeypatch.setattr(results, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(results, "_commit", lambda: "abc")
    results.FILE.write_text("{}")
    failed = outcome(
        "recovery", 1, passed=5, failed=["a::b"], retried=["c::d"], load=3.5
    )
    results.keep("recovery", check.result_of(failed, seed=7))
    kept = results.load()["recovery"]
    assert (kept["failed"], kept["load"], kept["seed"]) == (["a::b"], 3.5, 7)
    shown = results.PAGE.read_text()
    row = f"| recovery | {kept['commit']} | {kept['date']} | 5 | 0 | 1 | 1 | 12 | 3.5 |"
    assert row in shown.splitlines()
    assert shown.endswith("- recovery: failed `a::b`\n- recovery: run twice `c::d`\n")
    assert "| slurm | not run |" in shown


def test_a_result_does_not_make_the_commit_another_one(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=b", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=DEADLINE)

    monkeypatch.setattr(results, "ROOT", tmp_path)
    for name in ("FILE", "PAGE"):
        monkeypatch.setattr(results, name, tmp_path / name)
        getattr(results, name).write_text("{}")
    Path(tmp_path, "code.py").touch()
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=all")
    result = check.result_of(outcome("ray", 0, load=1.0), seed=7)
    results.keep("ray", result)
    results.keep("ray", result)
    assert not results.load()["ray"]["commit"].endswith("+")
    Path(tmp_path, "code.py").write_text("changed")
    results.keep("ray", result)
    assert results.load()["ray"]["commit"].endswith("+")


def test_a_part_that_was_cut_off_has_not_passed():
    cut_off = check.result_of(check.Outcome("slurm", check.OUT_OF_TIME, 9.0), seed=7)
    shown = results.page({"slurm": {"commit": "abc", **cut_off}})
    assert "| did not end |" in shown


def test_the_page_shows_the_results_that_are_kept():
    assert results.PAGE.read_text() == results.page(results.load())
