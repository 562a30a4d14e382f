"""A worker that was lost and started again takes part again: decisions, and in threads."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdist.local_update import handover, rejoin, rejoining
from tfdist.local_update.message import Call, pack, unpack
from tfdist.local_update.rejoin import RejoinError, RejoinListener, RejoinRequest
from tfdist.local_update.rejoining import Move
from tfdist.local_update.sharing import DataPlace, SharedData

from ..support.deadline import DEADLINE
from ..support.raising import raises
from .mailboxes_in_memory import Crew, Dies

SETTINGS = "local_steps=1"


def request(worker=1, version=2, fit=1, settings=SETTINGS, nonce=7):
    return RejoinRequest(worker, nonce, version, fit, settings)


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
    assert rejoining.next_move(version, asked) is move


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
    info, received = unpack(pack({"a": [1, None]}, arrays))
    assert info == {"a": [1, None]}
    for mine, theirs in zip(arrays, handover.as_arrays(received, arrays), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist()
    with raises(RejoinError, "same script"):
        handover.as_arrays(received, arrays[:1])


class Run:
    """Workers that each average a vector again and again, and hand over their state.

    Args:
        workers: How many.
        victim: Which one is lost.
        how: What becomes of it: see `come_back`.
        fit: In which call of `fit` it asks to come back; the others are in the first.
    """

    ROUNDS, DIES_IN = 40, 4

    def __init__(self, workers, victim, how="noticed", fit=1):
        self.crew = Crew(workers)
        self.victim, self.how, self.fit = victim, how, fit
        self.is_back = threading.Event()
        self.is_noticed = threading.Event()
        for i, exchange in enumerate(self.crew.exchanges):
            exchange.rejoin_listener = self.rejoin_listener(i)

    def rejoin_listener(self, worker):
        transport = self.crew.transport(worker)
        return RejoinListener(
            transport, lambda r: rejoin.refusal(r, 1, SETTINGS), pause=0.001
        )

    def work(self, me, exchange):
        exchange.gather(np.array([me]))
        return self.mix(me, exchange, 0, np.float32([me]))

    def mix(self, me, exchange, begin, model, may_die=True):
        seen = []
        for number in range(begin, self.ROUNDS):
            if may_die and (me, number) == (self.victim, self.DIES_IN):
                self.crew.gone.add(me)
                return self.come_back()
            if number >= self.ROUNDS - 5:
                assert self.is_back.wait(DEADLINE)
            model = exchange.mean(model + np.float32(me))
            if self.victim not in exchange.members.present:
                self.is_noticed.set()
            if exchange.admitted is not None:
                self.hand_over(me, exchange, number, model)
            seen.append(sorted(exchange.gather(np.array([number]))))
        return model.tobytes(), seen

    def hand_over(self, me, exchange, number, model):
        exchange.hand_over({"number": number}, [model])

    def come_back(self):
        if self.how == "noticed":
            assert self.is_noticed.wait(DEADLINE)
        exchange = self.crew.start_again(self.victim)
        try:
            if self.how == "twice":
                self.only_ask(exchange)
                exchange = self.crew.start_again(self.victim)
            info, model = self.enter(exchange)
        finally:
            self.is_back.set()
        exchange.rejoin_listener = self.rejoin_listener(self.victim)
        seen = [sorted(exchange.gather(np.array([info["number"]])))]
        begin = info["number"] + 1
        found, more = self.mix(self.victim, exchange, begin, model, may_die=False)
        return found, seen + more

    def rejoining(self, exchange):
        names = [f"worker:{i}" for i in range(len(self.crew.exchanges))]
        transport = self.crew.transport(self.victim)
        return transport, rejoining.Rejoining(exchange, transport, names, pause=0.001)

    def enter(self, exchange):
        transport, joiner = self.rejoining(exchange)
        assert rejoining.is_expected(transport, self.victim, len(self.crew.exchanges))
        info, arrays = joiner.enter(self.fit, SETTINGS)
        return info, handover.as_arrays(arrays, [np.zeros(1, np.float32)])[0]

    def only_ask(self, exchange):
        """A process that is let in, and ends before it has taken part."""
        transport, joiner = self.rejoining(exchange)
        asked = RejoinRequest(self.victim, 5, 0, 1, SETTINGS)
        while True:
            lead, version = joiner._look()
            if lead is None:
                continue
            joiner._move(version, asked)
            answer = transport.read_aside(lead)
            if answer is not None and answer.key == 5:
                return


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("how", ["noticed", "at once", "twice"])
def test_a_lost_worker_takes_part_again_and_ends_with_the_same_model(
    victim, how, caplog
):
    run = Run(3, victim, how)
    found = run.crew.run(run.work, timeout=DEADLINE)
    assert len({model for model, _ in found.values()}) == 1
    for _, seen in found.values():
        assert seen[-1] == [0, 1, 2]
    for worker in {0, 1, 2} - {victim}:
        alone = [each for each in found[worker][1] if victim not in each]
        assert alone or how != "noticed"
        version = run.crew.exchanges[worker].members.versions[victim]
        assert version == (4 if how == "twice" else 2)
    assert f"worker:{victim} is back: training goes on with 3 of 3" in caplog.text


def test_one_that_cannot_take_part_is_told_why_and_the_others_go_on():
    run = Run(3, victim=1, fit=2)
    run.come_back, come_back = lambda: told(come_back), run.come_back

    def told(function):
        with raises(RejoinError, "worker:1", "number 2"):
            function()

    found = run.crew.run(run.work, timeout=DEADLINE)
    assert found[1] is None
    assert found[0][1][-1] == found[2][1][-1] == [0, 2]


def test_the_next_one_that_leads_lets_it_in_if_the_first_ends_before_it_has():
    run = Run(4, victim=2)
    hand_over = run.hand_over

    def dies(me, exchange, number, model):
        if me == 0:
            run.crew.gone.add(0)
            raise Dies
        hand_over(me, exchange, number, model)

    def work(me, exchange):
        try:
            return Run.work(run, me, exchange)
        except Dies:
            return None

    run.hand_over = dies
    found = run.crew.run(work, timeout=DEADLINE)
    assert found.pop(0) is None
    assert len({model for model, _ in found.values()}) == 1
    assert all(seen[-1] == [1, 2, 3] for _, seen in found.values())


def test_one_whose_peers_have_all_ended_is_told_so():
    crew = Crew(2)
    crew.run(lambda i, exchange: exchange.gather(np.zeros(1)))
    crew.gone.add(0)
    transport = crew.transport(1)
    joiner = rejoining.Rejoining(
        crew.start_again(1), transport, ["a", "b"], pause=0.001
    )
    with raises(RejoinError, "b was started again", "ended"):
        joiner.enter(1, SETTINGS)


def test_a_worker_that_starts_with_the_others_is_not_taken_for_one_that_was_lost():
    crew = Crew(3)
    transport = crew.transport(2)
    assert not rejoining.is_expected(transport, 2, 3)
    crew.exchanges[0]._publish_next(Call.GATHER, np.zeros(1, np.uint8))
    assert not rejoining.is_expected(transport, 2, 3)
    crew.exchanges[0]._publish_next(Call.GATHER, np.zeros(1, np.uint8))
    assert rejoining.is_expected(transport, 2, 3)


def test_a_server_that_joins_last_is_not_taken_for_one_that_was_lost():
    crew = Crew(2)
    waits = threading.Event()
    transport = crew.exchanges[1].transport
    read = transport.read
    transport.read = lambda *place: waits.set() or read(*place)

    def work(index, exchange):
        expected = None
        if index == 0:
            assert waits.wait(DEADLINE)
            expected = rejoining.is_expected(crew.transport(0), 0, 2)
        exchange.barrier()
        exchange.to_lead(np.zeros(1))
        exchange.from_lead(np.zeros(1), 0)
        return expected

    assert crew.run(work) == {0: False, 1: None}


class FakeWorkers:
    """What `SharedData` asks workers about, without others."""

    def __init__(self, me, present):
        self.members = SimpleNamespace(me=me, present=present)

    def gather_numbers(self, numbers):
        return np.array([[3, *numbers[1:]]])

    def distribute_shares(self, shares):
        return shares


def rows_of(shares, epochs, steps):
    found = []
    for _ in range(epochs):
        values = iter(shares).values
        for _ in range(steps):
            count, _, (batch,) = next(values)
            found.append(batch.numpy().tolist()[: int(count)])
    return found, shares.place(0)


def data_of(kind):
    from keras.src.trainers.data_adapters import array_data_adapter, tf_dataset_adapter

    numbers = np.arange(60.0)
    if kind == "arrays":
        return array_data_adapter.ArrayDataAdapter(numbers, batch_size=6, shuffle=True)
    dataset = tf.data.Dataset.from_tensor_slices(numbers)
    seed = 5 if kind == "seeded" else None
    return tf_dataset_adapter.TFDatasetAdapter(dataset.shuffle(60, seed=seed).batch(6))


@pytest.mark.parametrize("kind", ["arrays", "seeded", "unseeded"])
def test_who_comes_back_reads_on_where_the_others_are(kind):
    straight = SharedData(data_of(kind), FakeWorkers(1, [0, 1, 2]))
    rows_of(straight, 2, 10)
    values = iter(straight).values
    for _ in range(4):
        next(values)
    place = straight.place(0)
    assert (place.opened, place.taken) == (3, 4)
    again = SharedData(data_of(kind), FakeWorkers(1, [0, 1]), place)
    mine = iter(again).values
    for _ in range(6):
        theirs, ours = next(values), next(mine)
        assert int(theirs[0]) == int(ours[0]) == 2
        assert theirs[2][0].numpy().tolist() == ours[2][0].numpy().tolist()


def test_who_had_no_rows_of_an_epoch_takes_none_until_the_next():
    place = DataPlace([0, 2], opened=1, taken=3)
    shares = SharedData(data_of("arrays"), FakeWorkers(1, [0, 1, 2]), place)
    found, after = rows_of(shares, 2, 7)
    assert [len(each) for each in found] == [0] * 7 + [2] * 7
    assert (after.opened, list(after.sharers)) == (2, [0, 1, 2])
