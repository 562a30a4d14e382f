"""How many functions are in flight, and the order of their results."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from tfdist.parameter_server.fit.in_flight import InFlight


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
def test_no_result_comes_after_a_later_one(limit, data):
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
    in_flight.join()
    assert results == sorted(set(results))
    assert results[-1] == 19
    assert in_flight.under_way(20) == []


def test_a_slow_function_holds_up_nothing_but_itself():
    coordinator = Coordinator(lambda count: 1 if count >= 2 else None)
    in_flight, results = InFlight(coordinator, limit=2), []
    for number in range(1000):
        in_flight.submit(None, number, results.append)
    assert results == [*range(1, 999)]
    assert in_flight.under_way(999) == [(0, 1)]
    assert in_flight.finished == 998
    assert in_flight.under_way(1000) == [(0, 1), (999, 1)]
    in_flight.join()
    assert results == [*range(1, 1000)]
    assert in_flight.under_way(1000) == []
