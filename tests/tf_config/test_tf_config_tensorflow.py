"""TensorFlow's own TFConfigClusterResolver reads what TFConfig writes."""

import pytest

from tf_config import Cluster, Task, TFConfig

tf = pytest.importorskip("tensorflow")

CLUSTERS = {
    "parameter servers": Cluster.from_hosts(
        chief="a:1", ps="b:1,c:1", worker="d:1,[::1]:1", evaluator="f:1"
    ),
    "workers": Cluster.from_hosts(worker="a:1,b:1", evaluator="c:1"),
    "chief alone": Cluster.from_hosts(chief="a:1"),
}
CASES = [
    pytest.param(cluster, task, id=f"{name}-{task}")
    for name, cluster in CLUSTERS.items()
    for task in cluster.tasks()
]


@pytest.mark.parametrize(("cluster", "task"), CASES)
def test_the_resolver_sees_the_same_cluster_and_task(cluster, task, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TFConfig(cluster, task).to_json())
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert Task(resolver.task_type, resolver.task_id) == task
    assert resolver.cluster_spec().as_dict() == cluster.cluster_spec()
    if task.job != "evaluator" and len(list(cluster.tasks())) > 1:
        assert resolver.master() == cluster.address(task)


def test_the_device_of_a_task_is_tensorflows():
    spec = tf.DeviceSpec.from_string(Task("ps", 3).device)
    assert (spec.job, spec.task) == ("ps", 3)
