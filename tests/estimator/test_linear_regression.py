"""The TensorFlow 1 style example, run as real processes."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.addresses import free_addresses
from ..support.deadline import PROGRAM_DEADLINE

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples" / "linear_regression.py"
DEADLINE = PROGRAM_DEADLINE  # These all import TensorFlow.


class ByHand:
    """A cluster whose tasks are started one by one, each by its own command."""

    def __init__(self, directory: Path, num_ps: int, num_workers: int, *options: str):
        self.directory, self.options = directory, options
        self.addresses = free_addresses(num_ps + num_workers)
        self.tasks = [f"ps:{i}" for i in range(num_ps)]
        self.tasks += [f"worker:{i}" for i in range(num_workers)]
        ps, workers = self.addresses[:num_ps], self.addresses[num_ps:]
        self.hosts = [
            f"--ps_hosts={','.join(ps)}",
            f"--worker_hosts={','.join(workers)}",
        ]
        self.processes: dict[str, subprocess.Popen] = {}
        self.starts: dict[str, int] = {}

    def start(self, *tasks: str) -> None:
        for task in tasks:
            job, index = task.split(":")
            self.starts[task] = self.starts.get(task, 0) + 1
            with self.log(task).open("w") as log:
                self.processes[task] = subprocess.Popen(
                    [
                        *(sys.executable, str(PROGRAM), *self.hosts, *self.options),
                        *(f"--job_name={job}", f"--task_index={index}"),
                    ],
                    env=environ(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def log(self, task: str) -> Path:
        return self.directory / f"{task}.{self.starts[task]}.log"

    def kill(self, task: str) -> None:
        self.processes[task].kill()
        self.processes[task].wait(DEADLINE)

    def wait(self) -> dict[str, int]:
        deadline = time.monotonic() + DEADLINE
        return {
            task: process.wait(deadline - time.monotonic())
            for task, process in self.processes.items()
        }

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(DEADLINE)

    def steps(self, task: str) -> list[int]:
        """The steps that a task has logged since its last start."""
        return [int(n) for n in re.findall(r"step (\d+)", self.log(task).read_text())]

    def step(self, task: str) -> int:
        """The last of them, or -1."""
        return (self.steps(task) or [-1])[-1]

    def checkpoint(self) -> int:
        """The step of the newest checkpoint."""
        indices = (self.directory / "ckpt").glob("model.ckpt-*.index")
        return max(int(re.search(r"-(\d+)", each.name)[1]) for each in indices)

    def wait_for_step(self, task: str, step: int) -> int:
        """Wait until a task has passed a step, and return its current step."""
        deadline = time.monotonic() + DEADLINE
        while (now := self.step(task)) <= step:
            assert time.monotonic() < deadline, self.log(task).read_text()
            assert self.processes[task].poll() is None, self.log(task).read_text()
            time.sleep(0.2)
        return now


def environ(**variables: str) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    env.pop("TF_CONFIG", None)
    return {**env, **variables}


def learned(output: str) -> list[tuple[int, float, float, int]]:
    """Step, weight, bias and own steps of each task that has finished."""
    pattern = r"step (\d+): weight ([\d.]+), bias ([\d.]+), (\d+) steps here"
    return [
        (int(step), float(weight), float(bias), int(own))
        for step, weight, bias, own in re.findall(pattern, output)
    ]


@pytest.mark.cluster
def test_three_workers_and_two_ps_learn_the_line_and_end(tmp_path):
    cluster = ByHand(tmp_path, 2, 3, "--steps=400", f"--checkpoint_dir={tmp_path}/ckpt")
    try:
        cluster.start(*cluster.tasks)
        statuses = cluster.wait()
    finally:
        cluster.close()
    logs = {task: cluster.log(task).read_text() for task in cluster.tasks}
    assert set(statuses.values()) == {0}, logs
    for i in range(3):
        ((step, weight, bias, own),) = learned(logs[f"worker:{i}"])
        assert step >= 400
        assert own > 0
        assert weight == pytest.approx(0.1, abs=1e-3)
        assert bias == pytest.approx(0.3, abs=1e-3)
    assert any((tmp_path / "ckpt").glob("model.ckpt-*.index"))


@pytest.mark.cluster
def test_workers_in_step_with_a_backup(tmp_path):
    """The launcher starts a chief and two workers; each step takes two of them."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "launch.local", "--num_ps=2", "--num_workers=2"),
            *("--program=every_task", f"--log_dir={tmp_path}/logs", str(PROGRAM)),
            *("--steps=200", "--sync", "--replicas_to_aggregate=2"),
        ],
        env=environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("finished") == 5  # None was ended by the launcher.
    results = learned(done.stdout)
    assert len(results) >= 2  # A backup that never got a step may have none.
    assert {step for step, *_ in results} == {200}
    assert all(abs(weight - 0.1) < 1e-3 for _, weight, *_ in results)
    # Two gradients a step, and those that came late.
    assert sum(own for *_, own in results) >= 2 * 200


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[ByHand]:
    """A cluster that trains until the tests are over."""
    directory = tmp_path_factory.mktemp("running")
    cluster = ByHand(
        *(directory, 2, 2, "--steps=1000000", "--step_seconds=0.02"),
        *("--save_steps=20", f"--checkpoint_dir={directory}/ckpt"),
    )
    try:
        cluster.start(*cluster.tasks)
        cluster.wait_for_step("worker:0", 60)
        yield cluster
    finally:
        cluster.close()


@pytest.mark.cluster
def test_a_worker_that_was_killed_rejoins(running):
    running.wait_for_step("worker:1", 0)
    running.kill("worker:1")
    before = running.step("worker:0")
    meanwhile = running.wait_for_step("worker:0", before)  # The others go on.
    running.start("worker:1")
    first = running.wait_for_step("worker:1", -1)
    assert before < meanwhile <= first  # It begins where the others are
    assert running.wait_for_step("worker:1", first) > first  # and goes on.


@pytest.mark.cluster
@pytest.mark.parametrize("task", ["ps:0", "worker:0"])
def test_a_ps_or_the_chief_is_recovered_from_the_checkpoint(running, task):
    running.wait_for_step("worker:1", 0)
    before, lines = running.step("worker:0"), len(running.steps("worker:0"))
    saved = running.checkpoint()
    running.kill(task)
    running.start(task)
    if task == "worker:0":
        lines = 0  # in a log of its own
    running.wait_for_step("worker:0", before)
    steps = running.steps("worker:0")[lines:]
    # It went on from a checkpoint, not from 0: the counter is on ps:0 itself.
    assert 0 < saved <= min(steps)
    assert steps[-1] > before
    own = running.step("worker:1")
    assert running.wait_for_step("worker:1", own) > own


HOSTS = ["--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2,127.0.0.1:3"]
CHIEF = [*HOSTS, "--job_name=worker", "--task_index=0"]


def tf_config(job: str, **cluster: list[str]) -> dict[str, str]:
    task = {"type": job, "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


@pytest.mark.cluster
def test_mistakes_are_one_message_and_status_2(run_program, tmp_path):
    (tmp_path / "file").touch()
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    cases = [
        ([], {}, "TF_CONFIG is not set"),
        (HOSTS, {}, "--job_name is missing: give all of --job_name, --task_index"),
        ([*HOSTS, "--job_name=ps"], {}, "--task_index is missing"),
        (["--job_name=ps", "--task_index=0", HOSTS[0]], {}, "--worker_hosts is miss"),
        ([*CHIEF[:-1], "--task_index=2"], {}, "--task_index=2 is not that of a worker"),
        ([*CHIEF[:-1], "--task_index=-1"], {}, "--worker_hosts has 2, counted from 0"),
        (["--ps_hosts=a", *CHIEF[1:]], {}, "'a' has no port"),
        (["--ps_hosts=127.0.0.1:2", *CHIEF[1:]], {}, "two tasks have the address"),
        (CHIEF, tf_config("chief"), "both --job_name and TF_CONFIG say which task"),
        ([], {"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
        ([], tf_config("worker", worker=["a:1"]), "has no ps, for the variables"),
        (
            [],
            tf_config("evaluator", chief=["a:1"], ps=["b:1"], worker=["c:1"]),
            "this program has no evaluator",
        ),
        ([], tf_config("master", master=["a:1"], ps=["b:1"]), "job 'master'"),
        ([*CHIEF, "--replicas_to_aggregate=1"], {}, "is for --sync: set that too"),
        ([*CHIEF, "--sync", "--replicas_to_aggregate=0"], {}, "from 1 to the number"),
        ([*CHIEF, "--sync", "--replicas_to_aggregate=3"], {}, "number of workers, 2"),
        (
            [*CHIEF, f"--checkpoint_dir={tmp_path}/file/deep"],
            {},
            "cannot be written: Not a directory",
        ),
        (
            [
                f"--ps_hosts=127.0.0.1:{port}",
                HOSTS[1],
                "--job_name=ps",
                "--task_index=0",
            ],
            {},
            f"ps:0 cannot serve on 127.0.0.1:{port}",
        ),
    ]
    told = json.dumps([{"args": args, "environ": env} for args, env, _ in cases])
    with taken:
        done = run_program("linear_regression_mistakes.py", PROGRAM, input=told)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (args, _, words), (status, said) in zip(cases, results, strict=True):
        assert (status, said[:19]) == (2, "linear_regression: "), (args, said)
        assert words in said, (args, said)
