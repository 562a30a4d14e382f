"""How fast a job trains, as its launcher's last line shows."""

import fcntl
import io
import os
import re
import struct
import termios
from pathlib import Path
from types import SimpleNamespace

import pytest

import launch.jobs
from launch.console.console import Console
from launch.engines.engine import RUNNING, Status
from launch.engines.record import Record
from launch.supervise import progress
from tf_config import contract
from tf_config.contract import Report

from ..launch_programs.launcher import wait_for
from ..support.deadline import DEADLINE
from .test_launch_output import Pipe, Terminal

NUMBERS = {"steps": 100, "seconds": 2, "worker:0": 60, "worker:1": 40}


@pytest.mark.parametrize(
    ("numbers", "restarts", "age", "words"),
    [
        ({"steps": 3, "seconds": 2}, 0, 1, "1.5 steps/s"),
        (NUMBERS, 2, 1, "50 steps/s; worker:0 60%, worker:1 40%; 2 restarts"),
        (
            {"steps": 9, "seconds": 2, "worker:0": 0, "staleness": 1.04},
            1,
            12.4,
            "no step for 12 s; staleness 1; 1 restart",
        ),
        (
            {"steps": 9, "seconds": 1, **{f"worker:{i}": i + 1 for i in range(7)}},
            0,
            0,
            "9 steps/s; 7 workers, from worker:0 4% to worker:6 25%",
        ),
    ],
)
def test_the_words(numbers, restarts, age, words):
    assert progress.line(numbers, restarts, age) == words


def test_it_stays_the_last_line_of_a_terminal():
    out = Terminal()
    console = Console(["chief"], out, out, environ={"NO_COLOR": "1"})
    console.status("1 steps/s")
    console.line("chief", "hello")
    console.partial("chief", "1/2")
    console.status("2 steps/s")
    console.notice("restarting ps:0")
    assert rows(out.getvalue())[-4:] == [
        "[chief]  hello",
        "[launch] restarting ps:0",
        "[chief]  1/2",
        "[launch] 2 steps/s",
    ]
    console.line("chief", "2/2")
    console.status("")
    assert rows(out.getvalue())[-2:] == ["[chief]  2/2", ""]


def rows(text):
    """What a terminal shows, which goes up a line, and erases lines."""
    shown, at = [""], 0
    for piece in re.findall(r"\x1b\[A|\r\x1b\[K|\n|[^\x1b\r\n]+", text):
        if piece == "\x1b[A":
            at -= 1
        elif piece == "\r\x1b[K":
            shown[at] = ""
        elif piece == "\n":
            at += 1
            shown += [""] * (at == len(shown))
        else:
            shown[at] += piece
    return shown[: at + 1]


def test_elsewhere_it_is_a_line_each_minute():
    out, notices, now = Pipe(), Pipe(), [0.0]
    console = Console(["chief"], out, notices, clock=lambda: now[0])
    for second in range(130):
        now[0] = second
        console.status(f"{second} steps/s")
    assert notices.getvalue() == "[launch] 60 steps/s\n[launch] 120 steps/s\n"
    assert out.getvalue() == ""


def test_a_report_keeps_its_numbers():
    report = Report(contract.STEPS_TAKEN, numbers=NUMBERS)
    assert Report.from_line(report.to_line()) == report
    assert (
        Report.from_line('{"event": "steps_taken", "numbers": {"steps": "x"}}') is None
    )


_TRAINS = """
    import json, os, time

    def report(**words):
        line = json.dumps(words).encode() + b"\\n"
        os.write(int(os.environ["LAUNCH_REPORT_FD"]), line)

    report(event="training")
    for step in range(600):
        numbers = {"steps": 5, "seconds": 1, "worker:0": step, "worker:1": 3 * step}
        report(event="steps_taken", numbers=numbers)
        if step == 2:
            print("training", flush=True)
        time.sleep(0.05)
        if os.path.exists("enough"):
            break
"""


@pytest.fixture
def terminal():
    """Both ends of a terminal of 100 columns."""
    there, here = os.openpty()
    fcntl.ioctl(here, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    yield there, here
    os.close(there)


def test_a_job_shows_it_on_a_terminal_and_keeps_it_in_a_file(launcher, terminal):
    there, here = terminal
    process = launcher.start(launcher.script(_TRAINS), stdout=here, NO_COLOR="1")
    os.close(here)
    file = launcher.directory / "logs" / progress.FILE
    wait_for(lambda: file.exists() and "worker" in file.read_text(), "line")
    assert file.read_text() == "5 steps/s; worker:0 25%, worker:1 75%\n"
    (launcher.directory / "enough").touch()
    assert process.wait(DEADLINE) == 0
    assert len(re.findall(r"first step after \d+\.\d s\n", process.stderr.read())) == 1
    process.stderr.close()
    text = os.read(there, 1 << 16).decode().replace("\r\n", "\n")
    assert "[launch]   5 steps/s; worker:0 25%, worker:1 75%" in text
    assert "steps/s" not in "".join(rows(text))
    assert not file.exists()


def test_it_can_be_switched_off(launcher):
    script = launcher.script(_TRAINS)
    process = launcher.start("--progress=off", script)
    launcher.wait_for_log("chief", b"training")
    (launcher.directory / "enough").touch()
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert "steps/s" not in output + errors


def test_jobs_status_shows_it(monkeypatch, tmp_path, capsys):
    log = str(tmp_path / "chief.log")
    job = Record(
        name="mine",
        engine="ssh",
        log_dir=str(tmp_path),
        tf_config="",
        tasks={"chief": ("h0", "h0:1", log)},
        grace_period=1.0,
    )
    running = SimpleNamespace(status=lambda job: Status(RUNNING))
    monkeypatch.setattr(launch.jobs.engine, "load", lambda name: running)
    (tmp_path / progress.FILE).write_text("5 steps/s\n")
    with job.held():
        assert launch.jobs.main(["jobs", "status", "mine"]) == 0
    assert capsys.readouterr().out.endswith("\n  training: 5 steps/s\n")
    assert launch.jobs.main(["jobs", "status", "mine"]) == 0
    assert "training" not in capsys.readouterr().out


@pytest.fixture
def reports(monkeypatch):
    """The end of a pipe that gets the reports of this process."""
    reader, writer = os.pipe()
    monkeypatch.setenv(contract.REPORT_FD, str(writer))
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_fit_reports_its_steps_and_what_the_driver_knows(reports, monkeypatch):
    from tfdist.keras import progress as reporter

    reader, _ = reports
    monkeypatch.setattr(reporter, "_INTERVAL", 1e-9)
    monkeypatch.setattr(reporter, "_reporter", reporter._Reporter())
    driver = SimpleNamespace(progress=lambda: {"worker:0": 7.0})
    # The first stride waits until its function is traced.
    strides = [(0, 3, "batches"), (4, 13, "batches"), (14, 18, "batches")]
    assert [*reporter.reported(iter(strides), driver)] == strides
    lines = os.read(reader, 4096).decode().splitlines()
    first, second = [Report.from_line(each).numbers for each in lines]
    assert (first["steps"], second["steps"]) == (10, 5)
    assert first["worker:0"] == 7
    assert first["seconds"] > 0


def test_fit_reports_its_first_step_once(reports, monkeypatch):
    from tfdist.keras import progress as reporter

    reader, _ = reports
    monkeypatch.setattr(reporter, "_reporter", reporter._Reporter())
    for _ in range(2):
        strides = reporter.reported(iter([(0, 0, "batch"), (1, 1, "batch")]), object())
        next(strides)
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)  # It has not run yet.
        assert len([*strides]) == 1
        if _ == 0:
            line = os.read(reader, 4096).decode()
            assert Report.from_line(line) == Report(contract.TRAINING)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)


def test_fit_does_not_wait_for_a_launcher_that_does_not_read(reports):
    from tfdist.cluster.liveness import supervision

    reader, writer = reports
    for _ in range(10_000):
        supervision.report_progress(NUMBERS)
    os.set_blocking(reader, False)
    kept = os.read(reader, 1 << 20)
    assert kept.endswith(b"}\n")
    assert 30_000 < len(kept) <= 1 << 16


@pytest.mark.cluster
def test_fit_on_a_cluster_is_seen(terminal, tmp_path):
    import subprocess
    import sys

    there, here = terminal
    script = tmp_path / "train.py"
    script.write_text(
        """
import time
import keras, numpy, tfdist

strategy = tfdist.ParameterServerStrategy(consistency=tfdist.Asynchronous())
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = numpy.ones((64, 1))
end = time.monotonic() + 6
while time.monotonic() < end:
    model.fit(x, x, batch_size=4, verbose=0)
"""
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.local", f"--log_dir={tmp_path}", str(script)],
        stdout=here,
        stderr=subprocess.STDOUT,
        env={
            **os.environ,
            "NO_COLOR": "1",
            "PYTHONPATH": str(Path(launch.__file__).parents[1]),
        },
    )
    os.close(here)
    text = io.StringIO()
    try:
        while data := os.read(there, 4096):
            text.write(data.decode())
    except OSError:  # A terminal that nobody writes to any more.
        pass
    assert process.wait(DEADLINE) == 0
    pattern = r"[\d.e+]+ steps/s; worker:0 \d+%, worker:1 \d+%; staleness [\d.]+"
    assert re.search(pattern, text.getvalue()), text.getvalue()
