"""Whose output the console shows, where every task prints the same."""

import pytest

from launch import Program, local_cluster
from launch.plan import plan
from launch.supervise.echo import Echo, quiet_tasks

from .launch_programs.launcher import DEADLINE, Launcher

PROGRESS = "4/4 ━━━━ 0s 16ms/step - loss: 0.5"
WARNED = "/home/train.py:11: UserWarning: odd"
SOURCE = "  warnings.warn('odd')"
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    fit()",
    "ValueError: no data",
]


class Shown:
    """An echo, and what it has shown; worker:1 and worker:2 are quiet."""

    def __init__(self, quiet=("worker:1", "worker:2")):
        self.lines = []
        self.now = 0.0
        self.echo = Echo(
            lambda name, text: self.lines.append((name, text)),
            frozenset(quiet),
            clock=lambda: self.now,
        )

    def feed(self, name, *lines):
        for line in lines:
            self.echo.line(name, line)

    def after(self, seconds):
        """What is shown that much later, and was not before."""
        self.lines.clear()
        self.now += seconds
        self.echo.tick()
        return self.lines


def test_what_all_print_is_shown_once():
    shown = Shown()
    for name in ("worker:1", "worker:0", "worker:2"):
        shown.feed(name, 'Model: "sequential"', PROGRESS)
    shown.echo.close()
    assert shown.lines == [("worker:0", 'Model: "sequential"'), ("worker:0", PROGRESS)]
    assert not shown.echo.waiting


def test_nobody_is_quiet_unless_told():
    shown = Shown(quiet=())
    shown.feed("worker:0", WARNED)
    shown.feed("worker:1", WARNED)
    assert shown.lines == [("worker:0", WARNED), ("worker:1", WARNED)]


@pytest.mark.parametrize(
    "line",
    [
        "WARNING:tensorflow:odd",
        "ERROR:root:odd",
        "CRITICAL odd",
        "W1122 13:34:41.158899 28852 train.py:153] odd",
        "E0000 00:00:1795256414.158899   28852 coordination.cc:153] odd",
        WARNED,
        "train.py:3: DeprecationWarning: odd",
    ],
)
def test_warning_of_another_is_shown_after_a_moment(line):
    shown = Shown()
    shown.feed("worker:1", PROGRESS, line, PROGRESS)
    assert shown.after(1.0) == []
    assert shown.echo.waiting
    assert shown.after(1.5) == [("worker:1", line)]
    assert not shown.echo.waiting


@pytest.mark.parametrize(
    "line",
    [
        "INFO:tensorflow:step 1",
        "I1122 13:34:41.158899 28852 train.py:153] step 1",
        "warning: none",
        "WARNINGS: 0",
        "Error rate: 0.1",
        "see train.py:3: it explains",
        "",
    ],
)
def test_others_are_quiet_about_what_is_no_warning(line):
    shown = Shown()
    shown.feed("worker:1", line)
    shown.echo.close()
    assert shown.lines == []


@pytest.mark.parametrize("first", ["worker:0", "worker:1"])
def test_what_the_first_task_warns_of_too_is_shown_once(first):
    shown = Shown()
    stamps = {"worker:0": "13:34:41.15 28852", "worker:1": "13:34:41.20 28853"}
    for name in sorted(stamps, key=lambda name: name != first):
        shown.feed(name, f"W1122 {stamps[name]} train.py:153] odd", WARNED, SOURCE)
        shown.feed(name, *TRACEBACK)
    shown.echo.close()
    assert {name for name, _ in shown.lines} == {"worker:0"}
    assert len(shown.lines) == 3 + len(TRACEBACK)


def test_what_several_others_warn_of_is_shown_once_for_good():
    shown = Shown()
    for name in ("worker:2", "worker:1"):
        shown.feed(name, WARNED, SOURCE)
    assert shown.after(2.0) == [("worker:2", WARNED), ("worker:2", SOURCE)]
    shown.feed("worker:1", WARNED, SOURCE)
    assert shown.after(5.0) == []


def test_traceback_is_shown_whole():
    shown = Shown()
    shown.feed("worker:1", PROGRESS, *TRACEBACK, PROGRESS)
    assert shown.after(2.0) == [("worker:1", line) for line in TRACEBACK]


def test_traceback_after_an_unfinished_progress_bar_is_found():
    shown = Shown()
    shown.feed("worker:1", PROGRESS + TRACEBACK[0], *TRACEBACK[1:])
    assert shown.after(2.0) == [("worker:1", line) for line in TRACEBACK]


def test_tracebacks_that_differ_anywhere_are_two():
    shown = Shown()
    shown.feed("worker:0", *TRACEBACK)
    shown.feed("worker:1", *TRACEBACK[:-1], "ValueError: no data on worker:1")
    assert ("worker:1", "ValueError: no data on worker:1") in shown.after(2.0)


def test_traceback_that_is_cut_short_is_shown_at_the_end():
    shown = Shown()
    shown.feed("worker:1", *TRACEBACK[:2])
    assert shown.after(9.0) == []
    shown.echo.close()
    assert shown.lines == [("worker:1", line) for line in TRACEBACK[:2]]


def test_interrupt_is_no_error():
    shown = Shown()
    shown.feed("worker:1", *TRACEBACK[:-1], "KeyboardInterrupt")
    shown.echo.close()
    assert shown.lines == []


def test_task_whose_log_is_shown_says_nothing_twice():
    shown = Shown()
    shown.feed("worker:1", WARNED, *TRACEBACK[:2])
    shown.feed("worker:2", *TRACEBACK)
    shown.echo.drop("worker:1")
    shown.echo.close()
    assert shown.lines == [("worker:2", line) for line in TRACEBACK]


def test_warnings_that_never_repeat_do_not_pile_up():
    shown = Shown()
    for step in range(5000):
        shown.feed("worker:0", f"WARNING:root:step {step}")
    assert len(shown.echo._known) == 1000


@pytest.mark.parametrize(
    ("sizes", "kind", "quiet"),
    [
        ((0, 3, False, True), "every_task", {"worker:1", "worker:2"}),
        ((0, 1, True, True), "every_task", {"worker:0"}),
        ((0, 1, False, True), "every_task", set()),
        # Servers print what nobody else does, and so do tasks that train with ps.
        ((0, 2, True, False), "coordinator", set()),
        ((1, 2, True, True), "coordinator", set()),
        ((1, 2, True, False), "every_task", set()),
    ],
)
def test_quiet_are_those_that_do_the_same_as_the_first(sizes, kind, quiet):
    num_ps, num_workers, chief, evaluator = sizes
    cluster = local_cluster(num_ps, num_workers, chief=chief, evaluator=evaluator)
    plans = plan(cluster, Program("train.py"), kind)
    assert quiet_tasks(kind, plans) == quiet


@pytest.fixture
def launcher(tmp_path):
    with Launcher(tmp_path) as launcher:
        yield launcher


def test_first_task_is_shown_and_all_are_on_request(launcher):
    script = launcher.script("print('same')")
    status, output, errors = launcher.run("--num_ps=0", script)
    assert (status, output) == (0, "[worker:0] same\n")
    assert "showing the output of worker:0 and the others' warn" in errors
    assert launcher.log("worker-1") == b"same\n"
    status, output, errors = launcher.run("--num_ps=0", "--chatty", script)
    assert sorted(output.splitlines()) == ["[worker:0] same", "[worker:1] same"]
    assert "output, with" not in errors


def test_warning_of_a_quiet_task_reaches_the_console(launcher):
    script = launcher.script(
        """
        import os, warnings
        if '"index":1' in os.environ["TF_CONFIG"]:
            warnings.warn("odd")
        """
    )
    _, output, _ = launcher.run("--num_ps=0", script)
    assert "[worker:1] " in output
    assert "UserWarning: odd" in output


def test_quiet_task_that_fails_shows_the_end_of_its_log(launcher):
    script = launcher.script(
        """
        import os, time
        if '"index":1' in os.environ["TF_CONFIG"]:
            print("I0000 00:00:1795256414.158899   28852 port.cc:153] chatter")
            print("looking for data")
            raise SystemExit("no data")
        time.sleep(600)
        """
    )
    status, output, errors = launcher.run("--num_ps=0", script)
    assert (status, output) == (1, "")
    _, _, said = errors.partition("[launch]   worker:1 exited with status 1\n")
    path, *lines = said.splitlines()[:3]
    assert path == "[launch]   logs/worker-1.log ends with"
    assert lines == ["[launch]     looking for data", "[launch]     no data"]


def test_quiet_task_that_raises_says_so_once(launcher):
    script = launcher.script(
        """
        import os, time
        if '"index":1' in os.environ["TF_CONFIG"]:
            raise ValueError("no data")
        time.sleep(600)
        """
    )
    _, output, errors = launcher.run("--num_ps=0", script)
    assert (output + errors).count("ValueError: no data") == 1


def test_interrupted_job_shows_no_log(launcher):
    script = launcher.script("import time; print('ready'); time.sleep(600)")
    process = launcher.start("--num_ps=0", script)
    launcher.wait_for_log("worker-0")
    launcher.wait_for_log("worker-1")
    process.send_signal(2)
    output, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "ends with" not in errors
    assert "worker:1" not in output
