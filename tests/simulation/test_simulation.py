"""The simulation: nothing is lost, nothing exceeds its capacity, nobody waits for nothing."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.research.simulation.process import Process, Store, sleep
from tfdist.research.simulation.resources import (
    Demand,
    Resources,
    SharedResource,
    max_min_rates,
)
from tfdist.research.simulation.simulator import Event, Simulator

from ..support.raising import raises

amounts = st.floats(0.01, 100.0)
activities = st.lists(
    st.tuples(
        st.floats(0.0, 5.0),  # its start
        amounts,
        st.sets(st.sampled_from([0, 1, 2]), min_size=1),
        st.one_of(st.just(math.inf), st.floats(0.1, 10.0)),
    ),
    min_size=1,
    max_size=12,
)


def test_actions_run_in_the_order_of_their_times_then_of_their_requests():
    simulator, seen = Simulator(), []
    for name, delay in (("late", 2.0), ("a", 1.0), ("b", 1.0)):
        simulator.after(delay, lambda name=name: seen.append((simulator.now, name)))
    simulator.after(1.5, lambda: seen.append("never")).cancel()
    simulator.run(until=10.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "late")]
    assert simulator.now == 10.0


def test_a_run_ends_where_it_is_told_to():
    simulator, seen = Simulator(), []
    for delay in (1.0, 2.0, 3.0):
        simulator.after(delay, lambda: seen.append(simulator.now))
    simulator.run(until=1.5)
    assert (seen, simulator.now) == ([1.0], 1.5)
    simulator.after(0.5, simulator.stop)
    simulator.run()
    assert seen == [1.0, 2.0]
    simulator.run()
    assert seen == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("delay", [-1.0, math.nan])
def test_time_does_not_run_backwards(delay):
    with raises(ValueError, "0 seconds"):
        Simulator().after(delay, lambda: None)


def test_an_event_happens_once():
    event, seen = Event(), []
    event.then(seen.append)
    event.happen(7)
    event.then(seen.append)
    assert seen == [7, 7]
    with raises(RuntimeError, "once"):
        event.happen()


def test_a_process_returns_what_its_generator_returns():
    simulator = Simulator()

    def inner(seconds):
        yield sleep(simulator, seconds)
        return seconds

    def outer():
        values = [Process(simulator, inner(seconds)) for seconds in (1.0, 3.0)]
        # The second has ended, and the first long before it.
        return (yield values[1]), (yield values[0]), simulator.now

    process = Process(simulator, outer())
    simulator.run()
    assert process.value == (3.0, 1.0, 3.0)


def test_a_store_serves_in_order():
    store = Store(["first"])
    events = [store.take() for _ in range(3)]
    store.put("second")
    store.put("third")
    store.put("rest")
    assert [event.value for event in events] == ["first", "second", "third"]
    assert len(store) == 1


@pytest.mark.parametrize(
    ("demands", "capacities", "rates"),
    [
        ([Demand(4, {0: 1.0})], [10.0], [2.5]),
        ([Demand(1, {0: 1.0}, 1.0), Demand(3, {0: 1.0})], [10.0], [1.0, 3.0]),
        # The textbook's line of two links: one long flow, one short flow on each.
        (
            [Demand(1, {0: 1.0, 1: 1.0}), Demand(1, {0: 1.0}), Demand(1, {1: 1.0})],
            [2.0, 4.0],
            [1.0, 1.0, 3.0],
        ),
        # Half of each transfer goes through this link.
        ([Demand(2, {0: 0.5})], [1.0], [1.0]),
        ([Demand(1, {}, 3.0), Demand(0, {0: 1.0})], [1.0], [3.0, 0.0]),
    ],
)
def test_shares(demands, capacities, rates):
    assert max_min_rates(demands, capacities) == pytest.approx(rates)


@given(
    st.lists(
        st.builds(
            Demand,
            st.integers(1, 50),
            st.dictionaries(st.integers(0, 3), st.floats(0.1, 3.0), min_size=1),
            st.one_of(st.just(math.inf), st.floats(0.01, 10.0)),
        ),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.floats(0.1, 100.0), min_size=4, max_size=4),
)
def test_no_resource_is_exceeded_and_nobody_could_go_faster(demands, capacities):
    rates = max_min_rates(demands, capacities)
    loads = [
        sum(
            demand.count * rate * demand.uses.get(at, 0.0)
            for demand, rate in zip(demands, rates, strict=True)
        )
        for at in range(4)
    ]
    for load, capacity in zip(loads, capacities, strict=True):
        assert load <= capacity * (1 + 1e-9)
    full = {at for at in range(4) if loads[at] >= capacities[at] * (1 - 1e-9)}
    for demand, rate in zip(demands, rates, strict=True):
        assert rate >= demand.limit * (1 - 1e-9) or full & set(demand.uses)


def test_an_activity_needs_something_that_limits_it():
    with raises(ValueError, "a limit or a resource"):
        Demand(1, {})


@settings(deadline=None)
@given(activities, st.lists(st.floats(0.5, 20.0), min_size=3, max_size=3))
def test_work_is_conserved(given_activities, capacities):
    simulator = Simulator()
    resources = Resources(simulator)
    shared = [SharedResource(str(at), each) for at, each in enumerate(capacities)]
    ends = []

    def start(amount, uses, limit):
        begun = simulator.now
        event = resources.run(amount, {shared[at]: 1.0 for at in uses}, limit)
        event.then(lambda _: ends.append((begun, simulator.now, amount, limit)))
        for resource, rate in resources.rates().items():
            assert rate <= resource.capacity * (1 + 1e-9)

    for when, amount, uses, limit in given_activities:
        simulator.after(
            when,
            lambda amount=amount, uses=uses, limit=limit: start(amount, uses, limit),
        )
    simulator.run()
    resources.advance()
    assert len(ends) == len(given_activities)
    assert resources.active == 0
    for at, resource in enumerate(shared):
        asked = sum(amount for _, amount, uses, _ in given_activities if at in uses)
        assert resource.used == pytest.approx(asked, rel=1e-6, abs=1e-9)
        assert resource.used <= resource.capacity * simulator.now * (1 + 1e-6)
    for begun, ended, amount, limit in ends:
        fastest = min(limit, max(capacities))
        assert ended - begun >= amount / fastest * (1 - 1e-6)


@given(st.integers(1, 64), st.integers(1, 16), st.floats(0.0, 1.0))
@settings(deadline=None, max_examples=30)
def test_amdahls_law(parts, workers, serial):
    """One serial part, then a part that any number of workers divide among them."""
    simulator = Simulator()
    resources = Resources(simulator)
    cores = SharedResource("cores", float(workers))

    def job():
        yield resources.run(serial, {cores: 1.0}, limit=1.0)
        share = (1.0 - serial) / (workers * parts)
        for _ in range(parts):
            yield from [resources.run(share, {cores: 1.0}, 1.0) for _ in range(workers)]

    Process(simulator, job())
    simulator.run()
    assert simulator.now == pytest.approx(serial + (1.0 - serial) / workers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, {}, 1.0), "amount >= 0"),
        ((math.nan, {}, 1.0), "amount >= 0"),
        ((1.0, {}, 0.0), "limit > 0"),
    ],
)
def test_an_impossible_activity_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Resources(Simulator()).run(*arguments)


def test_what_shares_by_way_of_another_slows_down():
    """The middle activity joins two that are under way, and that knew nothing of each other."""
    simulator, ends = Simulator(), []
    resources = Resources(simulator)
    left, right = SharedResource("left", 1.0), SharedResource("right", 1.0)

    def start(amount, *uses):
        event = resources.run(amount, dict.fromkeys(uses, 1.0))
        event.then(lambda _: ends.append((len(uses), simulator.now)))

    start(2.0, left)
    start(3.0, right)
    simulator.after(1.0, lambda: start(1.0, left, right))
    simulator.run()
    assert sorted(ends) == [(1, 3.0), (1, 4.0), (2, 3.0)]
    resources.advance()
    assert (left.used, right.used) == (3.0, 4.0)


def test_nothing_slows_down_what_uses_nothing():
    simulator = Simulator()
    assert Resources(simulator).run(5.0, {}).has_happened


def test_a_resource_has_a_capacity():
    with raises(ValueError, "'link'"):
        SharedResource("link", 0.0)
