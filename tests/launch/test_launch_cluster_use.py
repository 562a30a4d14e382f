"""A program that trains without its cluster is told so, and no other one is."""

import re

import pytest

from launch import Program, local_cluster
from launch.console.keras_output import is_training
from launch.job.plan import plan
from launch.supervise.cluster_use import ClusterUse, Socket, is_used
from tf_config import Task

from ..launch_programs.launcher import DEADLINE, PROGRAMS
from ..support import jobs

CHIEF, W0, W1 = Task("chief", 0), Task("worker", 0), Task("worker", 1)
EPHEMERAL = 50_000
STEP = "\x1b[1m1/4\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━\x1b[0m \x1b[1m3s\x1b[0m 1s/step"


def plans_of(num_ps, num_workers, *, chief=False, evaluator=False, kind="auto"):
    chief = chief or num_ps > 0
    cluster = local_cluster(num_ps, num_workers, chief=chief, evaluator=evaluator)
    return plan(cluster, Program("train.py"), kind)


PS = plans_of(2, 2)
WORKERS = plans_of(0, 2)


def port(plans, task):
    return next(each.port for each in plans if each.task == task)


def listeners(plans):
    return [
        Socket(pid, each.port, None) for pid, each in enumerate(plans) if each.is_server
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Epoch 1/5", True),
        (STEP, True),
        (" 12/Unknown ━━━ 0s 168ms/step - loss: 0.9", True),
        ("10/10 - 1s - 97us/step - loss: 0.5", True),
        ("10/10 - 1s - 97ms/epoch - 9ms/step", True),
        ("", False),
        ("Epoch 1/5 begins", False),
        ("epoch 1/5", False),
        ("1/5 done", False),
        ("Found 3/4 files, 2s", False),
    ],
)
def test_training_of_keras_is_known_by_what_it_prints(line, expected):
    assert is_training(line) is expected


def test_servers_that_listen_are_not_used_yet():
    others = [Socket(7, 22, None), Socket(7, EPHEMERAL, 443), Socket(None, 1, 2)]
    assert not is_used(listeners(PS) + others, PS, range(5))
    assert not is_used(others, WORKERS, range(2))


@pytest.mark.parametrize("task", ["ps:0", "ps:1", "worker:0", "worker:1"])
@pytest.mark.parametrize("pid", [0, None])
def test_connection_with_a_server_is_use(task, pid):
    there = port(PS, Task.parse(task))
    for ends in ((EPHEMERAL, there), (there, EPHEMERAL)):
        assert is_used([*listeners(PS), Socket(pid, *ends)], PS, range(5))


def test_script_that_listens_on_its_own_port_is_use():
    assert is_used([Socket(1, port(WORKERS, W1), None)], WORKERS, range(2))
    assert is_used([*listeners(PS), Socket(0, port(PS, CHIEF), None)], PS, range(5))


def test_connection_between_tasks_on_ports_of_their_own_is_use():
    one, other = Socket(0, EPHEMERAL, 9000), Socket(1, 9000, EPHEMERAL)
    assert is_used([one, other], WORKERS, {0, 1})
    assert not is_used([one, other], WORKERS, {0})
    assert not is_used([one, other._replace(pid=0)], WORKERS, {0, 1})
    assert not is_used([one, other._replace(remote=9001)], WORKERS, {0, 1})


def test_chief_that_trains_beside_idle_servers_is_warned_once():
    use = ClusterUse(PS)
    assert use.see(False) == ""
    use.hear(CHIEF, "Epoch 1/5")
    warning = use.see(False)
    assert warning == (
        "WARNING: the 2 ps and 2 workers are idle: the chief trains by itself, and has not "
        "connected to any of them. To train on the cluster, let the script use "
        "tfdist.ParameterServerStrategy(), not tf.distribute.MirroredStrategy() or no "
        "strategy at all; to train in one process, start it with --num_ps=0 "
        "--num_workers=1"
    )
    assert use.see(False) == ""
    assert use.conclusion(0) == warning.removeprefix("WARNING: ")
    notes = {str(each.task): use.note(each.task, 0) for each in PS}
    assert notes.pop("chief:0") == "alone"
    assert {*notes.values()} == {"idle"}


def test_use_of_the_cluster_ends_the_search():
    use = ClusterUse(PS)
    assert use.see(True) == ""
    assert not use.is_open
    use.hear(CHIEF, STEP)
    assert use.see(False) == ""
    assert use.conclusion(0) == use.note(Task("ps", 0), 0) == ""


def test_warning_that_came_too_early_is_taken_back():
    use = ClusterUse(PS)
    use.hear(CHIEF, STEP)
    assert use.see(False)
    assert use.see(True) == "the program uses the cluster after all"
    assert use.conclusion(0) == ""


def test_two_tasks_that_train_the_same_are_warned():
    use = ClusterUse(WORKERS)
    use.hear(W0, STEP)
    assert use.see(False) == ""
    use.hear(W1, STEP)
    assert use.see(False).startswith(
        "WARNING: the 2 workers have not connected to each other: each trains "
        "a model of its own. To train on the cluster, let the script use "
        "tfdist.MultiWorkerMirroredStrategy(), not"
    )
    assert "have not connected to each other: each trains" in use.conclusion(0)
    assert use.note(W1, 0) == "alone"


@pytest.mark.parametrize(
    "plans",
    [
        plans_of(0, 1),
        plans_of(0, 1, evaluator=True),
        [each for each in PS if each.is_server],
    ],
)
def test_one_process_alone_is_right(plans):
    use = ClusterUse(plans)
    assert not use.is_open
    for each in plans:
        use.hear(each.task, STEP)
    assert use.see(False) == ""
    assert use.conclusion(0) == ""


def test_an_evaluator_and_one_of_two_workers_may_train_by_themselves():
    evaluator = Task("evaluator", 0)
    use = ClusterUse(plans_of(0, 2, evaluator=True))
    use.hear(evaluator, STEP)
    use.hear(W0, STEP)
    assert use.see(False) == use.conclusion(0) == ""


def test_failed_program_is_left_in_peace_unless_it_was_warned():
    use = ClusterUse(PS)
    use.hear(CHIEF, STEP)
    assert use.conclusion(1) == use.note(CHIEF, 1) == ""
    use.see(False)
    assert use.conclusion(1) != ""


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        (plans_of(0, 3, chief=True, kind="coordinator"), "the 3 workers are idle"),
        (plans_of(0, 3, chief=True, kind="coordinator"), "use tfdist.RingStrategy()"),
        (plans_of(1, 1), "the 1 ps and 1 worker are idle"),
        (plans_of(0, 9), "the 9 workers have not connected to each other"),
        (plans_of(1, 1, kind="every_task"), "1 ps and 1 worker have not connected"),
        (plans_of(1, 1, kind="every_task"), "start a tf.distribute.Server in each"),
    ],
)
def test_advice_fits_the_job(plans, words):
    use = ClusterUse(plans)
    for each in plans:
        use.hear(each.task, STEP)
    assert words in use.see(False)


def test_warning_comes_while_the_program_trains(launcher):
    script = launcher.script(
        """
        import os, time
        print("1/9 --- 1s 9ms/step", end="", flush=True)
        end = time.monotonic() + 500
        while not os.path.exists("warned") and time.monotonic() < end:
            time.sleep(0.05)
        """
    )
    process = launcher.start(script)
    warning = "WARNING: the 2 ps and 2 workers are idle: the chief trains"
    said = iter(process.stderr.readline, "")
    assert any(warning in line for line in said), "it ended without a warning"
    (launcher.directory / "warned").touch()
    _, table = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert table.count("ended by the launcher, idle") == 4
    assert "the 2 ps and 2 workers are idle" in table


def test_connection_of_a_moment_is_not_missed(launcher):
    script = launcher.script(
        """
        import json, os, socket
        host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"][0].split(":")
        socket.create_connection((host, int(port))).close()
        print("Epoch 1/2")
        """
    )
    status, output, errors = launcher.run(script)
    assert (status, "Epoch 1/2" in output) == (0, True)
    assert "idle" not in errors


def test_short_program_is_told_in_the_table(launcher):
    _, _, errors = launcher.run(launcher.script("print('Epoch 1/2')"))
    # Not while it runs, but on a machine on which it takes seconds to end.
    errors = errors.replace("WARNING: the 2 ps and 2 workers are idle", "")
    assert errors.count("idle") == 5


def launched(directory, *args):
    """Runs a job to its success: what its console shows, with the logs beside it."""
    done = jobs.launch(f"--log_dir={directory / 'logs'}", *args)
    return done.stdout, done.stderr


FIT = str(PROGRAMS / "fit.py")


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("sizes", "strategy", "warned", "note"),
    [
        ((1, 1), "mirrored", "the 1 ps and 1 worker are idle: the chief", "idle"),
        ((0, 2), "none", "the 2 workers have not connected to each other", "alone"),
        ((1, 1), "parameter_server", "", ""),
    ],
)
def test_only_a_strategy_that_does_not_fit_the_job_is_warned_of(
    sizes, strategy, warned, note, tmp_path
):
    num_ps, num_workers = sizes
    flags = [f"--num_ps={num_ps}", f"--num_workers={num_workers}"]
    output, errors = launched(tmp_path, *flags, FIT, strategy)
    assert "Epoch 2/2" in output
    if not warned:
        assert not re.search("idle|alone|by itself|WARNING: the [0-9]", errors)
        return
    # While it trains, and below the closing table.
    before, table = re.split(r"^\[launch\] +task .*\n", errors, flags=re.M)
    assert f"WARNING: {warned}" in before
    assert warned in table
    assert len(re.findall(rf"(?:launcher|finished), {note}\b", table)) == 2


@pytest.mark.cluster
def test_workers_of_one_model_are_heard_once_and_not_warned(tmp_path):
    args = ["--num_ps=0", "--num_workers=2", FIT, "multi_worker"]
    output, errors = launched(tmp_path, *args)
    assert not re.search("idle|alone|connected to each", errors)
    logs = {path.stem: path.read_text() for path in (tmp_path / "logs").iterdir()}
    for words in ('Model: "sequential"', "Total params", "Epoch 2/2", "/step"):
        lines = [line for line in output.splitlines() if words in line]
        assert lines
        assert all(line.startswith("[worker:0] ") for line in lines)
        assert words in logs["worker-1"]
    assert "not packing values" not in output
