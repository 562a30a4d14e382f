"""Which devices of the workers are replicas."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist._tf import workers
from tfdist.cluster.liveness.activity import Activity
from tfdist.parameter_server.seam.replicas import KIND, Replica, replicas_of

from ..support.raising import raises


def devices(*counts, kind="GPU"):
    """Those of a cluster whose workers have so many of a kind."""
    tasks = ["ps/replica:0/task:0", "chief/replica:0/task:0"]
    tasks += [f"worker/replica:0/task:{i}" for i in range(len(counts))]
    found = [f"/job:{task}/device:CPU:0" for task in tasks]
    # Those of other tasks do not count.
    found += [f"/job:{tasks[0]}/device:{kind}:{i}" for i in range(3)]
    return found + [
        f"/job:{task}/device:{kind}:{i}"
        for task, count in zip(tasks[2:], counts, strict=True)
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1])
def test_a_worker_without_a_choice_is_one_replica(count):
    found = replicas_of(2, devices(count, count))
    assert found == tuple(
        Replica(i, f"/job:worker/replica:0/task:{i}") for i in range(2)
    )
    assert [each.name for each in found] == ["0", "1"]


def test_each_gpu_is_a_replica():
    found = replicas_of(2, devices(3, 3))
    assert [each.worker for each in found] == [0, 0, 0, 1, 1, 1]
    assert found[4].device == "/job:worker/replica:0/task:1/device:GPU:1"
    assert [each.name for each in found][2:4] == ["0 GPU:2", "1 GPU:0"]
    assert KIND == "GPU"


def test_other_devices_are_none():
    assert len(replicas_of(2, devices(3, 3, kind="XLA_GPU"))) == 2
    assert len(replicas_of(2, devices(3, 3, kind="CPU"))) == 2


def test_a_worker_that_comes_later_has_what_the_others_have():
    found = replicas_of(3, devices(2))
    assert [each.worker for each in found] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("counts", [(1, 2), (0, 4)])
def test_different_numbers_are_refused(counts):
    had = "worker:0 has {}, worker:1 has {}".format(*counts)
    with pytest.raises(ValueError, match=f"same number of GPUs; {had}.*--gpus"):
        replicas_of(2, devices(*counts))


def test_the_chief_sees_workers_and_not_their_devices():
    activity = Activity(2)
    activity.worker_of = [0, 0, 1, 1]
    for replica in range(4):
        activity.begun(replica)
    assert activity.busy.keys() == {"worker:0", "worker:1"}
    activity.ended(1, True)
    activity.ended(2, False)
    activity.ended(3, True)
    assert activity.finished == {"worker:0": 1, "worker:1": 1}
    assert activity.lost == {2}
    assert activity.busy.keys() == {"worker:0"}


def left(message):
    def execute(worker):
        raise tf.errors.InvalidArgumentError(None, None, message)

    return execute


def test_a_worker_that_has_left_is_named_so_that_its_loss_is_recognized():
    worker = SimpleNamespace(worker_index=1)
    with raises(tf.errors.UnavailableError, "task:1", "left"):
        workers._naming_the_worker(left("Primary device is not remote"), worker)
    with raises(tf.errors.InvalidArgumentError, "shapes"):
        workers._naming_the_worker(left("shapes differ"), worker)
