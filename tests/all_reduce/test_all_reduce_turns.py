"""The order of messages within an exchange and between exchanges."""

import pytest
import tensorflow as tf

from tfdist.all_reduce.bucket import sum_bucket
from tfdist.all_reduce.executor import Turns
from tfdist.all_reduce.schedule import build


def test_as_much_is_on_its_way_as_is_allowed():
    turns = Turns(2, in_flight_bytes=20)
    assert [turns.take(10) for _ in range(5)] == [None, None, 0, 1, 2]
    assert turns.take(20) == 3
    assert [turns.take(5) for _ in range(4)] == [4, 5, 5, 5]


def test_two_messages_may_always_be_on_their_way():
    turns = Turns(2, in_flight_bytes=20)
    assert [turns.take(100) for _ in range(4)] == [None, None, 0, 1]


def exchange(
    num_buckets, *, algorithm="ring", devices=3, in_flight_bytes=32, **options
):
    """The operations that wait for another one, in a graph of equal buckets.

    With three devices, a bucket of 36 numbers in nine segments of 4 has three segments
    a chunk and four steps: a device sends twelve messages of 16 bytes.
    """
    names = [f"/device:CPU:{i}" for i in range(devices)]
    turns = Turns(devices, in_flight_bytes)
    with tf.Graph().as_default() as graph:
        for _ in range(num_buckets):
            values = []
            for name in names:
                with tf.device(name):
                    values.append([tf.zeros([36])])
            schedule = build(algorithm, devices)
            segments = 9 // schedule.num_chunks
            sum_bucket(schedule, values, names, segments, turns=turns, **options)
    waiting = [op for op in graph.get_operations() if op.control_inputs]
    for op in waiting:
        assert {before.device for before in op.control_inputs} == {op.device}
    return waiting


def test_a_ring_sends_in_turn():
    assert len(exchange(1)) == 3 * (12 - 2)
    assert len(exchange(1, in_flight_bytes=16)) == 3 * (12 - 2)
    assert len(exchange(1, in_flight_bytes=1000)) == 0


def test_buckets_go_one_after_the_other():
    assert len(exchange(2)) == 3 * (24 - 2)


def test_half_precision_has_twice_as_many_on_their_way():
    assert len(exchange(1, wire_dtype=tf.bfloat16)) == 3 * (12 - 4)


@pytest.mark.parametrize("algorithm", ["all_to_all", "reduce_then_broadcast", "tree"])
def test_no_other_schedule_waits(algorithm):
    assert exchange(2, algorithm=algorithm) == []
