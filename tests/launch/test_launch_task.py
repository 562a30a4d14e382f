"""One task of a cluster, started by its command."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from launch.network import reach

from ..launch_programs.launcher import DEADLINE, ROOT

HOSTS = ["--chief_hosts=a:1", "--ps_hosts=b:1,b:2", "--worker_hosts=c:1,c:2"]
JOBS = ("chief", "ps", "worker")
SCRIPT = "import os, sys; print(os.getpid(), sys.argv, os.environ['TF_CONFIG'])"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*args):
        process = subprocess.Popen(
            [sys.executable, "-m", "launch.task", *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": ROOT},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        output, errors = process.communicate(timeout=DEADLINE)
        return process, output, errors

    return run


def only_the_warning(errors, words):
    """Whether an open port is warned of, and nothing else, where others reach it."""
    if not reach.addresses():
        return errors == ""
    start = f"launch.task: WARNING: anyone who can reach {words} "
    return errors.startswith(start) and errors.count("\n") == 1


def test_chief_becomes_the_script_with_its_flags_untouched(run):
    args = ["--job_name=chief", *HOSTS, "train.py", "--job_name=ps", "--help"]
    process, output, errors = run(*args)
    assert process.returncode == 0
    stray, *warning = errors.splitlines(keepends=True)
    assert only_the_warning("".join(warning), "port 1 of")
    assert stray.startswith("WARNING: --job_name=ps after train.py belongs to")
    pid, rest = output.split(" ", 1)
    assert int(pid) == process.pid
    argv, config = rest.split("] ")
    assert argv == "['train.py', '--job_name=ps', '--help'"
    assert json.loads(config) == {
        "cluster": {"chief": ["a:1"], "ps": ["b:1", "b:2"], "worker": ["c:1", "c:2"]},
        "task": {"type": "chief", "index": 0},
    }


def test_ps_becomes_a_server_and_needs_no_script_of_its_own(run, tmp_path):
    (tmp_path / "tfdist").mkdir()
    (tmp_path / "tfdist" / "__init__.py").touch()
    code = "import sys; print('served', sys.argv[1:]); sys.exit(6)"
    (tmp_path / "tfdist" / "server.py").write_text(code)
    args = ["--job_name=ps", "--task_index=1", *HOSTS, "elsewhere.py", "--epochs=5"]
    process, output, errors = run(*args)
    assert (process.returncode, output) == (6, "served []\n")
    *warning, waits = errors.splitlines(keepends=True)
    assert only_the_warning("".join(warning), "port 2 of")
    assert (
        "ps:1 starts to serve on b:2, until it is killed; training begins once" in waits
    )


@pytest.mark.parametrize("job", ["ps", "worker", "chief"])
def test_a_port_is_tried_before_tensorflow_is_imported(job, run):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        hosts = [f"--{each}_hosts=127.0.0.1:{i}" for i, each in enumerate(JOBS, 1)]
        hosts += [f"--{job}_hosts=127.0.0.1:{port}"]
        process, output, errors = run(
            f"--job_name={job}", "--task_index=0", *hosts, "train.py"
        )
    assert (process.returncode, output) == (2, "")
    assert re.search(f"{job}.* port {port}, which another program has .*", errors)


@pytest.mark.parametrize(
    ("host", "is_warned_of"),
    [
        ("127.0.0.1", False),
        ("localhost", False),
        ("192.0.2.1", True),
        ("host.invalid", False),
    ],
)
def test_an_address_of_another_machine_is_warned_of(run, host, is_warned_of):
    hosts = [f"--chief_hosts={host}:1", "--ps_hosts=b:1", "--worker_hosts=c:1"]
    process, _, errors = run("--job_name=chief", *hosts, "train.py")
    assert process.returncode == 0
    words = f"{host}:1 is not an address of this machine"
    assert (words in errors) == is_warned_of


@pytest.mark.parametrize(
    ("flags", "output"),
    [
        ("--job_name=ps --task_index=0 --program=every_task", r'.*"type":"ps".*\n'),
        ("--job_name=evaluator --evaluator_hosts=d:1", r'.*"type":"evaluator".*\n'),
        (
            "--job_name=worker --task_index=1 --dry_run",
            r"TF_CONFIG='\{.*\"index\":1\}\}' \S+ -m tfdist.server\n",
        ),
    ],
)
def test_a_task_becomes_what_its_flags_say(run, flags, output):
    process, found, _ = run(*flags.split(), *HOSTS, "train.py")
    assert process.returncode == 0
    assert re.fullmatch(output, found)
