import io
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import Program, local_cluster, make_job
from launch.console.console import Console
from launch.console.keras_output import split_progress
from launch.console.lines import LineSplitter
from launch.console.tf_noise import Chatter, hides
from launch.job.plan import plan
from launch.supervise import processes
from launch.supervise.output import Output, quiet_tasks
from launch.supervise.processes import Exit
from launch.supervise.running_tasks import RunningTasks
from launch.supervise.summary import summarize
from launch.supervise.task_process import TaskProcess
from tf_config import Task

from ..launch_programs.launcher import DEADLINE

pieces = st.lists(st.sampled_from([b"a", b"\xc3", b"\xa9", b"\n", b"\r", b"\b"]))


@pytest.fixture(autouse=True)
def usual_log_level(monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


class Pipe(io.StringIO):
    encoding = "utf-8"


@given(pieces)
def test_lines_do_not_depend_on_how_the_bytes_arrive(bytes_):
    whole, one_by_one = LineSplitter(), LineSplitter()
    lines = whole.feed(b"".join(bytes_))
    assert lines == [line for byte in bytes_ for line in one_by_one.feed(byte)]
    assert whole.partial == one_by_one.partial
    assert whole.close() == one_by_one.close()


@pytest.mark.parametrize(
    ("data", "lines", "partial"),
    [
        (b"one\ntwo\n", ["one", "two"], ""),
        (b"windows\r\n", ["windows"], ""),
        (b"\r1/2\b\b\b\r2/2 done\n", ["2/2 done"], ""),
        (b"\n\n", ["", ""], ""),
        (b"1/2\r", [], "1/2"),
        (b"1/2\r2/", [], "2/"),
        (b"bad \xff byte\n", ["bad \\xff byte"], ""),
        ("half \u2501".encode()[:-1], [], "half "),
    ],
)
def test_lines_are_what_a_terminal_would_show(data, lines, partial):
    splitter = LineSplitter()
    assert splitter.feed(data) == lines
    assert splitter.partial == partial


def test_last_line_needs_no_end():
    splitter = LineSplitter()
    splitter.feed(b"one\ntw")
    splitter.feed(b"o")
    assert splitter.close() == ["two"]
    assert splitter.close() == []


def test_endless_line_is_cut():
    splitter = LineSplitter()
    assert [len(line) for line in splitter.feed(b"x" * 200_000)] == [65536] * 3
    assert len(splitter.partial) == 200_000 - 3 * 65536


def test_redrawn_line_does_not_pile_up():
    splitter = LineSplitter()
    for step in range(10_000):
        assert splitter.feed(b"\r%d/10000 %s" % (step, b"=" * 80)) == []
    assert len(splitter.partial) < 100


def test_prefixes_are_aligned_and_plain_where_there_is_no_terminal():
    out = Pipe()
    console = Console(["chief", "worker:0"], out, None)
    console.line("chief", "hello")
    console.line("worker:0", "hello")
    assert out.getvalue() == "[chief]    hello\n[worker:0] hello\n"


def test_colours_on_a_terminal_differ_between_tasks():
    out = Terminal()
    console = Console(["chief", "ps:0"], out, None, environ={})
    console.line("chief", "a")
    console.line("ps:0", "a")
    first, second = out.getvalue().splitlines()
    assert first.startswith("\x1b[36m[chief] ")
    assert second.startswith("\x1b[33m[ps:0]")


def test_no_color_is_respected():
    out = Terminal()
    Console(["chief"], out, None, environ={"NO_COLOR": "1"}).line("chief", "a")
    assert out.getvalue() == "[chief]  a\n"


def on_screen(text):
    """What stays visible of the text: each line after its last erasure."""
    return [line.rsplit("\r\x1b[K", 1)[-1] for line in text.split("\n")]


def test_progress_bar_steps_aside_for_other_lines_on_a_terminal():
    out = Terminal()
    console = Console(["chief", "ps:0"], out, None, environ={"NO_COLOR": "1"})
    console.partial("chief", "1/2")
    console.line("ps:0", "hello")
    console.partial("chief", "2/2")
    assert on_screen(out.getvalue()) == ["[ps:0]   hello", "[chief]  2/2"]
    console.line("chief", "2/2 done")
    console.partial("chief", "")
    assert on_screen(out.getvalue()) == ["[ps:0]   hello", "[chief]  2/2 done", ""]


def test_progress_bar_is_cut_to_the_width_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    console = Console(["chief"], out, None, environ={"NO_COLOR": "1"})
    console.partial("chief", "\x1b[1m" + "=" * 100)
    assert len(on_screen(out.getvalue())[0]) <= 20


def test_progress_bar_elsewhere_is_shown_every_five_seconds_and_at_its_end():
    out, now = Pipe(), [0.0]
    console = Console(["chief"], out, None, clock=lambda: now[0])
    for second in range(8):
        now[0] = second
        console.partial("chief", f"{second}/9")
        console.tick()
    assert console.waiting
    console.line("chief", "9/9")
    assert out.getvalue() == "[chief]  5/9\n[chief]  9/9\n"
    assert not console.waiting


def test_notices_go_their_own_way():
    out, notices = Pipe(), Pipe()
    Console(["chief"], out, notices).notice("one\ntwo")
    assert out.getvalue() == ""
    assert notices.getvalue() == "[launch] one\n[launch] two\n"


def test_console_outlives_its_viewer():
    class Broken(Pipe):
        def write(self, text):
            raise BrokenPipeError

    console = Console(["chief"], Broken(), None)
    console.line("chief", "a")
    console.line("chief", "b")


def test_characters_that_the_terminal_lacks_become_escapes():
    class Ascii(Pipe):
        encoding = "ascii"

    out = Ascii()
    Console(["chief"], out, None).line("chief", "caf\u00e9")
    assert out.getvalue() == "[chief]  caf\\xe9\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("I0000 00:00:1795256414.158899   28852 port.cc:153] oneDNN", True),
        ("WARNING: All log messages before absl::InitializeLog() is called", True),
        ("E0000 00:00:1795256423.505248   28863 cuda.cc:52] failed", False),
        ("I1121 10:11:12.131415 140737353 train.py:12] the user's own", False),
        ("WARNING:tensorflow:not packing values due to the unknown or incons", True),
        ("W1122 13:34:41.1 28852 a.py:7] not packing values due to the unknown ", True),
        ("not packing values due to the unknown, says the user", False),
        ("Traceback (most recent call last):", False),
        ("WARNING: the user's own", False),
    ],
)
def test_log_level_hides_information_and_warnings_of_tensorflow(line, expected):
    assert hides("2", line) is expected
    assert hides("3", line) is expected
    assert not hides("1", line)
    assert not hides(None, line)


CONFIG = """device_count {
  key: "CPU"
  value: 1
}
gpu_options {
  experimental {
  }
}
allow_soft_placement: true
experimental {
  collective_group_leader: "/job:ps/replica:0/task:0"
}
"""


GRPC = [
    "Additional GRPC error information from remote target /job:ps/replica:0/task:0 while",
    ':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"failed"}',
    "This could happen if the remote target has been disconnected from the client.",
]


def test_what_a_hidden_line_goes_on_with_is_hidden():
    lines = [
        *f"I0000 00:00:1795256414.1 28852 server.cc:9] config: {CONFIG}".split("\n"),
        "loss: 0.5",
        "I0000 00:00:1795256414.1 28852 server.cc:9] Started",
        *CONFIG.split("\n"),
        "W0000 00:00:1795256414.1 28852 server.cc:9] Started",
        "loss: 0.5",
        "E0000 00:00:1795256414.1 28852 context.cc:9] Failed to remove function remotely "
        "due to failed to connect to all addresses",
        *GRPC,
        "E0000 00:00:1795256414.1 28852 onednn_util.cc:9] could not create a primitive",
        "W0000 00:00:1795256414.1 28852 rendezvous.cc:412] aborting: assertion failed",
        "\t [[step_0/message_2/send/15/_6]]",
        GRPC[0],
        "I0000 00:00:1795256414.1 28852 coordination_service.cc:505] Example stragglers:",
        "/job:worker/replica:0/task:1",
        "/job:worker/replica:0/task:2",
        "W0000 00:00:1795256414.1 28852 type_inference.cc:340] Type inference failed. This "
        "indicates an invalid graph that escaped type checking. Error message: expected "
        "compatible input types, but input 1:",
        "type_id: TFT_OPTIONAL",
        "args {",
        "  type_id: TFT_TENSOR",
        "}",
        " is neither a subtype nor a supertype of the combined inputs preceding it:",
        "type_id: TFT_TENSOR",
        "",
        "\tfor Tuple type inference function 0",
        "\twhile inferring type of node 'BatchDatasetV2'",
        "WARNING:tensorflow:From /a/b.py:12: _colocate_with (from tensorflow.python."
        "framework.ops) is deprecated and will be removed in a future version.",
        "Instructions for updating:",
        "Colocations handled automatically by placer.",
        "WARNING:tensorflow:From train.py:12: mine (from tensorflow.python.ops) is "
        "deprecated and will be removed in a future version.",
        "Instructions for updating:",
        "model {",
        "  units: 3",
    ]
    chatter = Chatter("2")
    shown = [line for line in lines if not chatter.hides(line)]
    assert [line.partition(" is dep")[0][-40:] for line in shown] == [
        "loss: 0.5",
        "loss: 0.5",
        "n.py:12: mine (from tensorflow.python.ops)"[-40:],
        "Instructions for updating:",
        "model {",
        "  units: 3",
    ]
    talkative = Chatter("0")
    assert not any(map(talkative.hides, lines))


def ended(code, told_to_end=False, restarts=0, wall=8.02, cpu=4.9):
    exit = Exit(0, code, 0.0)
    return SimpleNamespace(
        exit=exit, told_to_end=told_to_end, restarts=restarts, wall=wall, cpu=cpu
    )


def test_summary_has_a_line_for_each_task_and_the_phases():
    job = make_job(local_cluster(1, 2), Program("train.py"), log_dir="log")
    tasks = {
        Task("chief", 0): ended(0),
        Task("ps", 0): ended(-9, restarts=1),
        Task("worker", 0): ended(-15, told_to_end=True, wall=19.5, cpu=3.9),
    }
    notes = {Task("worker", 0): "idle"}
    shown = summarize(
        job, tasks, lambda task: notes.get(task, ""), [1.0, 12.4, 20.4, 20.6]
    )
    assert shown.splitlines() == [
        "task      ended                                   status  wall s  CPU s  log",
        "chief     finished                                     0     8.0    4.9  log/chief.log",
        "ps:0      was killed by SIGKILL, started 2 times     137     8.0    4.9  log/ps-0.log",
        "worker:0  ended by the launcher, idle                  -    19.5    3.9  log/worker-0.log",
        "worker:1  not started                                  -     0.0    0.0  -",
        "startup 11.4 s, run 8.0 s, teardown 0.2 s",
    ]


PROGRESS = "1/2 ━━━ 0s 9ms/step - loss: 0.08"
CHATTER = "W0000 00:00:1795256414.158899   28852 port.cc:153] odd"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (PROGRESS, f"[worker:0] {PROGRESS}\n"),
        (PROGRESS + CHATTER, f"[worker:0] {PROGRESS}\n"),
        (f"{PROGRESS} - acc: nanhello", f"[worker:0] {PROGRESS} - acc: nanhello\n"),
        (CHATTER, ""),
        ("", "[worker:0] \n"),
    ],
)
def test_chatter_goes_and_the_progress_before_it_stays(line, shown):
    assert shown_of([(0, line)]) == shown


def shown_of(lines, workers=1, last_words_of=None):
    """What a job shows of the lines of its workers, and of the last words of one."""
    out = Pipe()
    job = make_job(local_cluster(0, workers, chief=False), Program("train.py"))
    output = Output(job, Console([plan.name for plan in job.plans], out, None))
    for index, line in lines:
        output.line(job.plans[index], line)
    if last_words_of is not None:
        words = [line for index, line in lines if index == last_words_of]
        tail = "\n".join(["the log ends with", *(f"  {word}" for word in words)])
        task = SimpleNamespace(plan=job.plans[last_words_of], tail=lambda hidden: tail)
        out.write(output.last_words(task))
    return out.getvalue()


def test_the_empty_line_after_hidden_ones_is_hidden():
    lines = f"I0000 00:00:1.1 28852 server.cc:9] config: {CONFIG}\n\nloss: 0.5\n"
    shown = shown_of([(0, line) for line in lines.split("\n")])
    assert shown == "[worker:0] \n[worker:0] loss: 0.5\n[worker:0] \n"


REFUSAL = [
    "Traceback (most recent call last):",
    '  File "t.py", line 3',
    "Odd: no data",
]


def test_what_every_task_says_at_its_end_is_shown_once():
    both = [(index, line) for line in REFUSAL for index in (1, 0)]
    assert shown_of(both, workers=2, last_words_of=1).count("no data") == 1
    own = [(1, line) for line in REFUSAL]
    assert "the log ends with" in shown_of(own, workers=2, last_words_of=1)


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("1/2 ━━━ 0s 9ms/step - loss: 1.5e-05 - acc: nanhello", "hello"),
        ("12/Unknown ━━━ 0s 9ms/step - loss: -infhello", "hello"),
        (
            "\x1b[1m1/2\x1b[0m \x1b[32m━\x1b[0m 1s/step - loss: 0.08/a.py:3: W",
            "/a.py:3: W",
        ),
        ("10/10 - 1s - 97ms/epoch - 9ms/stephello", "hello"),
        ("Epoch 1/2", "Epoch 1/2"),
        ("3/4 of it", "3/4 of it"),
    ],
)
def test_words_after_a_progress_bar_are_found(line, rest):
    assert split_progress(line)[1] == rest


WARNED = "/home/train.py:11: UserWarning: odd"


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("WARNING:root:odd", True),
        ("ERROR:root:odd", True),
        ("CRITICAL odd", True),
        ("W1122 13:34:41.158899 28852 train.py:153] odd", True),
        ("E0000 00:00:1795256414.158899   28852 coordination.cc:153] odd", True),
        (WARNED, True),
        (PROGRESS + WARNED, True),
        ("Exception in thread Thread-1 (read):", True),
        ("INFO:tensorflow:step 1", False),
        ("I1122 13:34:41.158899 28852 train.py:153] step 1", False),
        ("warning: none", False),
        ("WARNINGS: 0", False),
        ("Error rate: 0.1", False),
        ("see train.py:3: it explains", False),
        (PROGRESS, False),
        (CHATTER, False),
        (REFUSAL[0], False),
        ("", False),
    ],
)
def test_of_another_task_warnings_alone_are_shown(line, is_shown):
    shown = f"[worker:1] {line.removeprefix(PROGRESS)}\n" if is_shown else ""
    assert shown_of([(1, line)], workers=2) == shown


def test_what_several_tasks_warn_of_others_do_not_repeat():
    stamps = ["13:34:41.15 28852", "13:34:41.20 28853", "13:34:41.25 28854"]
    lines = [f"W1122 {stamp} train.py:153] odd" for stamp in stamps]
    both = [(0, lines[0]), (1, lines[1]), (2, lines[2])]
    assert shown_of(both, workers=3) == f"[worker:0] {lines[0]}\n"
    assert shown_of(both[1:], workers=3) == f"[worker:1] {lines[1]}\n"


def test_warnings_that_never_repeat_do_not_pile_up():
    job = make_job(local_cluster(0, 2, chief=False), Program("train.py"))
    output = Output(job, Console([], None, None))
    for step in range(5000):
        output.line(job.plans[1], f"WARNING:root:step {step}")
    assert len(output._known) == 1000


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


def test_first_task_is_shown_and_all_are_on_request(launcher):
    script = launcher.script("print('same')")
    status, output, errors = launcher.run("--num_ps=0", script)
    assert (status, output) == (0, "[worker:0] same\n")
    assert "showing the output of worker:0 and the others' warn" in errors
    assert launcher.log("worker-1") == b"same\n"
    status, output, errors = launcher.run("--num_ps=0", "--chatty", script)
    assert sorted(output.splitlines()) == ["[worker:0] same", "[worker:1] same"]
    assert "output, with" not in errors


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


@pytest.mark.parametrize(("who", "why"), [("kernel", "full"), ("launcher", "")])
def test_a_task_that_the_launcher_kills_is_not_said_to_be_out_of_memory(who, why):
    tasks = RunningTasks(*[mock.MagicMock() for _ in range(6)])
    process = mock.MagicMock(pid=7, alive=True, was_killed=False, told_to_end=False)
    process.plan.remote = None
    process.read_reports.return_value = [], True
    tasks._processes = {Task("chief", 0): process}
    tasks._memory = SimpleNamespace(explain=lambda peak: "full", check=lambda: None)
    exits = [Exit(7, -9, 0.0)]
    reap = mock.Mock(return_value=exits if who == "kernel" else [])
    kill = mock.Mock(return_value=(exits, []))
    with mock.patch.multiple(processes, reap=reap, kill_descendants=kill):
        tasks.check()
        tasks.kill_everything()
        tasks.close()
    [exit] = process.ended.call_args_list[0].args
    assert exit.why == why


def test_the_end_of_a_log_is_read_without_the_rest(tmp_path):
    log = tmp_path / "chief.log"
    with log.open("wb") as file:
        file.truncate(2**42)  # More than any machine could read; it takes no space.
        file.seek(0, 2)
        file.write(b"\nlast but one\nlast")
    task = object.__new__(TaskProcess)
    task.log_path = str(log)
    assert task.tail().endswith("\n  last but one\n  last")
    log.write_bytes(b"")
    assert task.tail() == f"{log} is empty"
