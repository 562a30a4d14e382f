"""Steps that wait for their turn: what they compute, send, and count."""

import gc
import itertools
import json
import math
import threading

import keras
import pytest
import tensorflow as tf
from models import built_in_scope, positions
from models import cnn_of_20 as cnn
from models import mlp_of_20 as mlp

import tfdist
from tfdist.consistency.policy import Phase
from tfdist.consistency.timeline import TimelineFile
from tfdist.graph.tasks import device_of
from tfdist.parameter_server.gate import bounded_gate
from tfdist.parameter_server.gate.gate import Turn
from tfdist.parameter_server.gate.meter import Meter
from tfdist.parameter_server.step_graph import step_graph

from ..support.raising import raises

pytestmark = [
    pytest.mark.parameter_server,
    pytest.mark.steps_write,
    # Under a key that one event has at a time.
    pytest.mark.sets_own_value("turns"),
]

layers = keras.layers

BATCH, BATCHES = 8, 60
LOGS = {"staleness", "max_staleness", "waiting_share"}


@pytest.fixture
def policy(strategy, monkeypatch):
    """Sets the policy of a test."""
    monkeypatch.setattr(strategy, "_consistency", tfdist.Asynchronous())
    monkeypatch.setattr(strategy, "_measures", False)
    monkeypatch.setattr(strategy.gates, "_gates", {})
    vars(strategy.gates).pop("_meter", None)

    def set_to(policy):
        strategy.consistency = policy

    yield set_to
    vars(strategy.gates).pop("_meter", None)
    gc.collect()  # Now, while the ps answer.


@pytest.fixture
def traced(monkeypatch):
    """The graphs of steps that are traced in a test, and their turns."""
    found = []
    order = step_graph.order_reads_and_writes

    def connected(graph, homes, turn, device):
        order(graph, homes, turn, device)
        found.append((graph, homes, turn))

    monkeypatch.setattr(step_graph, "order_reads_and_writes", connected)
    return found


class Remembering(layers.Layer):
    """Computes with what it has just written."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign_add(1.0)
        return inputs + 0.0 * self.calls


def remembering():
    return keras.Sequential(
        [keras.Input((20,)), layers.Dense(8), Remembering(), layers.Dense(10)]
    )


def data(batches=BATCHES):
    return positions(BATCH * batches)


def compiled(strategy, make=mlp, optimizer="sgd", **options):
    return built_in_scope(strategy, make, optimizer, **options)


def train(model, batches=BATCHES, **options):
    options = {"verbose": 0, "batch_size": BATCH, **options}
    return model.fit(*data(batches), **options).history


@pytest.mark.in_gate("mlp_of_20-1")
@pytest.mark.parametrize(("make", "bound"), [(mlp, 1), (cnn, 3), (remembering, 0)])
def test_no_step_is_staler_than_the_bound(strategy, policy, make, bound):
    before = strategy.worker_report()
    policy(tfdist.BoundedStaleness(bound))
    model = compiled(strategy, make, "adam")
    history = train(model, epochs=3)
    report = strategy.staleness_report()
    assert report.maximum <= bound
    assert report.steps == 3 * BATCHES == int(model.optimizer.iterations)
    assert report.counts.sum(axis=1).tolist() == list(
        strategy.worker_report().since(before).steps
    )
    assert history.keys() == {"loss", "accuracy"} | LOGS
    assert max(history["max_staleness"]) == report.maximum
    assert history["loss"][-1] < history["loss"][0]
    assert 0 <= report.waiting_share < 1


@pytest.mark.parametrize("steps_per_execution", [7, 50])
def test_each_step_of_a_message_takes_its_turn(strategy, policy, steps_per_execution):
    policy(tfdist.BoundedStaleness(1))
    model = compiled(strategy, steps_per_execution=steps_per_execution)
    train(model, batches=150)
    report = strategy.staleness_report()
    assert (report.steps, int(model.optimizer.iterations)) == (150, 150)
    assert report.maximum <= 1


def test_workers_that_read_their_own_data_take_turns_too(strategy, policy):
    policy(tfdist.BoundedStaleness(2))
    model = compiled(strategy)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH).repeat()
    model.fit(dataset, steps_per_epoch=80, verbose=0)
    assert strategy.staleness_report().steps == 80
    assert strategy.staleness_report().maximum <= 2


@pytest.mark.in_gate("2-cnn_of_20")
@pytest.mark.parametrize("make", [mlp, cnn, remembering])
@pytest.mark.parametrize("bound", [2, math.inf])
def test_reads_wait_for_the_start_and_writes_for_their_turn(
    strategy, policy, traced, make, bound
):
    policy(tfdist.BoundedStaleness(bound))
    model = compiled(strategy, make, "adamw")
    model.train_on_batch(*(each[:BATCH] for each in data()))
    [(graph, homes, turn)] = traced
    reads, writes = touching(graph, homes, turn)
    assert reads
    assert len(writes) > 4
    everywhere = bound == math.inf
    here = homes_of(turn, reads | writes, homes) if everywhere else reads | writes
    for op in reads & here:
        assert turn.may_start in ancestors(op)
    for op in writes & here:
        assert op in ancestors(turn.has_written)
        if not everywhere:
            assert turn.may_write in ancestors(op)
    if not everywhere:
        # It asks once there is something to write.
        assert [op for op in ancestors(turn.has_computed) if op.type == "MatMul"]


def touching(graph, homes, turn: Turn):
    """The operations that read and write variables on the ps."""
    ops = {
        op
        for op in graph.get_operations()
        for each in op.inputs
        if "/job:ps" in homes.get(each.op.name, "") and not turn.has(op)
    }
    reads = {op for op in ops if op.type in ("ReadVariableOp", "ResourceGather")}
    return reads, ops - reads


def homes_of(turn, ops, homes):
    """Those of the operations that are on the ps of the gate."""
    device = turn.may_start.device
    return {op for op in ops if any(homes.get(i.op.name) == device for i in op.inputs)}


def ancestors(op):
    found, pending = set(), [op]
    while pending:
        each = pending.pop()
        if each not in found:
            found.add(each)
            pending += [i.op for i in each.inputs] + list(each.control_inputs)
    return found


def messages(strategy, step_graphs):
    model = compiled(strategy)
    model.train_on_batch(*(each[:BATCH] for each in data()))
    return len(step_graphs.pop().messages)


def test_counting_costs_no_message_and_a_bound_three_per_further_ps(
    strategy, policy, step_graphs
):
    plain = messages(strategy, step_graphs)
    policy(tfdist.BoundedStaleness(math.inf))
    assert messages(strategy, step_graphs) == plain
    policy(tfdist.BoundedStaleness(4))
    assert messages(strategy, step_graphs) <= plain + 3
    assert step_graphs == []


def test_without_a_policy_nothing_is_measured(strategy, policy):
    model = compiled(strategy)
    assert train(model).keys() == {"loss", "accuracy"}
    with raises(RuntimeError, "tfdist.Asynchronous()"):
        strategy.staleness_report()


@pytest.mark.parametrize(
    "unbounded", [tfdist.Asynchronous(), tfdist.BoundedStaleness(math.inf)]
)
def test_asynchronous_steps_are_counted_and_never_wait(strategy, policy, unbounded):
    policy(unbounded)
    model = compiled(strategy)
    history = train(model)
    assert history.keys() == {"loss", "accuracy"} | LOGS
    assert history["waiting_share"] == [0.0]
    report = strategy.staleness_report()
    assert report.steps == BATCHES
    assert not report.seconds[:, 0].any()
    assert report.seconds[:, 1].all()


def test_steps_between_exchanges_are_counted_together(strategy, policy, monkeypatch):
    monkeypatch.setattr(strategy, "exchange", tfdist.ExchangeEvery(5))
    policy(tfdist.Asynchronous())
    model = compiled(strategy)
    train(model)
    assert strategy.staleness_report().steps == BATCHES
    with raises(ValueError, "ExchangeEvery(steps=5)"):
        policy(tfdist.BoundedStaleness(5))


def test_a_stopped_worker_holds_up_the_others_at_the_bound(run_program, tmp_path):
    result = run_program("stopped_worker.py", "at_the_bound", "bounded", tmp_path)
    assert "the other one waited" in result.stdout, result.stderr


def test_an_error_leaves_nobody_waiting(strategy, policy):
    policy(tfdist.BoundedStaleness(0))
    model = compiled(strategy)
    x, y = data()

    class Checked(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def call(self, inputs):
            tf.debugging.assert_less(tf.reduce_max(inputs), 1000.0, "too large")
            return self.inner(inputs)

    model = compiled(strategy, Checked)
    x[BATCH * 30] = 2000.0
    with raises(tf.errors.InvalidArgumentError, "too large"):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    train(model)
    assert strategy.staleness_report().maximum == 0


def test_another_policy_from_some_epoch_on(strategy, policy):
    policy(tfdist.Asynchronous())
    schedule = tfdist.ConsistencySchedule(
        {1: tfdist.BoundedStaleness(0), 3: tfdist.BoundedStaleness(2)}
    )
    model = compiled(strategy)
    history = train(model, epochs=4, callbacks=[schedule])
    assert history["max_staleness"][1:3] == [0, 0]
    assert history["max_staleness"][3] <= 2
    assert strategy.consistency == tfdist.BoundedStaleness(2)
    assert strategy.staleness_report().steps == 4 * BATCHES


def test_no_other_policy_within_an_epoch(strategy, policy):
    policy(tfdist.Asynchronous())
    model = compiled(strategy)

    def set_bound(*_, **__):
        strategy.consistency = tfdist.BoundedStaleness(1)

    within = keras.callbacks.LambdaCallback(on_train_batch_end=set_bound)
    with raises(RuntimeError, "within an epoch"):
        train(model, callbacks=[within])
    between = keras.callbacks.LambdaCallback(on_epoch_end=set_bound)
    train(model, callbacks=[between])
    # Of an unknown number of batches.
    endless = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)
    dataset = endless.filter(lambda x, y: True)
    model.fit(dataset, epochs=2, verbose=0, callbacks=[between])


@pytest.mark.parametrize("epochs", [{}, [1], {-1: tfdist.Asynchronous()}, {0: 3}])
def test_a_schedule_says_what_it_takes(epochs):
    with pytest.raises((TypeError, ValueError), match=r"received|tfdist\."):
        tfdist.ConsistencySchedule(epochs)


@pytest.mark.parametrize("of", [tfdist.Asynchronous(), tfdist.BoundedStaleness(0)])
def test_a_timeline_has_the_parts_of_each_step(
    strategy, policy, monkeypatch, tmp_path, of
):
    path = tmp_path / "timeline.json"
    monkeypatch.setattr(strategy.gates, "_timeline", TimelineFile(path))
    policy(of)
    model = compiled(strategy)
    train(model, epochs=2)
    events = json.loads(path.read_text())
    steps = [each for each in events if each["name"] == "step"]
    assert len(steps) == 2 * BATCHES
    assert {each["pid"] for each in steps} == {0, 1}
    parts = {
        name: [each for each in events if each["name"] == name]
        for name in ("wait to start", "pull", "compute", "push", "write")
    }
    for name in ("pull", "compute", "push"):
        assert len(parts[name]) == 2 * BATCHES, name
    for worker in (0, 1):
        own = [each for each in steps if each["pid"] == worker]
        own.sort(key=lambda each: each["ts"])
        for one, following in itertools.pairwise(own):
            assert one["ts"] + one["dur"] <= following["ts"] + 1
    if of != tfdist.Asynchronous():
        writes = sorted(parts["write"], key=lambda each: each["ts"])
        for one, following in itertools.pairwise(writes):
            assert one["ts"] + one["dur"] <= following["ts"] + 1
        assert parts["wait to start"]


class OneAtATime:
    """A policy of a user: steps run one after the other."""

    def may_start(self, step, state):
        return not any(state.in_phase(*Phase)) or all(
            each.phase == Phase.STARTING for each in state.steps
        )

    def counts(self, gradient, state):
        return True


class OneAtATimeOfOurs(tfdist.BoundedStaleness):
    may_start = OneAtATime.may_start


class OneAtATimeOfFree(tfdist.Asynchronous):
    may_start = OneAtATime.may_start


@pytest.mark.in_gate("of1")
@pytest.mark.parametrize(
    "of",
    [
        OneAtATime(),
        OneAtATimeOfOurs(99),
        OneAtATimeOfOurs(math.inf),
        OneAtATimeOfFree(),
    ],
)
def test_a_policy_of_a_user_decides_on_the_chief(strategy, policy, of):
    policy(of)
    model = compiled(strategy)
    history = train(model, epochs=2)
    report = strategy.staleness_report()
    assert (report.steps, report.maximum) == (2 * BATCHES, 0)
    assert report.steps == int(model.optimizer.iterations)
    assert report.counts.sum(axis=1).all()
    assert history["waiting_share"][0] > 0


class Wrong(OneAtATime):
    def may_start(self, step, state):
        if state.written == 7:
            raise KeyError("of the user")
        return super().may_start(step, state)


class Never(OneAtATime):
    def may_start(self, step, state):
        return state.written < 7


class Dropping(OneAtATime):
    def counts(self, gradient, state):
        return state.written < 7


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (Wrong, KeyError, "of the user"),
        (Never, RuntimeError, "Never.* lets no step go on: the steps of all 2 workers"),
        (Dropping, tf.errors.InvalidArgumentError, "Only tfdist.Synchronous drops"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(strategy, policy, wrong, error, said):
    policy(wrong())
    model = compiled(strategy)
    with pytest.raises(error, match=said):
        train(model)
    policy(OneAtATime())
    train(model)


@pytest.fixture
def gate(strategy):
    """A gate of two workers, who take turns."""
    meter = Meter(device_of("ps:0"), num_workers=2)
    return bounded_gate.BoundedGate(meter, num_workers=2, bound=0)


def starts_of(gate):
    """A function that starts a step of a worker, without waiting for it to end."""

    def start(worker):
        with tf.device(gate.device):
            ticket, event = gate._event(worker, Phase.STARTING, None, [])
            line = tf.gather([each.queue_ref for each in gate.lines], worker)
            _, started = gate._wait(line, ticket, event)
        with tf.control_dependencies([started]):
            return tf.identity(ticket)

    start = tf.function(start, autograph=False)
    return start.get_concrete_function(tf.TensorSpec([], tf.int64))


@pytest.mark.parametrize(
    ("lost", "said"),
    [(1, []), (0, ["this step was taken from its worker"])],
    ids=["the step that others wait for", "the step that waits"],
)
def test_a_lost_step_is_taken_out(gate, lost, said):
    start = starts_of(gate)
    start(tf.constant(1, tf.int64))
    errors = []

    def wait():
        try:
            start(tf.constant(0, tf.int64))
        except tf.errors.InvalidArgumentError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive()
    gate.leave(lost)
    waiting.join(30.0)
    assert not waiting.is_alive()
    assert len(errors) == len(said)
    assert all(each in error for each, error in zip(said, errors, strict=True))


def test_a_key_that_a_lost_step_has_kept_is_replaced(gate, monkeypatch):
    monkeypatch.setattr(bounded_gate, "_LOST_SECONDS", 0.5)
    start = starts_of(gate)
    gate._key.dequeue()
    gate.leave(1)
    assert int(start(tf.constant(0, tf.int64))) == 0
    assert gate._key.size() == 1
