"""How many functions are in flight, and the order of their results."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl

from tfdist import _tf
from tfdist.parameter_server.steps import in_flight as in_flight_module
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.sent_functions import Handlers

from ..support.deadline import DEADLINE


class Output(RemoteValueImpl):
    """What scheduling returns; the thread of a worker copies it."""

    def __init__(self, number):
        super().__init__(None, None)
        self.number = number

    def end(self):
        self._set_values(None)
        super().get()

    def get(self):
        assert self._has_fetched_to_local, "the thread of the worker is to copy it"
        return self.number


class Coordinator:
    """Finishes functions when the test says so, or when too many are in flight."""

    def __init__(self, ends_next):
        self.under_way = []
        self.most = 0
        self.ends_next = ends_next

    def schedule(self, function, args):
        output = Output(args[0])
        self.under_way.append(output)
        self.most = max(self.most, len(self.under_way))
        while (i := self.ends_next(len(self.under_way))) is not None:
            self.under_way.pop(i).end()
        return output

    def join(self):
        while self.under_way:
            self.under_way.pop().end()


@given(st.integers(1, 5), st.data())
def test_the_newest_result_is_never_older_than_one_before(limit, data):
    def ends_next(count):
        # Once `limit` are under way, one has to end for another to be submitted.
        if count < limit:
            return None
        return data.draw(st.integers(0, count - 1))

    coordinator = Coordinator(ends_next)
    in_flight, taken = InFlight(coordinator, limit), []

    def take(result, is_newest):
        taken.append((result, is_newest))

    for number in range(20):
        in_flight.submit(None, number, Handlers(on_result=take))
    assert coordinator.most <= limit
    in_flight.join()
    assert sorted(result for result, _ in taken) == [*range(20)]
    newest = [result for result, is_newest in taken if is_newest]
    assert newest == sorted(newest)
    assert newest[-1] == 19
    assert in_flight.under_way() == []


def test_a_slow_function_holds_up_nothing_but_itself():
    coordinator = Coordinator(lambda count: 1 if count >= 2 else None)
    in_flight, results = InFlight(coordinator, limit=2), []
    for number in range(1000):
        handlers = Handlers(on_result=lambda result, _: results.append(result))
        in_flight.submit(None, number, handlers)
    assert results == [*range(1, 999)]
    assert in_flight.finished == 998
    assert in_flight.under_way() == [(0, 1), (999, 1)]
    in_flight.join()
    assert results == [*range(1, 999), 0, 999]
    assert in_flight.under_way() == []


def test_what_has_ended_is_under_way_until_the_weights_have_it():
    """A checkpoint puts back the batches of a round that has not ended."""
    coordinator, applied = Coordinator(lambda count: 0 if count > 1 else None), set()
    in_flight = InFlight(coordinator, limit=2)
    for number in range(4):
        in_flight.submit(
            None,
            number,
            Handlers(on_end=lambda result: lambda: result in applied),
            batches=number,
        )
    in_flight.join()
    assert in_flight.under_way() == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert in_flight.under_way(since=2) == [(2, 1), (3, 1)]
    applied |= {0, 1}
    assert in_flight.under_way() == [(2, 1), (3, 1)]
    applied |= {2, 3}
    assert in_flight.under_way() == []


class Clock:
    """The time of functions that end at certain times: a wait for one moves it."""

    def __init__(self, monkeypatch, coordinator, ends):
        self.now, self.coordinator, self.ends = 0.0, coordinator, ends
        monkeypatch.setattr(in_flight_module, "time", self)
        monkeypatch.setattr(in_flight_module._tf, "wait_for_result", self.wait)

    def monotonic(self):
        return self.now

    def wait(self, output, seconds):
        self.now += min(seconds, max(self.ends[output.number] - self.now, 0))
        for each in [*self.coordinator.under_way]:
            if self.ends[each.number] <= self.now:
                self.coordinator.under_way.remove(each)
                each.end()
        return self.ends[output.number] <= self.now


NEVER = math.inf


@pytest.mark.parametrize(
    ("ends", "renewed", "late", "seconds"),
    [
        ([1, 1.5], False, [], 1.5),
        ([1, 3, 4.5], False, [1, 2], 2),
        ([1, 3, 4.5], True, [], 4.5),
        ([NEVER, 1, 2], True, [0], 4),
        ([NEVER], True, [0], 2),
    ],
)
def test_a_slow_function_is_waited_for_a_limited_time(
    monkeypatch, ends, renewed, late, seconds
):
    coordinator = Coordinator(lambda count: None)
    in_flight, joins = InFlight(coordinator, limit=9), []
    monkeypatch.setattr(in_flight.rounds, "complete", lambda: joins.append(1))
    for number in range(len(ends)):
        in_flight.submit(None, number)
    clock = Clock(monkeypatch, coordinator, ends)
    in_flight.wait(2, renewed)
    assert in_flight.under_way() == [(number, 1) for number in late]
    assert clock.now == pytest.approx(seconds, abs=0.1)
    assert bool(joins) is not bool(late)


def test_a_function_that_outlasted_a_wait_is_not_waited_for_again(monkeypatch):
    ends = [NEVER]
    coordinator = Coordinator(lambda count: None)
    in_flight = InFlight(coordinator, limit=9)
    in_flight.submit(None, 0)
    clock = Clock(monkeypatch, coordinator, ends)
    in_flight.wait(2)
    ends.append(2.5)
    in_flight.submit(None, 1)
    in_flight.wait(2)
    assert in_flight.under_way() == [(0, 1)]
    assert clock.now == 2.5


def test_what_an_error_has_left_is_not_late_in_the_next_fit():
    in_flight = InFlight(
        Coordinator(lambda count: count - 1 if count else None), limit=4
    )
    for number in range(2):  # Of a round that an error has ended.
        in_flight.submit(None, number, Handlers(on_end=lambda _: lambda: False))
    in_flight.join_functions()
    assert in_flight.under_way() == [(0, 1), (1, 1)]
    assert in_flight.under_way(since=1) == [(1, 1)]
    in_flight.drain()
    assert in_flight.under_way() == []


def test_a_result_is_waited_for_until_it_is_on_the_chief():
    output = RemoteValueImpl(None, None)
    assert not _tf.wait_for_result(output, 0.01)
    output._set_values(None)
    assert not _tf.wait_for_result(output, 0)
    assert not _tf.wait_for_result(output, 0.01)
    copying = threading.Timer(0.1, output.get)
    copying.start()
    assert _tf.wait_for_result(output, DEADLINE)
    copying.join()
    failed = RemoteValueImpl(None, None)
    failed._set_error(ValueError())
    assert _tf.wait_for_result(failed, 0)
