"""What workers compute from each other's mailboxes, and what they do about a lost one."""

import itertools
import threading

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist import _tf
from tfdist.local_update import mixing
from tfdist.local_update.local_peers import LocalPeers
from tfdist.local_update.message import (
    Call,
    Message,
    bytes_of,
    header_bytes,
    message_of,
)
from tfdist.local_update.messenger import (
    GivenUpError,
    OutOfStepError,
    TooFewWorkersError,
)
from tfdist.local_update.steps import LocalFunction

from ..support.deadline import DEADLINE
from ..support.raising import raises
from .mailboxes_in_memory import Crew, Dies


def vector_of(worker, size=10):
    return np.random.RandomState(worker).normal(size=size).astype("float32")


def test_a_message_is_what_was_packed():
    payload = np.arange(7, dtype=np.uint8)
    packed = Message(3, 5, [0, 1, 2], payload).pack()
    end = header_bytes(3)
    found = message_of(packed[:end], packed[end:])
    assert (found.key, found.begin, list(found.versions)) == (3, 5, [0, 1, 2])
    assert found.payload.tolist() == payload.tolist()


@settings(max_examples=25, deadline=None)
@given(workers=st.integers(1, 5), size=st.integers(0, 23))
def test_the_mean_is_that_of_all_vectors_and_the_same_on_all(workers, size):
    crew = Crew(workers)
    found = crew.run(lambda i, exchange: exchange.mean(vector_of(i, size)))
    expected = np.mean([vector_of(i, size) for i in range(workers)], axis=0)
    for each in found.values():
        assert each.tobytes() == found[0].tobytes()
        np.testing.assert_allclose(each, expected, rtol=1e-6, atol=1e-7)


def test_the_mean_costs_twice_the_vector_but_for_the_own_part():
    workers, size = 4, 1000
    crew = Crew(workers)
    crew.run(lambda i, exchange: exchange.mean(vector_of(i, size)))
    headers = 2 * (workers - 1) * header_bytes(workers)
    for exchange in crew.exchanges:
        assert (
            exchange.received_bytes - headers == 2 * (workers - 1) * size * 4 // workers
        )


def test_every_worker_gets_the_arrays_of_all():
    crew = Crew(3)
    found = crew.run(lambda i, exchange: exchange.gather(np.array([i, 10 * i])))
    for each in found.values():
        assert {i: a.tolist() for i, a in each.items()} == {
            0: [0, 0],
            1: [1, 10],
            2: [2, 20],
        }


def test_gossip_keeps_the_mean_and_shrinks_the_distance_as_its_matrix_says():
    policy = mixing.Gossip(mixing.ring).on(6)
    crew = Crew(6)
    models = np.stack([vector_of(i).astype("float64") for i in range(6)])
    matrix = policy.topology.matrix()
    for round_index in range(4):

        def mix(i, exchange, models=models, round_index=round_index):
            weights = policy.weights(i, round_index, exchange.members.present)
            return exchange.average(models[i], weights)

        found = np.stack([each for _, each in sorted(crew.run(mix).items())])
        np.testing.assert_allclose(found, matrix @ models, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.mean(0), models.mean(0), atol=1e-12)
        models = found


@pytest.mark.parametrize("how", ["gone", "silent"])
def test_the_others_go_on_without_a_lost_worker(how, caplog):
    crew = Crew(4)
    crew.run(lambda i, exchange: exchange.mean(vector_of(i)))
    getattr(crew, how).add(2)
    crew.run(lambda i, exchange: exchange.mean(vector_of(i)))
    found = crew.run(lambda i, exchange: exchange.mean(vector_of(i)))
    expected = np.mean([vector_of(i) for i in (0, 1, 3)], axis=0)
    for i, each in found.items():
        np.testing.assert_allclose(each, expected, rtol=1e-6)
        assert crew.exchanges[i].members.present == [0, 1, 3]
    lines = [each.message for each in caplog.records if "worker:2" in each.message]
    assert len(lines) == 3  # one for each that is left
    assert all("training goes on with 3 of 4 workers" in line for line in lines)
    if how == "silent":
        assert all("for 1 s (peer_timeout)" in line for line in lines)


def test_fewer_workers_than_are_needed_do_not_go_on():
    crew = Crew(4)
    for each in crew.exchanges:
        each.needed = 3
    crew.gone.add(3)
    crew.run(lambda i, exchange: exchange.gather(vector_of(i)))
    crew.gone.add(1)

    def run(i, exchange):
        with raises(TooFewWorkersError, "worker:1, worker:3", "2 of 4"):
            exchange.barrier(is_quiet=False)
        exchange.barrier()  # At the end of `fit`, others may have ended.

    crew.run(run)


def test_a_part_that_its_owner_took_along_stays_as_it_is():
    crew = Crew(3)
    crew.gone.add(2)
    found = crew.run(lambda i, exchange: exchange.mean(vector_of(i, 9)))
    expected = np.mean([vector_of(i, 9) for i in (0, 1)], axis=0)
    for i, each in found.items():
        np.testing.assert_allclose(each[:6], expected[:6], rtol=1e-6)
        assert each[6:].tolist() == vector_of(i, 9)[6:].tolist()


def test_the_weight_of_a_lost_neighbour_goes_to_the_own_model():
    crew = Crew(3)
    crew.gone.add(1)
    weights = {0: 0.5, 1: 0.25, 2: 0.25}
    found = crew.run(
        lambda i, exchange: exchange.average(np.full(2, i, "float32"), weights)
    )
    assert found[0].tolist() == [0.5, 0.5]  # 0.75 * 0 + 0.25 * 2


def test_one_that_leaves_is_not_waited_for_and_is_told_what_to_do(caplog):
    crew = Crew(3)
    crew.exchanges[1].leave()
    with pytest.raises(GivenUpError):
        crew.exchanges[1].gather(np.zeros(1))
    others = [crew.exchanges[0], crew.exchanges[2]]
    crew.exchanges = [others[0], None, others[1]]
    found = crew.run(lambda i, exchange: exchange and exchange.mean(vector_of(i)))
    assert crew.exchanges[0].members.present == [0, 2]
    assert "worker:1 has left" in caplog.text
    assert len(found[0]) == 10


def test_a_state_that_was_left_unequal_is_averaged_twice():
    """As the outer optimizer's is: worker 1 notices the loss a mean later."""
    crew = Crew(3)
    crew.gone.add(2)
    crew.exchanges[0].members.lose(2)
    calls = {0: [], 1: []}

    def rounds(i, exchange):
        state = np.full(4, i, "float32")
        for number in range(5):
            exchange.mean(vector_of(i))
            if exchange.has_changed:
                calls[i].append(number)
                state = exchange.mean_again(state)
        return state

    found = crew.run(rounds)
    assert calls == {0: [0, 1], 1: [0, 1]}
    assert found[0].tolist() == found[1].tolist() == [0.5] * 4


def test_those_that_average_again_do_not_wait_for_those_that_do_not():
    crew = Crew(3)

    def rounds(i, exchange):
        vector = exchange.mean(vector_of(i))
        state = np.full(3, i, "float32")
        if i != 1:
            state = exchange.mean_again(state)
        return exchange.mean(vector), state

    found = crew.run(rounds)
    assert len({vector.tobytes() for vector, _ in found.values()}) == 1
    assert found[1][1].tolist() == [1.0] * 3
    assert found[0][1][0] == found[2][1][0] == 1.0


def test_one_that_was_started_again_is_told_by_its_second_message():
    crew = Crew(3)
    crew.run(lambda i, exchange: exchange.mean(vector_of(i)))
    crew.gone.add(1)
    crew.run(lambda i, exchange: exchange.mean(vector_of(i)))
    crew.gone.remove(1)
    again = crew.start(1)
    again.gather(np.zeros(1))
    with raises(GivenUpError, "worker:1", "again"):
        again.gather(np.zeros(1))


@pytest.mark.parametrize("messages", [2, 3, 4])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_what_an_outer_optimizer_keeps_becomes_equal_again(victim, messages):
    """Whichever message was the last one of a worker, and whoever has read it."""

    def rounds(i, exchange):
        random = np.random.RandomState(i)
        anchor, speed = np.zeros(5, "float32"), np.zeros(5, "float32")
        try:
            for _ in range(6):
                local = anchor + random.normal(size=5).astype("float32")
                mean = exchange.mean(local)
                if exchange.has_changed:
                    state = exchange.mean_again(np.concatenate([anchor, speed]))
                    anchor, speed = state[:5], state[5:]
                speed = 0.9 * speed + (anchor - mean)
                anchor = anchor - 0.7 * speed
        except Dies:
            return b""
        return np.concatenate([anchor, speed]).tobytes()

    for has_read in itertools.product(range(3), repeat=2):
        crew = Crew(3)
        crew.let_die(victim, messages, has_read)
        found = crew.run(rounds)
        one, other = (each for i, each in found.items() if i != victim)
        assert one == other, has_read


def test_who_leaves_lets_the_others_read_its_last_message():
    crew = Crew(3)
    has_left = threading.Event()

    def run(me, exchange):
        if me == 0:
            found = exchange.gather(np.array([me]))
            exchange.leave()
            has_left.set()
            return sorted(found), None
        if me == 1:
            exchange._publish_next(
                Call.GATHER, bytes_of(np.array([me]))
            )  # What worker 0 waits for.
            assert has_left.wait(DEADLINE)
            exchange._next_key = 0
        found = exchange.gather(np.array([me]))
        return sorted(found), sorted(exchange.gather(np.array([me])))

    found = crew.run(run, timeout=DEADLINE)
    assert found == {
        0: ([0, 1, 2], None),
        1: ([0, 1, 2], [1, 2]),
        2: ([0, 1, 2], [1, 2]),
    }


def test_who_ends_because_of_a_text_lets_the_others_read_its_own():
    crew = Crew(3)

    def run(me, exchange):
        texts = LocalPeers(exchange, ["a", "b", "c"]).gather_texts("x" * me)
        crew.gone.add(me)
        return texts

    found = crew.run(run, timeout=DEADLINE)
    assert list(found.values()) == [{"a": "", "b": "x", "c": "xx"}] * 3


@pytest.mark.parametrize("ends_early", ["part", "fit"])
@pytest.mark.parametrize("others", ["mean", "average"])
def test_a_worker_that_does_something_else_mixes_with_nobody(ends_early, others):
    """One has ended its fit, or has begun another, while the others still mix."""

    def run(me, exchange):
        exchange.fit = 1
        vector = np.full(6, float(me))
        exchange.mean(vector)
        try:
            if me == 1 and ends_early == "part":
                exchange.barrier()
            elif me == 1:
                exchange.fit = 2
            if others == "mean":
                return exchange.mean(vector)
            return exchange.average(vector, {0: 0.25, 1: 0.5, 2: 0.25})
        except OutOfStepError as error:
            exchange.leave()
            return str(error)

    found = Crew(3).run(run)
    for words in found.values():
        assert "All workers must take equally many steps" in words


@pytest.mark.parametrize("is_compiled", [True, False])
def test_xla_compiles_a_local_step_if_it_is_told_to(is_compiled):
    def step(x):
        return 2 * x

    model = keras.Sequential()
    model.compile("sgd", jit_compile=is_compiled)
    doubled = LocalFunction(model, step)
    for rows in (2, 3):
        np.testing.assert_array_equal(
            doubled.on_batch(np.ones([rows, 1])), [[2.0]] * rows
        )
    (called,) = doubled._traced.values()
    calls = called.get_concrete_function().graph.get_operations()
    assert any(map(_tf.is_compiled, calls)) is is_compiled
