"""Steps update weights by fused kernels on the ps, and lose no update."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist import _tf

pytestmark = [pytest.mark.cluster, pytest.mark.parameter_server]

optimizers = keras.optimizers
SHAPES = {"kernel": (6, 4), "bias": (4,)}
STEPS = 4

# By the kernel that each becomes.
KERNELS = {
    "ResourceApplyGradientDescent": lambda: optimizers.SGD(0.1),
    "ResourceApplyKerasMomentum": lambda: optimizers.SGD(0.1, momentum=0.5),
    "ResourceApplyAdam": lambda: optimizers.Adam(0.1),
    "ResourceApplyAdamWithAmsgrad": lambda: optimizers.Adam(0.1, amsgrad=True),
    "ResourceApplyAdaMax": lambda: optimizers.Adamax(0.1),
    "ResourceApplyCenteredRMSProp": lambda: optimizers.RMSprop(
        0.01, momentum=0.9, centered=True
    ),
    "ResourceApplyAdadelta": lambda: optimizers.Adadelta(1.0),
    "ResourceApplyFtrlV2": lambda: optimizers.Ftrl(0.1),
}

NUMBERED = {
    "ResourceApplyAdam",
    "ResourceApplyAdamWithAmsgrad",
    "ResourceApplyAdaMax",
}


class OwnAdam(optimizers.Adam):
    """Derived from Keras's, with nothing changed."""


class Training:
    """Weights, and an optimizer that a function updates them with."""

    def __init__(self, make, run):
        self.weights = [
            keras.Variable(np.linspace(-1, 1, np.prod(shape)).reshape(shape), name=name)
            for name, shape in SHAPES.items()
        ]
        self.optimizer = make()
        self.optimizer.build(self.weights)

        def apply(*gradients):
            # An argument is on no device; a gradient is on that of its replica.
            self.optimizer.apply([tf.identity(g) for g in gradients], self.weights)

        @tf.function
        def step(*gradients):
            run(apply, args=gradients)

        self.step = step

    def operations(self):
        """The operations of a step, those of the functions it calls included."""
        specs = [tf.TensorSpec(shape) for shape in SHAPES.values()]
        graph = self.step.get_concrete_function(*specs).graph
        definition = graph.as_graph_def()
        bodies = [f.node_def for f in definition.library.function]
        return [node for nodes in [definition.node, *bodies] for node in nodes]

    def values(self):
        return {
            variable.path.split("/", 1)[-1]: variable.numpy()
            for variable in [*self.weights, *self.optimizer.variables]
        }


def in_one_process(make):
    return Training(make, lambda apply, args: apply(*args))


def on_cluster(strategy, make, partitioner=None):
    with strategy.scope():
        if partitioner is None:
            return Training(make, strategy.run)
        with tfdist.partition_variables(partitioner):
            return Training(make, strategy.run)


def gradients_of(step):
    draws = np.random.default_rng(step)
    return [draws.normal(size=shape).astype("float32") for shape in SHAPES.values()]


def check_equal(training, plain):
    ours = training.values()
    for name, expected in plain.values().items():
        np.testing.assert_allclose(
            ours[name], expected, rtol=1e-4, atol=1e-6, err_msg=name
        )


def run(strategy, training, step):
    strategy.coordinator.schedule(training.step, args=gradients_of(step))
    strategy.coordinator.join()


def types_of(training, prefix):
    return [o.op for o in training.operations() if o.op.startswith(prefix)]


@pytest.fixture(params=[None, 2], ids=["whole", "in_shards"])
def partitioner(request):
    return request.param and tfdist.FixedShardsPartitioner(request.param)


@pytest.mark.in_gate("in_shards-ResourceApplyAdam")
@pytest.mark.parametrize("op", KERNELS)
def test_a_step_has_one_operation_per_weight_and_equals_keras(
    strategy, op, partitioner
):
    training = on_cluster(strategy, KERNELS[op], partitioner)
    plain = in_one_process(KERNELS[op])
    for step in range(STEPS):
        run(strategy, training, step)
        plain.step(*gradients_of(step))
    check_equal(training, plain)
    pieces = len(SHAPES) if partitioner is None else 2 * len(SHAPES)
    assert types_of(training, "ResourceApply") == [op] * pieces
    # All that is left is the count of steps.
    assert types_of(training, "Assign") == ["AssignAddVariableOp"]
    # A model outside of the scope keeps the operations of Keras.
    assert types_of(plain, "ResourceApply") == []


def test_a_kernel_and_its_numbers_are_computed_beside_the_weight(strategy):
    training = on_cluster(strategy, KERNELS["ResourceApplyAdam"])
    specs = [tf.TensorSpec(shape) for shape in SHAPES.values()]
    graph = training.step.get_concrete_function(*specs).graph
    device_of = {inner.name: outer.device for outer, inner in graph.captures}
    kernels = [op for op in graph.get_operations() if "ResourceApply" in op.type]
    assert len(kernels) == len(SHAPES)
    for op in kernels:
        handles = [each for each in op.inputs if each.dtype == tf.resource]
        [device] = {device_of[handle.name] for handle in handles}
        assert tf.DeviceSpec.from_string(device).job == "ps"
        powers = [each.op for each in op.inputs if each.op.type == "Pow"]
        assert len(powers) == 2
        for each in [op, *powers]:
            [group] = each.colocation_groups()
            assert device_of[f"{group.decode().removeprefix('loc:@')}:0"] == device


def test_the_weights_of_a_ps_share_the_numbers_of_one_step(strategy):
    def twice(apply, args):
        strategy.run(apply, args=args)
        strategy.run(apply, args=args)

    with strategy.scope():
        training = Training(KERNELS["ResourceApplyAdam"], twice)
    devices = {_tf.value_of(weight).device for weight in training.weights}
    kernels = types_of(training, "ResourceApplyAdam")
    assert len(kernels) == 2 * len(SHAPES)
    # Two powers for each ps in each step: the second step has another number.
    assert len(types_of(training, "Pow")) == 2 * 2 * len(devices)
    plain = in_one_process(KERNELS["ResourceApplyAdam"])
    run(strategy, training, 0)
    for _ in range(2):
        plain.step(*gradients_of(0))
    check_equal(training, plain)


# All kernels lock, as test_fused_kernels.py sees; two of them, with slots and without a
# number of the step, show that it is enough.
@pytest.mark.in_gate("ResourceApplyKerasMomentum")
@pytest.mark.parametrize("op", ["ResourceApplyKerasMomentum", "ResourceApplyAdam"])
def test_no_update_of_two_workers_is_lost(strategy, op):
    """Equal updates leave what as many updates of one worker leave, in any order."""
    training = on_cluster(strategy, KERNELS[op])
    plain = in_one_process(KERNELS[op])
    for _ in range(60):
        strategy.coordinator.schedule(training.step, args=gradients_of(0))
        plain.step(*gradients_of(0))
    strategy.coordinator.join()
    ours, expected = training.values(), plain.values()
    for name in expected:
        # Adam's weights depend on the number of the step as well, and steps of two
        # workers at the same time may have the same number.
        if name not in SHAPES or op not in NUMBERED:
            np.testing.assert_allclose(
                ours[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name
            )


@pytest.mark.parametrize(
    "make",
    [
        lambda: OwnAdam(0.1),
        lambda: optimizers.RMSprop(0.1),
        lambda: optimizers.Nadam(0.1),
    ],
    ids=["derived", "no_momentum", "no_kernel"],
)
def test_others_keep_the_operations_of_keras(strategy, make):
    training = on_cluster(strategy, make)
    assert types_of(training, "ResourceApply") == []
    run(strategy, training, 0)
    assert int(training.optimizer.iterations) == 1


def test_decay_clipping_and_averages_stay_around_the_kernel(strategy):
    def make():
        return optimizers.AdamW(
            0.1, weight_decay=0.1, clipnorm=0.5, use_ema=True, ema_momentum=0.9
        )

    training = on_cluster(strategy, make)
    plain = in_one_process(make)
    for step in range(STEPS):
        run(strategy, training, step)
        plain.step(*gradients_of(step))
    assert types_of(training, "ResourceApply") == ["ResourceApplyAdam"] * len(SHAPES)
    check_equal(training, plain)


def test_rows_of_an_embedding_keep_the_operations_of_keras(strategy):
    with strategy.scope():
        table = keras.Variable(np.zeros((8, 2)), name="table")
        optimizer = optimizers.SGD(1.0, momentum=0.9)
        optimizer.build([table])

    @tf.function
    def step():
        def apply():
            rows = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 3]), [8, 2])
            optimizer.apply([rows], [table])

        strategy.run(apply)

    ops = step.get_concrete_function().graph.get_operations()
    assert not [op for op in ops if op.type.startswith("ResourceApply")]
    strategy.coordinator.schedule(step)
    strategy.coordinator.join()
    np.testing.assert_array_equal(_tf.value_of(table).numpy()[3], [-2.0, -2.0])
