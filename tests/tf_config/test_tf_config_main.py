"""The command: python -m tf_config."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tf_config
from tf_config.__main__ import main

from ..support.deadline import DEADLINE

HOSTS = ["--chief_hosts=a:1", "--ps_hosts=b:1", "--worker_hosts=c:1,d:1"]
WORKER = ["--job_name=worker", "--task_index=1"]


def run_shell(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(tf_config.__file__).parents[1]),
        "TF_CONFIG_COMMAND": f"{sys.executable} -m tf_config",
        **environ,
    }
    return subprocess.run(
        ["sh", "-c", script],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


class TestPrint:
    @pytest.mark.parametrize(
        "argv",
        [
            [*HOSTS, *WORKER],
            [part for flag in [*HOSTS, *WORKER] for part in flag.split("=")],
        ],
    )
    def test_prints_json(self, argv, capsys):
        assert main(argv) == 0
        assert json.loads(capsys.readouterr().out) == {
            "cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]},
            "task": {"type": "worker", "index": 1},
        }

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            ([], "--job_name and --task_index are required: they say which task"),
            (HOSTS, "use --check alone"),
            ([*HOSTS, "--job_name=ps"], "--task_index are required"),
            ([*HOSTS, "--job_name=ps", "--task_index=1"], "ps:1 is not in the cluster"),
            ([*HOSTS, "--job_name=ps", "--task_index=x"], "invalid int value: 'x'"),
            (["--ps_hosts=a:1", *WORKER], "no chief"),
            (["--ps=a:1", *WORKER], "unrecognized arguments: --ps=a:1"),
            (["--check", "--task_index=0"], "cannot be combined with other flags"),
        ],
    )
    def test_refuses_flags_with_status_2(self, argv, words, capsys):
        with pytest.raises(SystemExit) as exit_:
            main(argv)
        assert exit_.value.code == 2
        out, error = capsys.readouterr()
        assert out == ""
        assert words in error


class TestCheck:
    def test_marks_this_task(self, monkeypatch, capsys):
        main([*HOSTS, *WORKER])
        monkeypatch.setenv("TF_CONFIG", capsys.readouterr().out)
        assert main(["--check"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "TF_CONFIG is valid. This task (*) is worker:1.",
            "  chief:0   a:1",
            "  ps:0      b:1",
            "  worker:0  c:1",
            "* worker:1  d:1",
        ]

    def test_shows_an_evaluator_outside_the_cluster(self, monkeypatch, capsys):
        main([*HOSTS, "--job_name=evaluator", "--task_index=0"])
        monkeypatch.setenv("TF_CONFIG", capsys.readouterr().out)
        assert main(["--check"]) == 0
        assert "* evaluator:0  outside the cluster" in capsys.readouterr().out

    def test_notes_an_evaluator_that_would_hang_tensorflow(self, monkeypatch, capsys):
        monkeypatch.setenv(
            "TF_CONFIG",
            '{"cluster": {"chief": ["a:1"], "evaluator": ["b:1"]},'
            ' "task": {"type": "chief", "index": 0}}',
        )
        assert main(["--check"]) == 0
        assert "wait forever for an evaluator" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (None, "TF_CONFIG is not set"),
            ("{cluster:{}}", "is not JSON"),
        ],
    )
    def test_says_what_is_wrong_with_status_1(self, value, words, monkeypatch, capsys):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        if value is not None:
            monkeypatch.setenv("TF_CONFIG", value)
        assert main(["--check"]) == 1
        out, error = capsys.readouterr()
        assert out == ""
        assert error.startswith("error: ")
        assert words in error


class TestShell:
    def test_an_exported_config_passes_the_check(self):
        # A POSIX shell splits an unquoted $(...) after export at its spaces.
        done = run_shell(
            f"export TF_CONFIG=$($TF_CONFIG_COMMAND {' '.join([*HOSTS, *WORKER])})\n"
            "exec $TF_CONFIG_COMMAND --check"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "* worker:1  d:1" in done.stdout

    def test_the_check_fails_without_a_traceback(self):
        for value in ("{cluster:{}}", '{"cluster":{"\udcff":[]},"task":{}}'):
            done = run_shell("exec $TF_CONFIG_COMMAND --check", TF_CONFIG=value)
            assert done.returncode == 1
            assert done.stderr.startswith("error: ")
            assert "Traceback" not in done.stderr
