"""TensorFlow's resolvers as the cluster of a strategy."""

import json

import pytest
import tensorflow as tf

import tf_config
from tf_config import Cluster, Task
from tfdist.cluster.membership import config_of, worker_config_of

resolvers = tf.distribute.cluster_resolver

WORKERS = {"worker": ["a:1", "b:1"]}
PS = {"ps": ["c:1"], "worker": ["a:1", "b:1"]}
CHIEF = {"chief": ["d:1"], **PS}


def simple(jobs, *task):
    return resolvers.SimpleClusterResolver(tf.train.ClusterSpec(jobs), "", *task)


def of(resolver, is_chief=False):
    return config_of(resolver, ("chief", "ps", "worker"), is_chief)


class Late(resolvers.SimpleClusterResolver):
    """A resolver that knows its task once it has resolved the cluster, as Slurm's does."""

    def cluster_spec(self):
        self.task_type, self.task_id = "worker", 1
        return super().cluster_spec()


@pytest.mark.parametrize(
    ("resolver", "cluster", "task"),
    [
        (simple(WORKERS, "worker", 1), WORKERS, Task("worker", 1)),
        (simple(CHIEF, "chief", 0), CHIEF, Task("chief", 0)),
        (simple(CHIEF, "ps"), CHIEF, Task("ps", 0)),
        (Late(tf.train.ClusterSpec(WORKERS)), WORKERS, Task("worker", 1)),
    ],
)
def test_a_resolver_has_the_cluster_and_the_task(resolver, cluster, task):
    expected = tf_config.TFConfig(Cluster.from_dict(cluster), task)
    assert of(resolver) == of(resolver, is_chief=True) == expected
    if cluster is WORKERS:
        assert worker_config_of(resolver, "Strategy") == expected


def test_the_resolver_of_tf_config_is_read(monkeypatch):
    text = json.dumps({"cluster": CHIEF, "task": {"type": "worker", "index": 1}})
    monkeypatch.setenv("TF_CONFIG", text)
    assert of(resolvers.TFConfigClusterResolver()) == of(None)


@pytest.mark.parametrize("task", [(), ("chief", 0)])
def test_a_coordinator_need_not_be_in_the_cluster(task):
    config = of(simple(PS, *task), is_chief=True)
    (address,) = config.cluster.chief
    assert config.task == Task("chief", 0)
    assert config.cluster.as_dict() == {"chief": [address], **PS}
    assert address.startswith("localhost:")


@pytest.mark.parametrize(
    ("resolver", "words"),
    [
        (simple(WORKERS), "SimpleClusterResolver that names none"),
        (simple(WORKERS, "worker"), "SimpleClusterResolver that names worker. Pass"),
        (simple(WORKERS, "worker", 2), "worker:2 is not in the cluster"),
        (simple({"master": ["a:1"]}, "master", 0), "did you mean"),
        (resolvers.TFConfigClusterResolver(), "names none"),
        (object.__new__(resolvers.TPUClusterResolver), "one of TPUs"),
    ],
)
def test_what_is_no_cluster_is_refused(resolver, words, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(tf_config.ClusterError, match=words):
        of(resolver)
