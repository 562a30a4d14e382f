"""What a step sends: counted in its graph, and what it computes all the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_audit import task_of
from models import Seen, assert_alike, positions, trained_beside_one_process
from models import built_in_scope as compiled
from models import cnn_of_20 as cnn
from models import mlp_of_20 as mlp

import tfdist
from tfdist import _tf
from tfdist.graph.tasks import WORKER, task_at
from tfdist.parameter_server.exchange.policies import check_exchange
from tfdist.parameter_server.exchange.report import Exchanges
from tfdist.parameter_server.step_graph import unrolling
from tfdist.parameter_server.step_graph.messages import TaskMessage

from ..support.raising import raises

pytestmark = [pytest.mark.parameter_server, pytest.mark.steps_write]

layers = keras.layers

BATCH, BATCHES = 8, 40

# Between exchanges, the averages of an optimizer are those of the last worker.
averages_of_the_last = pytest.mark.sets_own_value("momentum|velocity")


@pytest.fixture
def exchange(strategy, monkeypatch):
    def set_to(steps):
        monkeypatch.setattr(strategy, "exchange", tfdist.ExchangeEvery(steps))

    return set_to


def recommender():
    inputs = keras.Input((20,))
    table = tfdist.embedding.Embedding(50, 6)(keras.ops.cast(inputs > 0, "int32"))
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(table)))


def data():
    return positions(BATCH * BATCHES)


def crossings(graph: tf.Graph) -> int:
    """How many tensors and signals cross between tasks, by the devices alone."""
    sent = set()
    for op in graph.get_operations():
        for each in op.inputs:
            if each.dtype != tf.resource and task_of(each.op) != task_of(op):
                sent.add((each.name, task_of(op)))
        for each in op.control_inputs:
            # TensorFlow orders what follows a step after it; the last has no successor.
            if task_of(each) != task_of(op):
                sent.add((each.name, task_of(op)))
    return len(sent)


@pytest.mark.in_gate("rows-sgd")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize(
    ("model", "limit"),
    [(mlp, 4), (cnn, 4), (recommender, 9)],
    ids=["mlp", "cnn", "rows"],
)
def test_messages_per_step(strategy, step_graphs, sent, model, limit, optimizer):
    compiled(strategy, model, optimizer).fit(*data(), batch_size=BATCH, verbose=0)
    (step,) = step_graphs
    assert len(step.messages) <= limit
    # The same, from the function that was sent to the workers.
    assert crossings(sent.functions[0].graph) <= limit


@pytest.mark.in_gate
def test_the_value_of_a_split_weight_goes_to_the_worker_only(
    strategy, step_graphs, sent
):
    """Not back to the first of its ps, where the handle is that its gradient watches."""
    split = tfdist.FixedShardsPartitioner(2)

    def model():
        with tfdist.partition_variables(split):
            return mlp()

    compiled(strategy, model, "sgd").fit(*data(), batch_size=BATCH, verbose=0)
    (step,) = step_graphs
    assert len(step.messages) <= 4
    assert crossings(sent.functions[0].graph) <= 4


@pytest.mark.parametrize("model", [mlp, cnn])
def test_xla_compiles_what_the_worker_computes(strategy, sent, model):
    ours, alone = trained_beside_one_process(
        strategy,
        model,
        lambda: keras.optimizers.SGD(0.1),
        *positions(10 * BATCH),
        BATCH,
        jit_compile=True,
    )
    assert_alike(ours.get_weights(), alone.get_weights(), atol=1e-5)
    graph = sent.functions[0].graph
    calls = [op for op in graph.get_operations() if _tf.is_compiled(op)]
    assert len(calls) == 10
    kernels = {"MatMul", "Conv2D", "Relu", "ReluGrad", "BiasAdd", "While"}
    assert kernels.isdisjoint(op.type for op in graph.get_operations())


def test_gradients_on_slow_links_are_sent_one_after_the_other(
    strategy, sent, monkeypatch
):
    """The second ps gets its own once the first has got its: its answer is on the way."""

    def trained(seconds_per_byte):
        monkeypatch.setattr(strategy.extended, "_seconds_per_byte", seconds_per_byte)
        model = compiled(strategy, mlp, "sgd", steps_per_execution=10)
        model.fit(*data(), batch_size=BATCH, verbose=0)
        return sent.functions[-1].graph

    # A byte takes so long that only the kernels take turns.
    together, in_turn = trained(0.0), trained(1e-6)
    assert pushes_that_wait(together) == 0
    assert pushes_that_wait(in_turn) == 10
    assert crossings(in_turn) == crossings(together) + 10


def test_large_gradients_of_one_ps_are_sent_one_after_the_other(
    strategy, sent, monkeypatch
):
    """One shard comes back while the next goes out; what is small goes with the last."""
    monkeypatch.setattr(strategy.extended, "_seconds_per_byte", 2e-6)

    def in_shards():
        with tfdist.partition_variables(tfdist.FixedShardsPartitioner(4)):
            return mlp()

    model = compiled(strategy, in_shards, "sgd", steps_per_execution=10)
    model.fit(*data(), batch_size=BATCH, verbose=0)
    # Of four large shards, two on each ps, all but the first wait.
    assert pushes_that_wait(sent.functions[-1].graph) == 30


def pushes_that_wait(graph):
    """How many messages to one ps wait for a signal from another."""
    return sum(
        task_of(op) == "worker" and task_of(waited) != "worker"
        for op in graph.get_operations()
        if "/send" in op.name
        for waited in op.control_inputs
    )


@pytest.mark.in_gate
def test_a_pair_of_tasks_has_one_message_each_way(strategy, step_graphs):
    compiled(strategy, mlp, "adam").fit(*data(), batch_size=BATCH, verbose=0)
    (step,) = step_graphs
    assert all(isinstance(each, TaskMessage) for each in step.messages)
    pairs = {(each.sender, each.receiver) for each in step.messages}
    assert pairs == {
        ("ps:0", "worker"),
        ("ps:1", "worker"),
        ("worker", "ps:0"),
        ("worker", "ps:1"),
    }


@pytest.mark.in_gate
def test_ten_steps_take_ten_times_the_messages_of_one(strategy, step_graphs, sent):
    model = compiled(strategy, mlp, "sgd", steps_per_execution=10)
    model.fit(*data(), batch_size=BATCH, verbose=0)
    (step,) = step_graphs
    (function,) = sent.functions
    assert "While" not in {op.type for op in function.graph.get_operations()}
    assert crossings(function.graph) == 10 * len(step.messages)


def test_long_calls_loop_over_chunks(strategy, sent, monkeypatch):
    monkeypatch.setattr(unrolling, "LONGEST_CHUNK", 4)
    model = compiled(strategy, mlp, "sgd", steps_per_execution=10)
    model.fit(*data(), batch_size=BATCH, epochs=2, verbose=0)
    assert model.optimizer.iterations == 2 * BATCHES
    types = [op.type for op in sent.functions[0].graph.get_operations()]
    assert types.count("While") == 1


@pytest.mark.in_gate
def test_the_rest_of_a_dataset_takes_no_trace_of_its_own(strategy, sent):
    model = compiled(strategy, mlp, "sgd", steps_per_execution=10)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH).take(17)
    model.fit(dataset.filter(lambda *_: True), verbose=0)
    assert model.optimizer.iterations == 17
    assert len(sent.functions) == 2, "of ten steps and of one"


@pytest.mark.in_gate("adam-3")
@averages_of_the_last
@pytest.mark.parametrize("steps", [1, 3, 10, 40])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_counts_are_exact_between_exchanges(strategy, exchange, steps, optimizer):
    exchange(steps)
    x = np.arange(BATCH * BATCHES, dtype="float32")[:, None]
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
        model.compile(optimizer, "mse", metrics=[Seen(len(x))], steps_per_execution=10)
    history = model.fit(x * 0, x, batch_size=BATCH, epochs=2, verbose=0).history
    assert model.optimizer.iterations == 2 * BATCHES
    np.testing.assert_array_equal(history["seen"][-1], np.ones(len(x)))


def test_a_count_of_unknown_shape_between_exchanges(strategy, exchange):
    """What is added to a plain variable does not tell the variable's shape."""
    exchange(5)

    class Counting(keras.Sequential):
        def train_step(self, data):
            ids = tf.cast(tf.reshape(data[1], [-1]), tf.int32)
            self.seen.assign_add(tf.math.bincount(ids, minlength=8, maxlength=8))
            return super().train_step(data)

    with strategy.scope():
        model = Counting([keras.Input((1,)), layers.Dense(1)])
        model.seen = tf.Variable(tf.zeros([8], tf.int32), trainable=False)
        model.compile("sgd", "mse", steps_per_execution=10)
    x = np.arange(BATCH * BATCHES, dtype="float32")[:, None] % 8
    model.fit(x * 0, x, batch_size=BATCH, verbose=0)
    np.testing.assert_array_equal(model.seen.numpy(), np.full(8, BATCHES))


def test_a_slice_of_a_plain_variable_is_assigned(strategy):
    class Noting(keras.Sequential):
        def train_step(self, data):
            self.noted[1].assign(self.noted[1] + self.noted[0])
            return super().train_step(data)

    with strategy.scope():
        model = Noting([keras.Input((1,)), layers.Dense(1)])
        model.noted = tf.Variable([1.0, 0.0, 7.0], trainable=False)
        model.compile("sgd", "mse")
    x = np.zeros((BATCH * BATCHES, 1), "float32")
    model.fit(x, x, batch_size=BATCH, verbose=0)
    noted = model.noted.numpy()
    assert noted[0] == 1
    # The last writer wins, as it does in plain assignments of several workers.
    assert 1 <= noted[1] <= BATCHES
    assert noted[2] == 7


@pytest.mark.parametrize("steps", [3, 10])
def test_sums_of_changes_are_exact_between_exchanges(strategy, exchange, steps):
    exchange(steps)
    x = np.ones((BATCH * BATCHES, 1), "float32")
    rate = 2.0**-10
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
        model.compile(
            keras.optimizers.SGD(rate), _output, steps_per_execution=BATCHES // 4
        )
    before = model.get_weights()
    model.fit(x, x, batch_size=BATCH, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_allclose(old - new, rate * BATCHES, rtol=1e-5)


def _output(_, predicted):
    """A loss whose gradient does not depend on the weights."""
    return predicted[:, 0]


@pytest.mark.in_gate("1")
@averages_of_the_last
@pytest.mark.parametrize("largest", [unrolling.LARGEST_CHUNK, 500, 1])
def test_one_worker_computes_what_one_process_does(
    strategy, exchange, step_graphs, sent, monkeypatch, largest
):
    monkeypatch.setattr(unrolling, "LARGEST_CHUNK", largest)
    exchange(BATCHES)
    model, alone = trained_beside_one_process(
        strategy, mlp, keras.optimizers.Adam, *data(), BATCH
    )
    assert_alike(model.get_weights(), alone.get_weights(), rtol=1e-3, atol=1e-5)
    step, together = step_graphs
    assert len(together.messages) == 4, "for all steps together"
    assert together.size < 2 * step.size, "one copy of the step, in a loop"
    (loop,) = (
        op for op in together.function.graph.get_operations() if "While" in op.type
    )
    # TensorFlow keeps each value of a loop where the first one is.
    values = [each.op for each in loop.inputs if each.dtype != tf.resource]
    assert len(values) > len(model.weights)
    assert {task_at(each.device) for each in values} == {WORKER}
    assert crossings(sent.functions[0].graph) == 4


@pytest.mark.parametrize("largest", [unrolling.LARGEST_CHUNK, 1])
def test_rows_move_in_each_step_of_a_loop(strategy, exchange, monkeypatch, largest):
    monkeypatch.setattr(unrolling, "LARGEST_CHUNK", largest)
    exchange(5)
    sgd = keras.optimizers.SGD
    trained_beside_one_process(strategy, recommender, sgd, *data(), BATCH)


@pytest.fixture
def optimized(monkeypatch):
    """Whether a worker is to optimize the graph of each function that it is sent."""
    found = {}
    context = type(_tf.execution.context.context())
    call = context.call_function

    def called(self, name, *args):
        options = self.function_call_options.config_proto_serialized
        config = tf.compat.v1.ConfigProto.FromString(options)
        rewriting = config.graph_options.rewrite_options
        found[name.decode()] = not rewriting.disable_meta_optimizer
        return call(self, name, *args)

    monkeypatch.setattr(context, "call_function", called)
    return found


@averages_of_the_last
def test_only_large_functions_are_left_as_they_are(
    strategy, exchange, sent, optimized, monkeypatch
):
    exchange(5)
    sizes = unrolling.LARGEST_OPTIMIZED, 0, unrolling.LARGEST_OPTIMIZED
    for size in sizes:
        monkeypatch.setattr(unrolling, "LARGEST_OPTIMIZED", size)
        compiled(strategy, mlp, "adam").fit(*data(), batch_size=BATCH, verbose=0)
    names = [each.function_def.signature.name for each in sent.functions]
    assert [optimized[name] for name in names] == [True, False, True]


@averages_of_the_last
def test_graph_optimizers_that_a_program_turns_on_stay_on(
    strategy, exchange, sent, optimized, monkeypatch
):
    exchange(5)
    monkeypatch.setattr(unrolling, "LARGEST_OPTIMIZED", 0)
    chosen = {"remapping": True}
    monkeypatch.setattr(tf.config.optimizer, "get_experimental_options", lambda: chosen)
    compiled(strategy, mlp, "adam").fit(*data(), batch_size=BATCH, verbose=0)
    (function,) = sent.functions
    assert optimized[function.function_def.signature.name]


@averages_of_the_last
def test_an_exchange_of_batches_that_workers_read(strategy, exchange, sent):
    exchange(5)
    model = compiled(strategy, mlp, "adam")
    dataset = tf.data.Dataset.from_tensor_slices(data()).repeat().batch(BATCH)
    model.fit(dataset, steps_per_epoch=12, epochs=2, verbose=0)
    assert model.optimizer.iterations == 24
    # Of five steps, and of the two that are left in an epoch.
    assert [crossings(each.graph) for each in sent.functions] == [4, 4]


def test_callbacks_that_keep_exchanges_small_are_told(
    strategy, exchange, monkeypatch, caplog
):
    exchange(5)
    monkeypatch.setattr(strategy.fit_driver, "_told_of_small_calls", False)
    watching = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: None)
    for steps in (5, 1, 1):
        model = compiled(strategy, mlp, "sgd", steps_per_execution=steps)
        model.fit(*data(), batch_size=BATCH, verbose=0, callbacks=[watching])
    (text,) = [each for each in caplog.messages if "exchange=ExchangeEvery(5)" in each]
    assert "Pass steps_per_execution=5 to compile" in text


@averages_of_the_last
def test_an_exchange_sets_the_steps_of_a_message(strategy, exchange, sent):
    exchange(10)
    model = compiled(strategy, mlp, "adam")
    model.fit(*data(), batch_size=BATCH, epochs=2, verbose=0)
    assert model.optimizer.iterations == 2 * BATCHES
    (function,) = sent.functions
    assert crossings(function.graph) == 4
    assert function.inputs[0].shape[0] == 10


@pytest.mark.sets_own_value("doublings|momentum|velocity")
def test_what_the_last_worker_sets_is_told(strategy, exchange, monkeypatch, caplog):
    exchange(5)
    monkeypatch.setattr(strategy, "exchanges", Exchanges(2))

    class Counting(keras.Sequential):
        def train_step(self, data):
            self.doublings.assign(self.doublings * 2 + 1)
            self.steps.assign_add(1)
            return super().train_step(data)

    with strategy.scope():
        model = Counting([keras.Input((20,)), layers.Dense(10)])
        model.doublings = tf.Variable(0.0, trainable=False, name="doublings")
        model.steps = tf.Variable(0, trainable=False, name="steps")
        model.compile("adam", "mse")
    x, y = data()
    model.fit(x, keras.utils.to_categorical(y, 10), batch_size=BATCH, verbose=0)
    report = strategy.exchange_report()
    assert "doublings" in report.set
    assert {"steps", model.layers[0].kernel.path} <= set(report.added)
    (text,) = [each for each in caplog.messages if "exchange=ExchangeEvery(5)" in each]
    assert "sets doublings to a value" in text
    assert model.steps.numpy() == BATCHES


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "5", np.True_, np.array([5])])
def test_an_exchange_of_no_steps_is_an_error(wrong):
    with raises((TypeError, ValueError), "ExchangeEvery must be"):
        tfdist.ExchangeEvery(wrong)


def test_an_exchange_takes_any_integer_and_names_what_is_none():
    steps = tfdist.ExchangeEvery(np.int64(5)).steps
    assert (steps, type(steps)) == (5, int)
    with raises(TypeError, "np.float64(5.0)", "float64"):
        tfdist.ExchangeEvery(np.float64(5))


def test_what_is_no_exchange_is_an_error():
    with raises(TypeError, "tfdist.ExchangeEvery(5)", "received 5"):
        check_exchange(5)
