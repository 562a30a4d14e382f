import json
import shutil
import sys
from pathlib import Path

import pytest

from tfdist.planning import command as plan_command
from tfdist.planning.plan import Plan

PROGRAMS = Path(__file__).parents[1] / "programs"
COMMAND = """
import runpy, sys
sys.argv = ["tfdist.plan", *sys.argv[1:]]
runpy.run_module("tfdist.plan", run_name="__main__")
"""


@pytest.fixture
def command(run_python, tmp_path, monkeypatch):
    shutil.copy(PROGRAMS / "plan_script.py", tmp_path / "a_script.py")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_python(COMMAND, *arguments)


@pytest.mark.parametrize("where", ["a_script.py", "a_script"])
def test_a_function_is_planned_shown_and_saved(command, tmp_path, where):
    pytest.importorskip("matplotlib")
    done = command(
        f"{where}:build_model",
        "--num_ps=3",
        "--json=plan.json",
        "--plot=plan.png",
        "--variables",
        "--lookups=*/words/embeddings=30",
        "--",
        "--units=500",
    )
    assert done.returncode == 0, done.stderr
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.num_ps == 3
    assert plan.imbalance <= 1.02
    by_name = {v.spec.name: v.weight for v in plan.variables}
    assert by_name["sequential/out/kernel"].spec.shape == (8, 500)
    assert by_name["sequential/words/embeddings"].lookups == 30
    assert json.loads((tmp_path / "plan.json").read_text())["num_ps"] == 3
    assert "fullest ps / mean" in done.stdout
    assert plan.table() in done.stdout
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    names = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert names == {"a_script.py", "plan.json", "plan.png"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name one function, as MODULE:FUNCTION; received []"),
        (("a_script.py:build_model",), "give the number of ps, for example --num_ps=4"),
        (("a_script.py", "--num_ps=2"), "received 'a_script.py'"),
        (("none.py:f", "--num_ps=2"), "there is no file none.py"),
        (("none:f", "--num_ps=2"), "there is no module none"),
        (("a_script:build_model", "--num_ps=0"), "num_ps must be"),
        (("a_script:build_model", "--num_ps=two"), "--num_ps=two"),
        (("a_script:build_model", "--ps=2"), "Unknown command line flag 'ps'"),
        (("a:b", "--num_ps=2", "--target=0.9"), "target must be an imbalance above 1"),
        (("a:b", "--num_ps=2", "--lookups=x"), "--lookups must be PATTERN=ROWS"),
        (("a:b", "--num_ps=2", "--json=no/p.json"), "there is no directory"),
        (("a:b", "--num_ps=2", "--plot=x.foo"), "pictures are PNG files"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    arguments, message, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert plan_command.main(["tfdist.plan", *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.startswith("tfdist.plan: error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent", "--num_ps=2"), "a_script.py has no function 'absent'"),
        (("build_model", "--num_ps=2", "--", "--depth=3"), "flag 'depth'"),
        (
            ("a_model", "--num_ps=2"),
            "a_script.py:a_model must be a function; received 5",
        ),
    ],
)
def test_names_missing_from_the_script_are_errors(command, arguments, message):
    done = command(f"a_script.py:{arguments[0]}", *arguments[1:])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_may_use_argparse(command, tmp_path):
    script = PROGRAMS / "plan_script_with_argparse.py"
    shutil.copy(script, tmp_path / "with_argparse.py")
    done = command(
        "with_argparse.py:build_model", "--num_ps=2", "--variables", "--", "--units=333"
    )
    assert done.returncode == 0, done.stderr
    assert "8 x 333" in done.stdout


@pytest.mark.parametrize(
    ("function", "message"),
    [("no_model", "no_model returned 7"), ("not_compiled", "must be compiled")],
)
def test_what_cannot_be_measured_is_reported_in_words(command, function, message):
    done = command(f"a_script.py:{function}", "--num_ps=2")
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_in_the_users_code_is_shown_in_full(command):
    done = command("a_script.py:broken", "--num_ps=2")
    assert done.returncode == 1
    assert 'a_script.py", line' in done.stderr
    assert "ZeroDivisionError: of the user's own" in done.stderr


def test_help(capsys):
    assert plan_command.main(["tfdist.plan", "--help"]) == 0
    assert "--lookups" in capsys.readouterr().out
