"""The ps end after the tasks that train, and do not wait for dead ones."""

import pytest
import tensorflow as tf

from tfdist.low_level import ending
from tfdist.low_level.ending import trainers, wait_for_all


def server_def(job: str = "ps", **jobs: int) -> tf.train.ServerDef:
    spec = {job: [f"{job}{i}:1" for i in range(count)] for job, count in jobs.items()}
    cluster = tf.train.ClusterSpec(spec).as_cluster_def()
    return tf.train.ServerDef(cluster=cluster, job_name=job, task_index=0)


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        ({"ps": 2, "worker": 2}, ["worker:0", "worker:1"]),
        ({"worker": 1, "chief": 1, "ps": 1}, ["chief:0", "worker:0"]),
        ({"ps": 1, "worker": 1, "master": 1}, ["master:0", "worker:0"]),
        ({"evaluator": 1, "ps": 1, "chief": 1}, ["chief:0"]),
    ],
)
def test_who_trains_and_who_is_the_chief(jobs, names):
    assert trainers(server_def(**jobs)) == names


class Queue:
    """Names that arrive at given times, in seconds of a fake clock."""

    def __init__(self, *names: tuple[float, str], monkeypatch: pytest.MonkeyPatch):
        self.now, self.names = 0.0, list(names)
        monkeypatch.setattr(ending.time, "monotonic", lambda: self.now)

    def take(self, timeout: float | None) -> str | None:
        deadline = float("inf") if timeout is None else self.now + timeout
        assert self.names or timeout is not None, "waits forever"
        if not self.names or self.names[0][0] > deadline:
            self.now = deadline
            return None
        self.now, name = self.names.pop(0)
        return name


ALL = ["worker:0", "worker:1", "worker:2"]


@pytest.mark.parametrize(
    ("names", "missing", "ended"),
    [
        # The chief last: nobody is missed, however long the others were done.
        ([(5, "worker:1"), (700, "worker:2"), (900, "worker:0")], [], 900),
        # The others have as long as they are given from then on.
        ([(5, "worker:0"), (6, "worker:1"), (64, "worker:2")], [], 64),
        ([(5, "worker:0"), (6, "worker:1"), (66, "worker:2")], ["worker:2"], 65),
        # A task that was started again says so again, and so does the chief.
        ([(1, "worker:1"), (2, "worker:1"), (9, "worker:0")], ["worker:2"], 69),
        ([(5, "worker:0"), (50, "worker:0")], ["worker:1", "worker:2"], 65),
        ([(1, "other:0"), (5, "worker:0")], ["worker:1", "worker:2"], 65),
    ],
)
def test_a_ps_waits_for_all_and_only_so_long_after_the_chief(
    names, missing, ended, monkeypatch
):
    queue = Queue(*names, monkeypatch=monkeypatch)
    assert wait_for_all(ALL, queue.take, patience=60) == missing
    assert queue.now == ended


@pytest.mark.cluster
def test_ps_and_workers_end_although_others_are_dead(run_program):
    done = run_program("ps_ending.py")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "this server is worker:0, which calls report_done" in lines[0]
    assert lines.count("serves") == 2
    assert lines.index("ps:0: worker:1 is done") < lines.index("ps:0: worker:0 is done")
    assert sum("cannot tell ps:1 that it is done: no server" in x for x in lines) == 2
    assert any(x.startswith("ps:0 exits without worker:2, which did") for x in lines)
    assert lines[-1] == "missing ['worker:2']"
