"""Where the variables of an Estimator's graph go, without a cluster."""

import copy
import importlib
import re
from pathlib import Path

import pytest
import tensorflow as tf

import tfdist
from tf_config import Cluster, ClusterError, Task, TFConfig
from tfdist import estimator
from tfdist.estimator.evaluator import ChiefWatch, EvaluationSchedule

from ..support.raising import raises

# A process that is the chief of a cluster, as that of the feature tests is, has no
# devices under the names that a session looks for.
pytestmark = pytest.mark.own_process

CLUSTER = Cluster.from_hosts(
    chief="a:1", ps="b:1,c:1,d:1", worker="e:1,f:1", evaluator="g:1"
)
SHAPES = {"a": [100], "b": [30, 3], "c": [7], "d": [200], "e": [5, 5], "f": []}


@pytest.fixture
def become(monkeypatch):
    def become(task: str, cluster: Cluster = CLUSTER):
        config = TFConfig(cluster, Task.parse(task))
        monkeypatch.setenv("TF_CONFIG", config.to_json())

    return become


def model():
    weights = [
        tf.compat.v1.get_variable(name, shape, use_resource=True)
        for name, shape in SHAPES.items()
    ]
    loss = tf.add_n([tf.reduce_sum(tf.convert_to_tensor(w)) for w in weights])
    return tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss)


def build(strategy):
    """Build the graph as an Estimator does, and return the device of each variable."""
    with tf.Graph().as_default(), strategy.scope():
        strategy.extended.call_for_each_replica(model)
        variables = tf.compat.v1.global_variables()
        return {v.op.name: tf.DeviceSpec.from_string(v.device) for v in variables}


def by_hand(names_and_shapes, placement, num_ps):
    return {
        name: placement.place(
            tfdist.VariableSpec(name, tuple(shape), "float32", 4), num_ps
        )
        for name, shape in names_and_shapes
    }


@pytest.mark.parametrize(
    "placement",
    [tfdist.GreedyLoadBalancing, tfdist.RoundRobin],
    ids=lambda p: p.__name__,
)
def test_variables_are_where_the_placement_says(placement, become):
    become("chief:0")
    strategy = estimator.ParameterServerStrategy(placement=placement())
    devices = build(strategy)
    expected = by_hand(SHAPES.items(), placement(), 3)
    for name, ps in expected.items():
        assert (devices[name].job, devices[name].task) == ("ps", ps)
        # Slots are not asked for: they live beside the variable they update.
        assert devices[f"{name}/Adagrad"].task == ps
    report = strategy.placement_report()
    assert report.num_ps == 3
    assert {v.spec.name: v.ps for v in report.variables} == {
        name: device.task for name, device in devices.items()
    }
    assert sum(report.bytes_per_ps) == 2 * 4 * (100 + 90 + 7 + 200 + 25 + 1)


def test_tensorflows_own_strategy_deals_variables_out_in_turn(become):
    become("chief:0")
    own = tf.compat.v1.distribute.experimental.ParameterServerStrategy()
    in_turn = estimator.ParameterServerStrategy(placement=tfdist.RoundRobin())
    assert build(own) == build(in_turn)


def test_the_table_of_the_docs(become, monkeypatch):
    root = Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(str(root / "examples"))
    mnist = importlib.import_module("mnist_estimator")
    become("chief:0", Cluster.from_hosts(chief="a:1", ps="b:1,c:1", worker="d:1"))

    def imbalance(placement, partitioner=None):
        strategy = estimator.ParameterServerStrategy(placement, partitioner)
        with tf.Graph().as_default(), strategy.scope():
            images = {"image": tf.zeros([4, 28, 28, 1], tf.uint8)}
            tf.compat.v1.train.create_global_step()
            batch = images, tf.zeros([4], tf.int64), "train", {"learning_rate": 0.1}
            strategy.extended.call_for_each_replica(mnist.model_fn, args=batch)
        report = strategy.placement_report()
        assert sum(report.bytes_per_ps) == 748_168
        return f"{report.imbalance:.3f}"

    rows = re.findall(
        r"\| ([\d.]{5}) \|$", (root / "docs/estimator.md").read_text(), re.M
    )
    assert rows == [
        imbalance(tfdist.RoundRobin()),
        imbalance(tfdist.GreedyLoadBalancing()),
        imbalance(tfdist.GreedyLoadBalancing(), tfdist.fixed_size_partitioner(2)),
    ]


def test_every_task_and_every_graph_has_the_same_places(become):
    places = []
    for task in ("chief:0", "worker:1"):
        become(task)
        strategy = estimator.ParameterServerStrategy()
        # An Estimator copies its strategy, and builds more than one graph.
        for each in (strategy, strategy, copy.deepcopy(strategy)):
            places.append({n: d.task for n, d in build(each).items()})
        assert len(strategy.placement_report().variables) == 12
    assert all(each == places[0] for each in places)
    assert set(places[0].values()) == {0, 1, 2}


def test_partitioned_variables_are_placed_shard_by_shard(become):
    become("worker:0")
    strategy = estimator.ParameterServerStrategy(
        partitioner=tfdist.MaxSizePartitioner(max_shard_bytes=200)
    )
    devices = build(strategy)
    shards = {n: d.task for n, d in devices.items() if n.startswith("d/part_")}
    assert set(shards.values()) == {0, 1, 2}
    weights = {n for n in devices if "Adagrad" not in n}
    assert {n.partition("/")[0] for n in weights} == set(SHAPES)
    # Whole, the largest and its slot alone would have 1600 bytes.
    assert max(strategy.placement_report().bytes_per_ps) < 1300
    # Each is a part of one variable of the checkpoint.
    assert len([n for n in weights if n.startswith("d/")]) == 4


def test_placement_that_returns_nonsense_is_named(become):
    class Nonsense:
        def place(self, variable, num_ps):
            return num_ps

    become("chief:0")
    strategy = estimator.ParameterServerStrategy(placement=Nonsense())
    with raises(ValueError, "Nonsense.place()", "3 for a"):
        build(strategy)
    with raises(TypeError, "method place"):
        estimator.ParameterServerStrategy(placement="greedy")


def test_evaluator_and_a_lone_process_place_nothing(become, monkeypatch):
    become("evaluator:0")
    assert estimator.ParameterServerStrategy().placement_report().num_ps == 0
    assert estimator.MultiWorkerMirroredStrategy().num_replicas_in_sync == 1
    monkeypatch.delenv("TF_CONFIG")
    strategy = estimator.ParameterServerStrategy()
    assert {device.job for device in build(strategy).values()} <= {None, "localhost"}
    assert strategy.placement_report().variables == ()


def test_cluster_without_ps(become):
    become("worker:0", Cluster.from_hosts(worker="a:1,b:1"))
    with raises(ClusterError, "--num_ps=2"):
        estimator.ParameterServerStrategy()


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.sleep)
        self.events = {}

    def sleep(self, seconds):
        self.now += seconds
        for time in [time for time in self.events if time <= self.now]:
            self.events.pop(time)()


class Chief:
    """A chief that listens or not, and its newest checkpoint."""

    listens = True
    newest = None

    def schedule(self, max_steps=None):
        watch = ChiefWatch(lambda: self.listens, startup_timeout=600, patience=60)
        return EvaluationSchedule(lambda: self.newest, max_steps, watch)

    def leaves(self):
        self.listens = False


def test_evaluator_ends_when_the_chief_has_gone_and_nothing_is_left(monkeypatch):
    clock, chief = Clock(monkeypatch), Chief()
    schedule = chief.schedule()
    assert schedule.should_continue()
    chief.leaves()
    clock.now = 59
    assert schedule.should_continue()
    clock.now, chief.newest = 61, "model.ckpt-5"
    assert schedule.should_continue()  # The last checkpoint is never left out.
    schedule.evaluated = chief.newest
    assert not schedule.should_continue()


def test_evaluator_waits_for_a_chief_that_is_started_later_or_again(monkeypatch):
    clock, chief = Clock(monkeypatch), Chief()
    schedule, chief.listens = chief.schedule(), False
    clock.now = 599
    assert schedule.should_continue()
    chief.listens = True
    assert schedule.should_continue()
    clock.now, chief.listens = 650, False
    assert schedule.should_continue()
    chief.listens = True
    assert schedule.should_continue()
    clock.now, chief.listens = 700, False
    assert schedule.should_continue()
    clock.now = 711
    assert not schedule.should_continue()


def test_a_delay_ends_with_the_training_if_a_checkpoint_waits(monkeypatch):
    clock, chief = Clock(monkeypatch), Chief()
    schedule = chief.schedule()
    clock.events[20] = chief.leaves
    chief.newest = "model.ckpt-5"
    schedule.pause(120)
    assert clock.now == 20
    # No other checkpoint comes: the evaluator ends when the chief cannot come back.
    schedule.evaluated = chief.newest
    schedule.pause(600)
    assert clock.now == 79
    assert not schedule.should_continue()


def test_a_delay_lasts_while_the_chief_trains(monkeypatch):
    clock, chief = Clock(monkeypatch), Chief()
    chief.newest = "model.ckpt-5"
    chief.schedule().pause(120)
    assert clock.now == 120
