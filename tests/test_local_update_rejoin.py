"""A worker that was lost and started again takes part again: decisions, and in threads."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mailboxes_in_memory import Crew

from tests.deadline import DEADLINE
from tfdist.local_update import entry, rejoin
from tfdist.local_update.door import Door
from tfdist.local_update.rejoin import Move, RejoinError, Request

SETTINGS = "local_steps=1"


def request(worker=1, version=2, fit=1, settings=SETTINGS, nonce=7):
    return Request(worker, nonce, version, fit, settings)


@pytest.mark.parametrize(
    ("version", "asked", "move"),
    [
        (0, None, Move.LEAVE),
        (1, None, Move.ASK),
        (1, 2, Move.WAIT),
        (2, 2, Move.WAIT),
        # It was let in, and the process that it was then has ended.
        (2, None, Move.LEAVE),
        (4, 2, Move.LEAVE),
        (3, 2, Move.ASK),
    ],
)
def test_what_a_worker_does_to_come_back(version, asked, move):
    assert rejoin.next_move(version, asked) is move


def test_one_worker_comes_back_at_a_time_and_none_that_is_not_lost():
    requests = {i: request(i, version=2) for i in (1, 2, 3)}
    assert rejoin.chosen(requests, [0, 0, 1, 1]) == requests[2]
    assert rejoin.chosen(requests, [0, 2, 0, 0]) is None
    # It has asked before it was lost once more.
    assert rejoin.chosen(requests, [0, 3, 0, 0]) is None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request(), ""),
        (request(fit=1), "call number 2 of fit, and it is in number 1"),
        (
            request(settings="local_steps=3"),
            "has local_steps=3, and that of the others",
        ),
    ],
)
def test_a_request_that_cannot_be_granted_is_told_why(asked, words):
    fit = 2 if "number" in words else 1
    found = rejoin.refusal(asked, fit, SETTINGS)
    assert words in found
    assert bool(found) == bool(words)


def test_what_is_handed_over_is_what_was_packed():
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(4, np.int64)]
    info, received = rejoin.unpack(rejoin.pack({"a": [1, None]}, arrays))
    assert info == {"a": [1, None]}
    for mine, theirs in zip(arrays, rejoin.as_arrays(received, arrays), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist()
    with pytest.raises(RejoinError, match="run the same script on all workers"):
        rejoin.as_arrays(received, arrays[:1])


def test_a_request_is_what_was_packed():
    assert Request.unpack(request().pack()) == request()


class Run:
    """Workers that each average a vector again and again, and hand over their state."""

    def __init__(self, workers, victim, dies_in, rounds=40, fit=1):
        self.crew = Crew(workers)
        self.victim, self.dies_in, self.rounds, self.fit = victim, dies_in, rounds, fit
        self.is_back = threading.Event()
        for i, exchange in enumerate(self.crew.exchanges):
            exchange.door = self.door(i)

    def door(self, worker):
        transport = self.crew.transport(worker)
        return Door(transport, lambda r: rejoin.refusal(r, 1, SETTINGS), pause=0.001)

    def work(self, me, exchange):
        exchange.gather(np.array([me]))
        return self.mix(me, exchange, 0, np.float32([me]))

    def mix(self, me, exchange, begin, model, may_die=True):
        seen = []
        for number in range(begin, self.rounds):
            if may_die and (me, number) == (self.victim, self.dies_in):
                self.crew.gone.add(me)
                return self.come_back()
            if number >= self.rounds - 5 and not self.is_back.wait(DEADLINE):
                break
            model = exchange.mean(model + np.float32(me))
            if exchange.admitted is not None:
                exchange.hand_over({"number": number}, [model])
            seen.append(sorted(exchange.gather(np.array([number]))))
        return model.tobytes(), seen

    def come_back(self):
        me = self.victim
        exchange = self.crew.start_again(me)
        transport = self.crew.transport(me)
        assert entry.is_expected(transport, me, len(self.crew.exchanges))
        names = [f"worker:{i}" for i in range(len(self.crew.exchanges))]
        try:
            joiner = entry.Entry(exchange, transport, names, pause=0.001)
            info, arrays = joiner.enter(self.fit, SETTINGS)
        finally:
            self.is_back.set()
        exchange.door = self.door(me)
        (model,) = rejoin.as_arrays(arrays, [np.zeros(1, np.float32)])
        seen = [sorted(exchange.gather(np.array([info["number"]])))]
        found, more = self.mix(me, exchange, info["number"] + 1, model, may_die=False)
        return found, seen + more


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_lost_worker_takes_part_again_and_ends_with_the_same_model(victim, caplog):
    run = Run(3, victim, dies_in=4)
    found = run.crew.run(run.work, timeout=DEADLINE)
    assert len({model for model, _ in found.values()}) == 1
    for _, seen in found.values():
        assert seen[-1] == [0, 1, 2]
    for worker in {0, 1, 2} - {victim}:
        assert [0, 1, 2] in found[worker][1]
        assert run.crew.exchanges[worker].members.versions[victim] == 2
    assert f"worker:{victim} is back: training goes on with 3 of 3" in caplog.text
