"""A cluster on this machine: real processes, and a stand-in for TensorFlow's server."""

import ast
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import psutil
import pytest

import launch
from launch import readiness

PROGRAMS = Path(__file__).parent / "launch_programs"
ROOT = str(Path(launch.__file__).parent.parent)
DEADLINE = 30.0
SLEEP = "import time; print('ready', flush=True); time.sleep(600)"


def wait_for(condition, what):
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} after {DEADLINE:g} s"
        time.sleep(0.05)
    return value


def marked(mark):
    """The processes with the mark on their command line or in their environment."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            environ = (directory / "environ").read_bytes()
            text = environ + (directory / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in text:  # A zombie has neither.
            found.append(int(directory.name))
    return found


class Launcher:
    """Runs `python -m launch.local` in a directory where a stand-in is `tfdist`."""

    def __init__(self, directory):
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.directory = directory
        (directory / "tfdist").mkdir()
        (directory / "tfdist" / "__init__.py").touch()
        shutil.copy(PROGRAMS / "server.py", directory / "tfdist" / "server.py")

    def start(self, *args, stdout=subprocess.PIPE, **variables):
        environ = {**os.environ, "PYTHONPATH": ROOT, "TEST_MARK": self.mark}
        environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
        return subprocess.Popen(
            [sys.executable, "-m", "launch.local", "--log_dir=logs", *args],
            cwd=self.directory,
            env={**environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args, **variables):
        """Runs it to its end: its exit status, standard output and error."""
        process = self.start(*args, **variables)
        output, errors = process.communicate(timeout=DEADLINE)
        return process.returncode, output, errors

    def script(self, code, name="train.py"):
        (self.directory / name).write_text(textwrap.dedent(code))
        return name

    def log(self, name):
        path = self.directory / "logs" / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    def wait_for_log(self, name, text=b"ready"):
        wait_for(lambda: text in self.log(name), f"{text!r} in the log of {name}")

    def wait_until_nothing_is_left(self):
        wait_for(lambda: not marked(self.mark), "end of the last process")


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    left = marked(launcher.mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


# How a job runs and ends.


def test_chief_runs_the_script_with_its_flags_untouched(launcher):
    script = launcher.script("import sys, os; print(sys.argv, os.environ['TF_CONFIG'])")
    flags = ["--num_ps=7", "-x", "--help", "--flagfile=none", "--", "a b", ""]
    status, output, _ = launcher.run("--num_ps=1", "--num_workers=1", script, *flags)
    assert status == 0
    lines = output.splitlines()
    assert sorted(lines[:2]) == [
        "[ps:0]     hello from ps:0",
        "[worker:0] hello from worker:0",
    ]
    name, argv, config = lines[2].partition("]")[0], *lines[2][11:].split("] ")
    assert name == "[chief"
    assert ast.literal_eval(argv + "]") == [script, *flags]
    config = json.loads(config)
    assert config["task"] == {"type": "chief", "index": 0}
    assert [*config["cluster"]] == ["chief", "ps", "worker"]


def test_script_sees_its_own_directory_first_as_with_plain_python(launcher):
    (launcher.directory / "deep").mkdir()
    launcher.script("VALUE = 'neighbour'", "deep/neighbour.py")
    script = launcher.script(
        "import neighbour; print(neighbour.VALUE)", "deep/train.py"
    )
    status, output, _ = launcher.run(script)
    assert (status, "[chief]    neighbour\n" in output) == (0, True)


@pytest.mark.parametrize(
    ("code", "expected", "ending"),
    [
        ("raise SystemExit(3)", 3, "failed"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
    ],
)
def test_exit_status_is_the_chiefs(launcher, code, expected, ending):
    status, _, errors = launcher.run(launcher.script(code))
    assert status == expected
    rows = {line.split()[1]: line for line in errors.splitlines()}
    assert ending in rows["chief"]
    assert "ended by the launcher" in rows["ps:0"]
    assert "143" in rows["worker:1"]


def test_server_that_fails_ends_the_job_and_gives_its_status(launcher):
    script = launcher.script(f"open('fail', 'w'); {SLEEP}")
    status, _, errors = launcher.run(script, FAILING_SERVER="worker:1")
    assert status == 7
    assert "worker:1 exited with status 7" in errors


def test_every_task_program_waits_for_all_its_workers(launcher):
    script = launcher.script(
        """
        import json, os, time
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        time.sleep(index)
        print("done", index)
        """
    )
    status, output, errors = launcher.run("--num_ps=0", script)
    assert status == 0
    assert output == "[worker:0] done 0\n[worker:1] done 1\n"
    assert "waiting up to 60 s for worker:1 to end" in errors


def test_every_task_program_does_not_wait_for_ever(launcher):
    script = launcher.script(
        """
        import os, time
        if '"index":1' in os.environ["TF_CONFIG"]:
            time.sleep(600)
        """
    )
    flags = ["--num_ps=0", "--straggler_timeout=0.3"]
    status, _, errors = launcher.run(*flags, script)
    assert status == 0
    assert "worker:1 did not end in time" in errors


def test_evaluator_runs_the_script_and_ends_with_the_chief(launcher):
    script = launcher.script(
        """
        import os, time
        if "evaluator" in os.environ["TF_CONFIG"]:
            open("evaluated", "w")
            time.sleep(600)
        while not os.path.exists("evaluated"):
            time.sleep(0.05)
        """
    )
    status, _, errors = launcher.run("--evaluator", script)
    assert status == 0
    assert "evaluator  ended by the launcher" in errors


def test_output_is_prefixed_on_the_terminal_and_complete_in_the_log(launcher):
    script = launcher.script(
        r"""
        import os, sys
        os.write(1, b"1/2\r2/2\n")
        os.write(2, b"\xff\xfe\n")
        os.write(1, b"no end")
        """
    )
    status, output, _ = launcher.run(script)
    assert status == 0
    chief = [line for line in output.splitlines() if line.startswith("[chief]")]
    assert [line[11:] for line in chief] == ["2/2", r"\xff\xfe", "no end"]
    assert launcher.log("chief") == b"1/2\r2/2\n\xff\xfe\nno end"
    assert launcher.log("ps-1") == b"hello from ps:1\n"


def test_tensorflow_chatter_of_servers_is_only_in_their_logs(launcher):
    line = "I0000 00:00:1795256414.158899   28852 port.cc:153] one"
    server = launcher.directory / "tfdist" / "server.py"
    server.write_text(f"print({line!r})\n{server.read_text()}")
    script = launcher.script(f"print({line!r})")
    _, output, _ = launcher.run(script)
    assert [text for text in output.splitlines() if line in text] == [
        f"[chief]    {line}"
    ]
    assert line.encode() in launcher.log("ps-0")
    _, output, _ = launcher.run(script, TF_CPP_MIN_LOG_LEVEL="0")
    assert output.count(line) == 5


def test_job_outlives_the_viewer_of_its_output(launcher):
    script = launcher.script("for i in range(10_000): print('x' * 100)")
    read_end, write_end = os.pipe()
    process = launcher.start(script, stdout=write_end)
    os.close(write_end)
    os.close(read_end)
    _, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, len(launcher.log("chief"))) == (0, 1_010_000)
    assert "Traceback" not in errors


# What goes wrong at the start.


def test_server_that_never_listens_is_named_with_its_address(launcher):
    script = launcher.script("print('never')")
    flags = ["--num_ps=1", "--startup_timeout=1", script]
    status, output, errors = launcher.run(*flags, SILENT_SERVER="worker:1")
    assert status == 1
    assert "[launch]   worker:1 did not listen on 127.0.0.1:" in errors
    assert "within 1 s (--startup_timeout)" in errors
    assert "hello from worker:1" in errors
    assert "worker:0 did not" not in errors
    assert "never" not in output


def test_server_that_dies_at_start_is_reported_at_once(launcher):
    flags = ["--startup_timeout=600", launcher.script("print('never')")]
    status, output, errors = launcher.run(*flags, DYING_SERVER="ps:1")
    assert status == 7
    assert "ps:1 exited with status 7 before it listened on 127.0.0.1:" in errors
    assert "[launch]     last words" in errors
    assert "never" not in output


def test_port_that_somebody_took_is_named_with_its_taker(tmp_path, capfd, monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        free, *_ = launch.local_cluster(1, 1).worker
        cluster = launch.local_cluster(1, 1)
        cluster = type(cluster)(
            chief=cluster.chief, ps=(f"127.0.0.1:{port}",), worker=(free,)
        )
        job = launch.make_job(
            cluster,
            launch.Program("train.py"),
            log_dir=str(tmp_path),
            server=(str(PROGRAMS / "server.py"),),
        )
        assert launch.run(job) == 1
        errors = capfd.readouterr().err
        assert f"port {port} is taken by process {os.getpid()} (" in errors
        assert "Address already in use" in errors

        # A stranger's listener is not taken for ours.
        monkeypatch.setenv("SILENT_SERVER", "ps:0")
        assert launch.run(dataclasses.replace(job, startup_timeout=1.0)) == 1
        errors = capfd.readouterr().err
        assert f"ps:0 did not listen on 127.0.0.1:{port} within 1 s" in errors
        assert f"port {port} is taken by process {os.getpid()} (" in errors


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--num_ps=-1", "train.py"], "num_ps.*-1 is not a non-negative integer"),
        (["--num_ps=two", "train.py"], "num_ps=two"),
        (["--num_pss=1", "train.py"], "Unknown.*num_pss.*Did you mean: num_ps"),
        (["--num_workers=0", "train.py"], "--num_ps=2 needs workers.*--num_workers=1"),
        (["--nochief", "train.py"], "--num_ps=2 needs a chief.*remove --nochief"),
        (["--num_ps=0", "--num_workers=0", "train.py"], "nothing trains: give"),
        (["--num_ps=0", "--program=coordinator", "train.py"], "needs parameter server"),
        (["--program=all", "train.py"], "program=all.*auto"),
        (["--num_workers=70000", "train.py"], "needs 70003 free ports"),
        (["--startup_timeout=0", "train.py"], "--startup_timeout is a time > 0 s; rec"),
        (["--startup_timeout=nan", "train.py"], "--startup_timeout is a time > 0 s"),
        (["--grace_period=-1", "train.py"], "--grace_period is a time > 0 s; received"),
        (["--num_ps=1"], "no script: name it after the flags"),
        (["absent.py"], "'absent.py' does not exist in .*: check its path"),
        (["."], "'.' is not a file"),
        (["--log_dir=train.py/logs", "train.py"], "cannot be written.*--log_dir"),
    ],
)
def test_mistakes_are_one_message_and_status_2(launcher, args, words):
    launcher.script("print('never')")
    status, output, errors = launcher.run(*args)
    assert status == 2
    assert output == ""
    assert re.search(words, " ".join(errors.split()))
    assert errors.startswith("launch.local: error: ")
    assert "Traceback" not in errors


def test_dry_run_prints_the_plan_and_starts_nothing(launcher):
    script = launcher.script("open('started', 'w')")
    status, output, errors = launcher.run(
        "--dry_run", "--num_ps=1", script, "--a='b c'"
    )
    assert (status, errors) == (0, "")
    tasks = [line for line in output.splitlines() if line.startswith("# ")]
    assert [line.split()[1] for line in tasks] == [
        "chief",
        "ps:0",
        "worker:0",
        "worker:1",
    ]
    assert output.count("-m tfdist.server") == 3
    assert output.count(f"""{script} '--a='"'"'b c'"'"''""") == 1
    assert sorted(path.name for path in launcher.directory.iterdir()) == [
        "tfdist",
        "train.py",
    ]


def test_help_lists_the_flags(launcher):
    status, output, _ = launcher.run("--help")
    assert status == 0
    assert "--startup_timeout" in output


# Signals, and what is left behind.

SAVES_ON_INTERRUPT = """
    import signal, sys, time
    def save(signum, frame):
        print("saved after", signum, flush=True)
        sys.exit(5)
    signal.signal(signal.SIGINT, save)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_lets_the_chief_save_its_work(launcher, signum):
    process = launcher.start(launcher.script(SAVES_ON_INTERRUPT))
    launcher.wait_for_log("chief")
    process.send_signal(signum)
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 5
    assert f"saved after {signum}" in output
    assert f"{signum.name}: passed on to chief, which may take 10 s" in errors


def test_second_signal_kills_at_once(launcher):
    script = launcher.script(
        """
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(600)
        """
    )
    process = launcher.start("--grace_period=600", script)
    launcher.wait_for_log("chief")
    process.send_signal(signal.SIGINT)
    while "passed on" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "chief     killed by the launcher     137" in errors


def test_chief_that_does_not_end_is_killed_after_the_grace_period(launcher):
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
    process = launcher.start("--grace_period=0.5", launcher.script(code))
    launcher.wait_for_log("chief")
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143
    assert "chief did not end in 0.5 s: killing" in errors


def test_signal_during_the_start_ends_the_servers(launcher):
    flags = ["--startup_timeout=600", launcher.script(SLEEP)]
    process = launcher.start(*flags, SILENT_SERVER="ps:0")
    launcher.wait_for_log("ps-0", b"hello")
    process.terminate()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 143
    assert "told to end at startup" in errors
    assert "chief     not started" in errors


def test_descendants_that_hide_are_gone_when_the_chief_ends(launcher):
    status, _, _ = launcher.run(str(PROGRAMS / "orphans.py"), launcher.mark, "0.5")
    assert status == 0
    assert marked(launcher.mark) == []


@pytest.mark.parametrize("victim", ["launcher", "supervisor"])
def test_nothing_is_left_when_the_launcher_is_killed(launcher, victim):
    process = launcher.start(str(PROGRAMS / "orphans.py"), launcher.mark, "600")
    launcher.wait_for_log("chief")
    # launcher, supervisor, 4 servers, chief, and its 4 children
    assert len(marked(launcher.mark)) == 11
    supervisor, *_ = psutil.Process(process.pid).children()
    os.kill(process.pid if victim == "launcher" else supervisor.pid, signal.SIGKILL)
    launcher.wait_until_nothing_is_left()
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == (-9 if victim == "launcher" else 137)
    assert "Traceback" not in errors


def test_tasks_die_even_when_launcher_and_supervisor_are_killed_together(launcher):
    process = launcher.start(launcher.script(SLEEP))
    launcher.wait_for_log("chief")
    supervisor, *_ = psutil.Process(process.pid).children()
    for pid in (process.pid, supervisor.pid):
        os.kill(pid, signal.SIGSTOP)  # Neither can clean up after the other.
    for pid in (supervisor.pid, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=DEADLINE)
    launcher.wait_until_nothing_is_left()


def test_nothing_is_left_when_the_launcher_is_killed_while_nobody_reads(launcher):
    script = launcher.script("while True: print('x' * 1000)")
    process = launcher.start(script)
    launcher.wait_for_log("chief", b"x")
    time.sleep(1)  # Time to fill the pipe, and for the supervisor to wait on it.
    process.kill()
    launcher.wait_until_nothing_is_left()
    process.communicate(timeout=DEADLINE)


# Servers for a chief in the test's own process.


@pytest.fixture
def serve(launcher, monkeypatch, tmp_path):
    monkeypatch.setenv("TEST_MARK", launcher.mark)

    def serve(**options):
        server = (str(PROGRAMS / "server.py"),)
        return launch.servers(2, 2, server=server, log_dir=str(tmp_path), **options)

    return serve


def test_servers_listen_within_the_context_and_are_gone_after_it(
    serve, launcher, capfd
):
    with serve() as servers:
        assert [*servers.pids] == ["ps:0", "ps:1", "worker:0", "worker:1"]
        assert set(servers.pids.values()) < set(marked(launcher.mark))
        assert str(servers.tf_config.task) == "chief:0"
        for task, pid in zip(
            servers.tf_config.cluster.ps, servers.pids.values(), strict=False
        ):
            assert readiness.listens(pid, int(task.rpartition(":")[2]))
    assert marked(launcher.mark) == []
    assert capfd.readouterr() == ("", "")


def test_servers_are_gone_after_an_exception(serve, launcher):
    with pytest.raises(KeyboardInterrupt), serve():
        raise KeyboardInterrupt
    assert marked(launcher.mark) == []


def test_server_may_be_killed_without_the_others(serve):
    with serve() as servers:
        first, *others = map(psutil.Process, servers.pids.values())
        first.kill()
        wait_for(lambda: not first.is_running(), "end of the killed server")
        time.sleep(0.5)
        assert all(process.is_running() for process in others)


def test_servers_that_do_not_start_raise(serve, monkeypatch):
    monkeypatch.setenv("DYING_SERVER", "worker:0")
    with (
        pytest.raises(launch.LaunchError, match="worker:0 exited with status 7"),
        serve(),
    ):
        pytest.fail("the context was entered")
