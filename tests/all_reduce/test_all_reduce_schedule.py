"""Schedules, carried out by NumPy: every device ends with the sum, bit by bit."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.all_reduce import schedule as schedules
from tfdist.all_reduce.schedule import (
    SCHEDULES,
    ScheduleError,
    Transfer,
    TransferSchedule,
)

DEVICES = (1, 2, 3, 4, 5, 6, 7, 8, 13, 17)


@pytest.fixture(params=SCHEDULES)
def every_schedule(request):
    """Those of an algorithm, for some numbers of devices."""
    return [SCHEDULES[request.param](num_devices) for num_devices in DEVICES]


def states(schedule: TransferSchedule, values: np.ndarray):
    """Yields, before and after each step, `held[device][chunk]` of such a tensor."""
    held = [np.array_split(value, schedule.num_chunks) for value in values]
    yield held
    for transfers in schedule.steps:
        began, held = held, [list(chunks) for chunks in held]
        for _, sender, receiver, chunk, reduces in transfers:
            own, arrived = held[receiver][chunk], began[sender][chunk]
            held[receiver][chunk] = own + arrived if reduces else arrived
        yield held


def all_reduce(schedule: TransferSchedule, values: np.ndarray) -> np.ndarray:
    *_, held = states(schedule, values)
    return np.stack([np.concatenate(chunks) for chunks in held])


def whose_values(schedule: TransferSchedule) -> np.ndarray:
    """Values that say whose they are: `[d, c, e]` is 1 where device `d` is `e`."""
    n = schedule.num_devices
    return np.broadcast_to(np.eye(n, dtype=int)[:, None], (n, schedule.num_chunks, n))


def test_every_device_ends_with_every_value_once(every_schedule):
    for schedule in every_schedule:
        assert (all_reduce(schedule, whose_values(schedule)) == 1).all(), schedule


@settings(max_examples=100)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    num_devices=st.sampled_from(DEVICES),
    size=st.integers(0, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_size_of_any_dtype_is_summed(name, num_devices, size, seed):
    schedule = schedules.build(name, num_devices)
    draw = np.random.default_rng(seed)
    whole = draw.integers(-(2**40), 2**40, (num_devices, size))
    assert (all_reduce(schedule, whole) == whole.sum(0)).all()
    real = draw.standard_normal((num_devices, size)).astype(np.float32)
    summed = all_reduce(schedule, real)
    np.testing.assert_allclose(summed[0], real.sum(0), rtol=1e-4, atol=1e-5)
    assert all(row.tobytes() == summed[0].tobytes() for row in summed)
    assert all_reduce(schedule, real).tobytes() == summed.tobytes()


def test_each_chunk_is_summed_on_its_owner_first_and_copied_from_there(every_schedule):
    for schedule in every_schedule:
        check_owners(schedule)


def check_owners(schedule: TransferSchedule) -> None:
    held_by_step = list(states(schedule, whose_values(schedule)))
    for chunk in range(schedule.num_chunks):
        assert schedule.owner(chunk) == chunk
        has_the_sum = [
            [d for d, chunks in enumerate(held) if (chunks[chunk] == 1).all()]
            for held in held_by_step
        ]
        first = next(devices for devices in has_the_sum if devices)
        assert first == [schedule.owner(chunk)]
        summed = has_the_sum.index(first)
        for transfer in schedule.transfers:
            if transfer.chunk == chunk:
                assert transfer.reduces == (transfer.step < summed)
                if not transfer.reduces:
                    assert transfer.sender in has_the_sum[transfer.step]
                    assert transfer.receiver not in has_the_sum[transfer.step]


def test_no_step_depends_on_the_order_of_its_transfers(every_schedule):
    for schedule in every_schedule:
        check_steps(schedule)


def check_steps(schedule: TransferSchedule) -> None:
    assert list(schedule.transfers) == sorted(set(schedule.transfers))
    for number, transfers in enumerate(schedule.steps):
        assert {each.step for each in transfers} == {number}
        sent = {(each.sender, each.chunk) for each in transfers}
        received = {(each.receiver, each.chunk) for each in transfers}
        assert not sent & received
        assert all(each.sender != each.receiver for each in transfers)
        replaced = Counter(e[2:4] for e in transfers if not e.reduces)
        assert set(replaced.values()) <= {1}


def test_all_move_the_same_in_total(every_schedule):
    for schedule in every_schedule:
        total = sum(schedule.links.values(), Fraction(0))
        assert total == 2 * (schedule.num_devices - 1)
        devices = range(schedule.num_devices)
        assert sum(map(schedule.sent, devices)) == total
        assert sum(map(schedule.received, devices)) == total


@pytest.mark.parametrize("n", [2, 6, 8])
def test_the_ring_uses_every_link_to_a_neighbour_in_every_step(n):
    ring = schedules.ring(n)
    neighbours = {(d, (d + 1) % n) for d in range(n)}
    assert ring.links == dict.fromkeys(neighbours, Fraction(2 * (n - 1), n))
    assert ring.busiest_sent == ring.busiest_received == Fraction(2 * (n - 1), n)
    assert ring.num_steps == len(ring.steps) == 2 * (n - 1)
    for transfers in ring.steps:
        assert {(each.sender, each.receiver) for each in transfers} == neighbours
        assert len(transfers) == n


@pytest.mark.parametrize("n", [2, 6, 8])
def test_the_others_use_links_as_they_say(n):
    star = schedules.reduce_then_broadcast(n)
    assert star.links == {link: 1 for d in range(1, n) for link in ((0, d), (d, 0))}
    assert (star.busiest_sent, star.busiest_received) == (n - 1, n - 1)
    everyone = schedules.all_to_all(n)
    assert everyone.links == {
        (d, e): Fraction(2, n) for d in range(n) for e in range(n) if d != e
    }
    assert star.num_steps == everyone.num_steps == 2


@pytest.mark.parametrize("n", [2, 6, 8])
def test_a_tree_has_as_few_messages_as_a_star_and_no_device_has_all_of_them(n):
    tree = schedules.tree(n)
    levels = math.ceil(math.log2(n))
    assert len(tree.transfers) == 2 * (n - 1)
    assert tree.num_steps == 2 * levels
    assert tree.busiest_sent == tree.busiest_received == levels
    assert (tree.sent(0), tree.received(0)) == (levels, levels)
    for transfers in tree.steps:
        at_once = Counter(device for each in transfers for device in each[1:3])
        assert set(at_once.values()) == {1}


def test_halving_doubling_exchanges_halves_of_halves():
    schedule = schedules.halving_doubling(8)
    links = [
        {(each.sender, each.receiver) for each in transfers}
        for transfers in schedule.steps
    ]
    distances = [{abs(s - r) for s, r in pairs} for pairs in links]
    assert distances == [{4}, {2}, {1}, {1}, {2}, {4}]
    assert [len(transfers) for transfers in schedule.steps] == [32, 16, 8, 8, 16, 32]
    assert schedule.busiest_sent == schedule.busiest_received == Fraction(7, 4)


def test_halving_doubling_folds_the_extra_devices_in_and_out():
    first, *_, last = schedules.halving_doubling(6).steps
    assert {(e.sender, e.receiver, e.reduces) for e in first} == {
        (4, 0, True),
        (5, 1, True),
    }
    assert {(e.sender, e.receiver, e.reduces) for e in last} == {
        (0, 4, False),
        (1, 5, False),
    }


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_device_has_nothing_to_do(name):
    schedule = schedules.build(name, 1)
    assert schedule == TransferSchedule(name, 1, 1, ())
    assert (schedule.num_steps, schedule.steps, schedule.links) == (0, (), {})
    assert schedule.busiest_sent == schedule.busiest_received == 0
    assert schedule.owner(0) == 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_two_devices_exchange_halves_or_meet_at_the_first(name):
    schedule = schedules.build(name, 2)
    if name in ("reduce_then_broadcast", "tree"):
        assert schedule.transfers == (
            Transfer(0, 1, 0, 0, True),
            Transfer(1, 0, 1, 0, False),
        )
    else:
        assert schedule.transfers == schedules.ring(2).transfers


@pytest.mark.parametrize(
    ("name", "devices", "chunk", "message"),
    [
        *[(name, 0, 0, "at least 1 device; received 0") for name in SCHEDULES],
        (
            "star",
            4,
            0,
            "one of 'ring', 'reduce_then_broadcast', 'tree', .* received 'star'",
        ),
        ("ring", 4, -1, "ring has for 4 devices.* received -1"),
        ("ring", 4, 4, "ring has for 4 devices.* received 4"),
    ],
)
def test_what_no_schedule_has_is_refused(name, devices, chunk, message):
    with pytest.raises(ScheduleError, match=message):
        schedules.build(name, devices).owner(chunk)
