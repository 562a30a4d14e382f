"""All-reduces on nine logical CPU devices."""

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.all_reduce import cross_device_ops
from tfdist.all_reduce.cross_device_ops import STAR_BYTES
from tfdist.all_reduce.schedule import SCHEDULES, build

from ..support.raising import raises
from .all_reduce_cases import Counted, make_logical_cpus

pytestmark = pytest.mark.own_process

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(9)]
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
CHOICES = [None, *SCHEDULES]
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
PRIME = 1009
MANY = 10_000_000


@pytest.fixture(scope="module", autouse=True)
def nine_devices():
    make_logical_cpus(len(DEVICES))


def draw(shape, dtype, seed) -> np.ndarray:
    """Whole numbers, of which sums are exact in every dtype."""
    whole = np.random.default_rng(seed).integers(-9, 10, size=shape)
    return whole.astype(dtype.as_numpy_dtype)


def normal(shape, seed, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def placed(arrays, devices=DEVICES):
    """The tensors of each device."""
    tensors = []
    for of_device, device in zip(arrays, devices, strict=False):
        with tf.device(device):
            tensors.append([tf.constant(array) for array in of_device])
    return tensors


def distributed(arrays):
    """A per-replica value for each tensor."""
    strategy = tf.distribute.MirroredStrategy(
        DEVICES[: len(arrays)], tf.distribute.ReductionToOneDevice()
    )

    def replica():
        context = tf.distribute.get_replica_context()
        return [tf.constant(each) for each in arrays[context.replica_id_in_sync_group]]

    return strategy.run(replica)


def replicas(value):
    return value.values if hasattr(value, "values") else (value,)


def assert_bit_equal(values) -> None:
    first, *others = [value.numpy().tobytes() for value in values]
    assert all(other == first for other in others)


def reduced_by(ops, reduce_op, arrays):
    """Yield each result, after checking that all devices have the same bits."""
    values = [(value, value) for value in distributed(arrays)]
    for value in ops.batch_reduce(reduce_op, values):
        of_devices = replicas(value)
        assert [each.device for each in of_devices] == DEVICES[: len(arrays)]
        assert_bit_equal(of_devices)
        yield of_devices[-1].numpy()


@pytest.mark.parametrize("n", [1, 4, 7])
@pytest.mark.parametrize("algorithm", CHOICES)
def test_sums_are_those_of_numpy(algorithm, n):
    shapes = ((0,), (1,), (n - 1,), (n,), (n + 1,), (PRIME,))
    cases = [
        (shape, dtype)
        for i, shape in enumerate(shapes)
        for j, dtype in enumerate(DTYPES)
        # The others share what does not depend on who sends what to whom.
        if algorithm == "ring" or (i + j + n) % len(DTYPES) == 0
    ]
    arrays = [[draw(*case, (d, i)) for i, case in enumerate(cases)] for d in range(n)]
    ops = tfdist.AllReduce(algorithm, bucket_bytes=1, segment_bytes=500)
    for i, total in enumerate(reduced_by(ops, SUM, arrays)):
        assert total.dtype == arrays[0][i].dtype
        wanted = sum(arrays[d][i].astype(np.int64) for d in range(n))
        np.testing.assert_array_equal(total.astype(np.int64), wanted, str(cases[i]))


@pytest.mark.parametrize("algorithm", CHOICES)
def test_means_of_mixed_dtypes_in_one_batch(algorithm):
    n = 3
    cases = [
        (shape, dtype) for shape in ((), (n, 3), (0,), (PRIME,)) for dtype in DTYPES
    ]
    arrays = [[draw(*case, (d, i)) for i, case in enumerate(cases)] for d in range(n)]
    ops = tfdist.AllReduce(algorithm, bucket_bytes=1000, segment_bytes=500)
    for i, mean in enumerate(reduced_by(ops, MEAN, arrays)):
        dtype = cases[i][1]
        assert mean.dtype == (np.float64 if dtype.is_integer else dtype.as_numpy_dtype)
        total = sum(arrays[d][i].astype(np.float64) for d in range(n))
        allowed = {tf.bfloat16: 2**-7, tf.float16: 2**-10, tf.float32: 2**-23}
        np.testing.assert_allclose(
            mean.astype(np.float64), total / n, rtol=allowed.get(dtype, 2**-52)
        )


@pytest.mark.parametrize(
    ("algorithm", "n", "dtype"),
    [
        ("ring", 9, tf.bfloat16),
        ("halving_doubling", 4, tf.float16),
        (None, 5, tf.float32),
    ],
)
def test_ten_million_numbers(algorithm, n, dtype):
    arrays = [[draw(MANY, dtype, d)] for d in range(n)]
    sums = tfdist.AllReduce(algorithm).reduce_tensors(placed(arrays), DEVICES[:n])
    wanted = sum(array.astype(np.int8) for (array,) in arrays)
    for (value,) in sums:
        np.testing.assert_array_equal(value.numpy().astype(np.int8), wanted)


@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_integers_too_large_for_any_float(algorithm):
    arrays = [[np.int64([2**60 + d, -(2**62) + d])] for d in range(3)]
    sums = tfdist.AllReduce(algorithm).reduce_tensors(placed(arrays), DEVICES[:3])
    np.testing.assert_array_equal(sums[2][0], sum(array for (array,) in arrays))


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16", "float16"])
@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_the_same_input_gives_the_same_bits_on_all_devices(algorithm, wire_dtype):
    n = 5
    arrays = [[normal((1, 301), d), normal(77, d, np.float64)] for d in range(n)]
    ops = tfdist.AllReduce(
        algorithm,
        wire_dtype=wire_dtype,
        segment_bytes=200 if algorithm == "ring" else 1000,
    )
    run = tf.function(lambda: ops.reduce_tensors(placed(arrays), DEVICES[:n]))
    results = [run(), run(), ops.reduce_tensors(placed(arrays), DEVICES[:n])]
    unit = {None: 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}[wire_dtype]
    for i in range(2):
        assert_bit_equal([of_device[i] for result in results for of_device in result])
        total = results[0][0][i].numpy()
        wanted = sum(arrays[d][i].astype(np.float64) for d in range(n))
        # Every sum on the way is rounded, and none is larger than this.
        largest = sum(abs(arrays[d][i].astype(np.float64)) for d in range(n))
        assert np.all(abs(total - wanted) <= 2 * n * unit * largest)
        if wire_dtype:
            narrow = tf.as_dtype(wire_dtype).as_numpy_dtype
            np.testing.assert_array_equal(total, total.astype(narrow))


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_only_wide_dtypes_are_narrowed_on_the_wire(dtype):
    arrays = [[np.asarray([1025, 3], dtype)] for _ in range(2)]
    ops = tfdist.RingAllReduce(wire_dtype="bfloat16")
    sums = ops.reduce_tensors(placed(arrays), DEVICES[:2])
    np.testing.assert_array_equal(sums[1][0], np.asarray([2050, 6], dtype))


def test_slices_are_narrowed_on_the_wire():
    with tf.device(DEVICES[0]):
        one = tf.IndexedSlices(tf.constant([[1 + 2**-12]]), tf.constant([0]))
    with tf.device(DEVICES[1]):
        other = tf.IndexedSlices(tf.constant([[3.0]]), tf.constant([0]))
    ops = tfdist.RingAllReduce(wire_dtype="bfloat16")
    for (sums,) in ops.reduce_tensors([[one], [other]], DEVICES[:2]):
        np.testing.assert_array_equal(sums.values, [[1], [3]])


@pytest.mark.parametrize(
    ("algorithm", "reduce_op", "traced"),
    [(None, SUM, True), ("ring", MEAN, True), ("ring", SUM, False)],
)
def test_slices_with_repeats_and_unknown_shapes(algorithm, reduce_op, traced):
    n, rows = 5, 7
    indices = [np.random.default_rng(d).integers(rows, size=d) for d in range(n)]
    blocks = [draw((d, 2), tf.float32, d) for d in range(n)]
    wanted = np.zeros((rows, 2), np.float32)
    for of_device, block in zip(indices, blocks, strict=True):
        np.add.at(wanted, of_device, block)
    ops = tfdist.AllReduce(algorithm, wire_dtype="bfloat16")

    def run(blocks, indices):
        per_device = []
        for d, device in enumerate(DEVICES[:n]):
            with tf.device(device):
                block, index = tf.identity(blocks[d]), tf.identity(indices[d])
                known = tf.IndexedSlices(block, index, tf.constant([rows, 2]))
                per_device.append([known, block[:0], tf.IndexedSlices(block, index)])
        return ops.reduce_tensors(per_device, DEVICES[:n], reduce_op)

    if traced:
        shapes = [[tf.TensorSpec([None, 2])] * n, [tf.TensorSpec([None], tf.int64)] * n]
        run = tf.function(run, input_signature=shapes)
    for known, empty, unknown in run(
        [*map(tf.constant, blocks)], [*map(tf.constant, indices)]
    ):
        dense = tf.convert_to_tensor(known).numpy()
        np.testing.assert_allclose(
            dense, wanted / (n if reduce_op == MEAN else 1), rtol=1e-6
        )
        np.testing.assert_array_equal(known.values, unknown.values)
        assert unknown.dense_shape is None
        assert empty.shape == (0, 2)


def test_slices_on_some_devices_are_added_to_dense_tensors_on_others():
    with tf.device(DEVICES[0]):
        slices = tf.IndexedSlices(
            tf.ones([1, 2]), tf.constant([1]), tf.constant([3, 2])
        )
    with tf.device(DEVICES[1]):
        dense = tf.ones([3, 2])
    sums = tfdist.RingAllReduce().reduce_tensors([[slices], [dense]], DEVICES[:2])
    np.testing.assert_array_equal(sums[0][0], [[1, 1], [2, 2], [1, 1]])


@pytest.mark.parametrize("algorithm", CHOICES)
def test_shapes_that_are_known_only_when_it_runs(algorithm):
    n = 4
    ops = tfdist.AllReduce(algorithm)

    @tf.function(input_signature=[[tf.TensorSpec([None, None])] * n] * 2)
    def run(first, second):
        per_device = []
        for d, device in enumerate(DEVICES[:n]):
            with tf.device(device):
                per_device.append(
                    [tf.identity(first[d]), tf.ones([3]), tf.identity(second[d])]
                )
        return ops.reduce_tensors(per_device, DEVICES[:n])

    for shape in ((0, 3), (1, 1), (5, 7)):
        first, second = (
            [draw(shape, tf.float32, (d, k)) for d in range(n)] for k in (0, 1)
        )
        for sums in run([*map(tf.constant, first)], [*map(tf.constant, second)]):
            np.testing.assert_array_equal(sums[0], sum(first))
            np.testing.assert_array_equal(sums[1], [n] * 3)
            np.testing.assert_array_equal(sums[2], sum(second))


def test_devices_that_share_memory_add_up_before_they_send(monkeypatch):
    groups = [[0, 2], [1, 3, 4], [5]]
    monkeypatch.setattr(cross_device_ops, "sharing_memory", lambda devices: groups)
    arrays = [[draw(13, tf.float32, d), draw((), tf.int64, d)] for d in range(6)]
    per_device = placed(arrays)
    for d, of_device in enumerate(per_device):
        of_device.append(
            tf.IndexedSlices(of_device[0][:, None], tf.range(13) % (d + 1))
        )
    sums = tfdist.AllReduce().reduce_tensors(per_device, DEVICES[:6], MEAN)
    for device, of_device in zip(DEVICES, sums, strict=False):
        assert [value.device for value in of_device] == [device] * 3
        for i in range(2):
            wanted = sum(array[i] for array in arrays) / 6
            np.testing.assert_allclose(of_device[i], wanted, rtol=1e-6)
        assert of_device[2].values.shape == (6 * 13, 1)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_a_strategy_reduces_by_it_in_every_step(algorithm, traced):
    n = 3
    ops = Counted(algorithm, bucket_bytes=40)
    strategy = tf.distribute.MirroredStrategy(DEVICES[:n], cross_device_ops=ops)
    arrays = [
        [draw(9, tf.float32, d), draw(4, tf.float32, d), draw(4, tf.float64, d)]
        for d in range(n)
    ]
    per_replica = distributed(arrays)

    def replica(*values):
        context = tf.distribute.get_replica_context()
        return context.all_reduce(SUM, list(values)), context.all_reduce(
            SUM, tf.constant(1)
        )

    def step(values):
        return strategy.run(replica, args=values)

    run = tf.function(step) if traced else step
    for steps in (1, 2, 3):
        sums, ones = run(tuple(per_replica))
        # The two of float32 fill one bucket; int32 does not get here.
        assert ops.runs == steps * 2
        assert [one.numpy() for one in ones.values] == [n] * n
        for i, value in enumerate(sums):
            assert len(value.values) == n
            for each in value.values:
                np.testing.assert_array_equal(each, sum(array[i] for array in arrays))


def test_the_last_gradients_leave_first():
    left = []

    class Watched(tfdist.RingAllReduce):
        def _sum_bucket(self, per_device, *others):
            left.append([value.shape[0] for value in per_device[0]])
            return super()._sum_bucket(per_device, *others)

    arrays = [[draw(size, tf.float32, size) for size in (5, 4, 3, 2, 1)]] * 2
    Watched(bucket_bytes=12).reduce_tensors(placed(arrays), DEVICES[:2])
    assert left == [[1, 2], [3], [4], [5]]


def test_values_that_no_replica_has_computed():
    ops = Counted("ring")
    strategy = tf.distribute.MirroredStrategy(DEVICES[:3], cross_device_ops=ops)
    value = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(1.0 + context.replica_id_in_sync_group)
    )
    assert len({each.device for each in value.values}) == 1

    def replica(value):
        return tf.distribute.get_replica_context().all_reduce(SUM, value)

    run = tf.function(lambda value: strategy.run(replica, args=(value,)))
    for sums in (strategy.run(replica, args=(value,)), run(value)):
        assert [each.numpy() for each in sums.values] == [6, 6, 6]
    assert ops.runs == 2


def test_other_collectives_still_work():
    ops = tfdist.RingAllReduce()
    strategy = tf.distribute.MirroredStrategy(DEVICES[:3], cross_device_ops=ops)
    (value,) = distributed([[np.float32([d, 1])] for d in range(3)])
    one = ops.reduce(SUM, value, DEVICES[7])
    assert one.device == DEVICES[7]
    np.testing.assert_array_equal(one, [3, 3])
    np.testing.assert_array_equal(strategy.gather(value, 0), [0, 1, 1, 1, 2, 1])
    np.testing.assert_array_equal(strategy.reduce(SUM, value, axis=None), [3, 3])
    with strategy.scope():
        variable = tf.Variable([0.0, 0.0], aggregation=tf.VariableAggregation.MEAN)
    strategy.run(lambda: variable.assign([4.0, 6.0]))
    np.testing.assert_array_equal(variable, [4, 6])


@pytest.mark.parametrize("n", [4, 6])
@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_a_graph_sends_what_the_schedule_says(algorithm, n):
    size = 4 * 96
    graph = tf.Graph()
    with graph.as_default():
        ops = tfdist.AllReduce(algorithm, segment_bytes=16)
        per_device = placed([[draw(96, tf.float32, d)] for d in range(n)])
        ops.reduce_tensors(per_device, DEVICES[:n])
    sent, pairs = dict.fromkeys(DEVICES[:n], 0), set()
    for op in graph.get_operations():
        assert {before.device for before in op.control_inputs} <= {op.device}
        for value in op.inputs:
            if value.device != op.device:
                sent[value.device] += value.shape.num_elements() * value.dtype.size
                pairs.add((DEVICES.index(value.device), DEVICES.index(op.device)))
    schedule = build(algorithm, n)
    assert [*sent.values()] == [schedule.sent(d) * size for d in range(n)]
    assert pairs == set(schedule.links)


def test_devices_of_one_process_add_up_in_place_by_default():
    shapes = [(8192,), (3,), (2, 2), (8192,), (5,)]
    dtypes = [tf.float32, tf.float32, tf.float32, tf.float64, tf.float64]
    graph = tf.Graph()
    with graph.as_default():
        arrays = [*map(draw, shapes, dtypes, range(5))]
        tfdist.AllReduce().reduce_tensors(placed([arrays] * 4), DEVICES[:4])
    sums = [op for op in graph.get_operations() if op.type == "AddN"]
    # Two tensors are small, and of one dtype: they are packed.
    assert sorted(op.outputs[0].shape.num_elements() for op in sums) == [
        5,
        7,
        8192,
        8192,
    ]
    assert {op.device for op in sums} == {DEVICES[0]}


@pytest.mark.parametrize(
    ("elements", "algorithm"),
    [
        # The two tensors of a device are one bucket.
        (STAR_BYTES // 8, "reduce_then_broadcast"),
        (STAR_BYTES // 8 + 1, "ring"),
        (6_000_000, "ring"),
    ],
)
def test_between_processes_one_device_of_each_sends_by_what_is_fastest(
    elements, algorithm
):
    tasks = 3
    devices = [
        f"/job:worker/replica:0/task:{task}/device:CPU:{cpu}"
        for cpu in range(2)
        for task in range(tasks)
    ]
    graph = tf.Graph()
    with graph.as_default():
        per_device = []
        for device in devices:
            with tf.device(device):
                per_device.append([tf.fill([elements], 1.0) for _ in range(2)])
        tfdist.AllReduce().reduce_tensors(per_device, devices)
    sent, messages = dict.fromkeys(devices, 0), []
    for op in graph.get_operations():
        for value in op.inputs:
            if value.device.split("/device")[0] != op.device.split("/device")[0]:
                messages.append(value.shape.num_elements() * value.dtype.size)
                sent[value.device] += messages[-1]
                assert op.name.startswith(algorithm)
    # Bytes are cut at 64.
    total = 2 * elements * 4
    assert sum(sent.values()) == pytest.approx(2 * (tasks - 1) * total, rel=1e-3)
    assert [*sent.values()][tasks:] == [0] * tasks
    if algorithm == "ring":
        assert [*sent.values()][:tasks] == pytest.approx([total * 4 / 3] * 3, rel=1e-3)
        # Chunks of 16 MB, in segments.
        assert max(messages) <= 1_000_000 + 64


def test_short_names_of_devices_are_names():
    ops = tfdist.AllReduce("ring")
    values = [[tf.constant([float(i)])] for i in range(3)]
    sums = ops.reduce_tensors(values, ["CPU:0", "/cpu:1", "/device:CPU:2"])
    assert [each[0].numpy().tolist() for each in sums] == [[3.0]] * 3
    with raises(ValueError, "2 values"):
        ops.reduce_tensors(values[:2], ["CPU:0", "/cpu:0"])


@pytest.mark.parametrize(
    ("numbers", "devices"), [([1, 1, 1], 2), ([1], 2), ([1, 2], 2), ([], 0)]
)
def test_each_device_has_its_list(numbers, devices):
    values = [[tf.constant([1.0])] * number for number in numbers]
    says = rf"lists of \[{', '.join(map(str, numbers))}\] tensors for {devices} dev"
    with pytest.raises(ValueError, match=says):
        tfdist.RingAllReduce().reduce_tensors(values, DEVICES[:devices])


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"algorithm": "star"}, ValueError, "'star'.*'ring', 'reduce_then_broadcast'"),
        ({"bucket_bytes": 0}, ValueError, "bucket_bytes.*above 0; received 0"),
        ({"segment_bytes": -1}, ValueError, "segment_bytes.*received -1"),
        ({"segment_bytes": float("nan")}, ValueError, "segment_bytes.*nan"),
        ({"bucket_bytes": "4 MB"}, TypeError, "bucket_bytes.*'4 MB'"),
        ({"wire_dtype": "int8"}, ValueError, "'bfloat16', 'float16', .*'int8'"),
        ({"wire_dtype": "half a byte"}, ValueError, "'half a byte'"),
        ({"wire_dtype": tf.float32}, ValueError, "'bfloat16', 'float16', "),
    ],
)
def test_options_that_do_not_exist(options, error, says):
    with pytest.raises(error, match=says):
        tfdist.AllReduce(**options)


@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_values_that_cannot_be_added_up(algorithm):
    per_device = placed([[np.array([True, False])]] * 2)
    with raises(TypeError, "bool", "cast"):
        tfdist.AllReduce(algorithm).reduce_tensors(per_device, DEVICES[:2])


def test_devices_and_values_that_do_not_fit():
    ops = tfdist.RingAllReduce()
    with raises(ValueError, "CPU:1'", "different"):
        ops.reduce_tensors(placed([[1.0]] * 3), [*DEVICES[:2], DEVICES[1]])
    with raises(ValueError, "(2,)", "CPU:0", "(3,)", "CPU:1"):
        ops.reduce_tensors(placed([[[1.0, 2.0]], [[1.0] * 3]]), DEVICES[:2])
    with raises(ValueError, "float32", "int32"):
        ops.reduce_tensors(placed([[1.0], [1]]), DEVICES[:2])
    with raises(ValueError, "received 'max'"):
        ops.reduce_tensors(placed([[1.0]] * 2), DEVICES[:2], "max")
    assert ops.reduce_tensors(placed([[]] * 2), DEVICES[:2]) == [[], []]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "per_device", [[1.0, 70_000.0, 1.0], [40_000.0, 40_000.0, 1.0]]
)
def test_what_does_not_fit_the_wire_fails_and_says_what_to_do(per_device, traced):
    def run(wire_dtype, *values):
        def reduce():
            ops = tfdist.RingAllReduce(wire_dtype=wire_dtype)
            return ops.reduce_tensors(placed([[each] for each in values]), DEVICES[:3])

        return (tf.function(reduce) if traced else reduce)()

    with raises(tf.errors.InvalidArgumentError, "float16", "65504", "bfloat16"):
        run("float16", *map(np.float32, per_device))
    with raises(tf.errors.InvalidArgumentError, "wire_dtype=None"):
        run("bfloat16", *map(np.float64, [1e39, 1e300, 1]))
    assert np.isinf(run("float16", *map(np.float32, [1, np.inf, 1]))[0][0])
    assert np.isnan(run("float16", *map(np.float32, [1, np.nan, 1]))[2][0])
