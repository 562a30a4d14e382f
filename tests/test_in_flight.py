"""How many functions are under way at once, and in which order results come."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.keras import in_flight as in_flight_module
from tfdist.keras.in_flight import InFlight


class Output:
    """What scheduling returns, and the event that tfdist._tf looks at."""

    def __init__(self, number):
        self.number = number
        self._status_available_event = threading.Event()

    def end(self):
        self._status_available_event.set()

    def get(self):
        assert self._status_available_event.wait(10)
        return self.number


class Coordinator:
    """Ends functions when a test has it do so, or when too many are under way."""

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
def test_results_come_in_order_whichever_function_ends_first(limit, data):
    def ends_next(count):
        # Once `limit` are under way, one has to end for another to be submitted.
        if count < limit:
            return None
        return data.draw(st.integers(0, count - 1))

    coordinator = Coordinator(ends_next)
    in_flight, results = InFlight(coordinator, limit), []
    for number in range(20):
        in_flight.submit(None, number, results.append)
    assert coordinator.most <= limit
    assert results == [*range(len(results))]
    in_flight.join()
    assert results == [*range(20)]
    assert in_flight.finished == in_flight.submitted == 20


def test_a_slow_function_does_not_hold_up_the_others(monkeypatch):
    coordinator = Coordinator(lambda count: 1 if count >= 2 else None)
    in_flight, results = InFlight(coordinator, limit=2), []
    for number in range(30):
        in_flight.submit(None, number, results.append)
    assert (results, in_flight.finished) == ([], 0)
    in_flight.join()
    assert results == [*range(30)]


@pytest.mark.timeout(60)
def test_results_do_not_pile_up_without_end(monkeypatch):
    monkeypatch.setattr(in_flight_module, "_RESULTS_AHEAD", 3)
    coordinator = Coordinator(lambda count: 1 if count >= 2 else None)
    in_flight, results = InFlight(coordinator, limit=2), []
    for number in range(6):
        in_flight.submit(None, number, results.append)
    [slow] = coordinator.under_way
    assert (slow.number, results) == (0, [])
    threading.Timer(0.1, slow.end).start()
    in_flight.submit(None, 6, results.append)
    assert results[0] == 0
