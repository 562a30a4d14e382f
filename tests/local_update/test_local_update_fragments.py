"""Models that are mixed in fragments: which variables, when, and what each exchange sends."""

import threading

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.local_update import mixing
from tfdist.local_update.arguments import checked_fragments
from tfdist.local_update.fragment import one_each
from tfdist.local_update.message import header_bytes
from tfdist.local_update.mix import Mix, MixSettings
from tfdist.local_update.mix_schedule import MixSchedule, balanced_groups

from ..support.deadline import DEADLINE
from ..support.raising import raises
from .mailboxes_in_memory import Crew, Dies, train

MEAN = mixing.Mean()
SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=30)


def mix_of(model, exchange, fragments, *of_all, **others):
    of_all = MixSettings(*of_all, **others, overlap=True, fragments=fragments)
    return Mix(model, exchange, of_all)


@settings(max_examples=100, deadline=None)
@given(sizes=SIZES, data=st.data())
def test_groups_are_a_partition_of_about_equal_sizes(sizes, data):
    count = data.draw(st.integers(1, len(sizes)))
    groups = balanced_groups(sizes, count)
    assert len(groups) == count
    assert sorted(each for group in groups for each in group) == list(range(len(sizes)))
    assert all(group and group == sorted(group) for group in groups)
    totals = [sum(sizes[each] for each in group) for group in groups]
    assert max(totals) - min(totals) <= max(sizes)
    assert max(totals) <= sum(sizes) / count + max(sizes)


@given(layers=st.integers(1, 20), data=st.data())
def test_equal_layers_go_to_the_groups_in_turn(layers, data):
    count = data.draw(st.integers(1, layers))
    groups = balanced_groups([7] * layers, count)
    assert groups == [list(range(first, layers, count)) for first in range(count)]


@settings(max_examples=100, deadline=None)
@given(local_steps=st.integers(1, 40), steps=st.integers(0, 130), data=st.data())
def test_each_fragment_is_mixed_once_per_round(local_steps, steps, data):
    fragments = data.draw(st.integers(1, local_steps))
    rounds = MixSchedule(local_steps, fragments)
    mixed = [rounds.step() for _ in range(steps)]
    order = [each for each in mixed if each is not None]
    assert order == [i % fragments for i in range(len(order))]
    places = [i for i, each in enumerate(mixed, start=1) if each is not None]
    gaps = np.diff([0, *places])
    assert all(
        local_steps // fragments <= gap <= -(-local_steps // fragments) for gap in gaps
    )
    assert all(mixed[i] == mixed[i - local_steps] for i in range(local_steps, steps))
    last = {fragment: place for place, fragment in zip(places, order, strict=True)}
    since = [f for f in range(fragments) if last.get(f, 0) < steps]
    assert rounds.close() == since
    assert rounds.close() == []
    # What follows is a new round.
    assert [rounds.step() for _ in range(steps)] == mixed


def model_of(value, layers=4):
    model = keras.Sequential(
        [keras.Input((8,))]
        + [keras.layers.Dense(8, use_bias=False) for _ in range(layers)]
    )
    model.set_weights([np.full((8, 8), float(value))] * layers)
    return model


def sizes_of_messages(exchange):
    """The bytes of the payloads that a worker publishes from now on."""
    transport, found = exchange.transport, []
    publish = transport.publish

    def note(message):
        found.append(len(message.payload))
        publish(message)

    transport.publish = note
    return found


@pytest.mark.parametrize("fragments", [1, 2, 4])
def test_an_exchange_sends_a_part_and_all_of_them_the_whole(fragments):
    workers, rounds, model_bytes = 2, 3, 4 * 4 * 64
    crew = Crew(workers)

    def run(me, exchange):
        sizes = sizes_of_messages(exchange)
        mix = mix_of(model_of(me), exchange, fragments, 4, MEAN)
        mix.begin()
        for _ in range(4 * rounds):
            train(mix, by=0)
        mix.finish()
        return max(sizes), exchange.received_bytes, mix.vector.read()

    for largest, received, vector in crew.run(run).values():
        assert largest == model_bytes // fragments
        # At the end, all but the last one have steps since their last mix.
        mixes = rounds * fragments + fragments - 1
        assert received == mixes * (largest + 2 * header_bytes(workers))
        np.testing.assert_allclose(vector, 0.5)


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("rate", [None, 1.0])
@pytest.mark.parametrize("fragments", [1, 3])
def test_all_end_with_the_same_model_and_no_step_is_lost(fragments, rate, wire_dtype):
    crew = Crew(3)

    def run(me, exchange):
        outer = rate and keras.optimizers.SGD(rate)
        mix = mix_of(model_of(me), exchange, fragments, 5, MEAN, outer, wire_dtype)
        found = []
        for _ in range(2):  # The second call of `fit` starts anew.
            mix.vector.write(np.ones_like(mix.vector.read()))
            mix.begin()
            for _ in range(7):
                train(mix, by=me)
            mix.finish()
            mix.finish()
            found.append(mix.vector.read())
        return found

    found = crew.run(run)
    for call in range(2):
        assert len({each[call].tobytes() for each in found.values()}) == 1
        tolerance = 1e-5 if wire_dtype is None else 0.1
        np.testing.assert_allclose(found[0][call], 1 + 7 * 1, atol=tolerance)


@pytest.mark.not_in_gate
@pytest.mark.parametrize("wire_dtype", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("fragments", [1, 2])
def test_gossip_that_overlaps_keeps_the_mean_and_comes_near_it(fragments, wire_dtype):
    crew = Crew(4)
    policy = mixing.Gossip(mixing.ring).on(4)

    def run(me, exchange):
        mix = mix_of(
            model_of(me), exchange, fragments, 2, policy, wire_dtype=wire_dtype
        )
        mix.begin()
        for _ in range(80):
            train(mix, by=0)
        mix.finish()
        return mix.vector.read()

    for value in crew.run(run).values():
        atol = 1e-6 if wire_dtype is None else 0.02
        np.testing.assert_allclose(value, 1.5, atol=atol)


class OneReads:
    """Worker 0 mixes with worker 1, which waits for nobody."""

    def weights(self, me, round_index, present):
        return {0: 0.5, 1: 0.5} if me == 0 else {1: 1.0}


@pytest.mark.parametrize(
    ("widths", "wire_dtype"),
    [((8, 8, 8), None), ((8, 8, 8), "int8"), ((7, 5, 2), "int8")],
)
def test_a_newer_message_of_another_fragment_is_not_mixed(widths, wire_dtype):
    """Neighbours may be some rounds apart, and fragments may have the same size."""
    crew = Crew(2)
    is_ahead, has_caught_up = threading.Event(), threading.Event()

    def run(me, exchange):
        layers = [keras.layers.Dense(each, use_bias=False) for each in widths]
        model = keras.Sequential([keras.Input((8,)), *layers])
        mix = mix_of(model, exchange, 3, 3, OneReads(), wire_dtype=wire_dtype)
        for tens, layer in enumerate(layers):
            layer.kernel.assign(np.full(layer.kernel.shape, 10.0 * tens + (me == 0)))
        mix.begin()
        if me == 0:
            assert is_ahead.wait(DEADLINE)
        for _ in range(6):
            train(mix, by=0)
        with exchange.turn:  # The last one has been sent.
            is_ahead.set()
        if me == 0:
            has_caught_up.set()
        assert has_caught_up.wait(DEADLINE)
        mix.finish()
        return [each.kernel.numpy() - 10.0 * tens for tens, each in enumerate(layers)]

    # In its first round, worker 0 finds other fragments than its own. In the second, and at
    # the end, fragment 1 is mixed twice, and the others once.
    found = crew.run(run, timeout=DEADLINE)[0]
    for kernel, value in zip(found, [0.5, 0.25, 0.5], strict=True):
        # In int8, models of up to 21 lose 21/254.
        np.testing.assert_allclose(kernel, value, atol=0.1 if wire_dtype else 1e-6)


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("outer", [None, keras.optimizers.Adam])
def test_statistics_may_be_fragments_of_their_own(outer, wire_dtype):
    """They become their mean, which is no change for an optimizer or of fewer bits."""
    crew = Crew(2)

    def run(me, exchange):
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization()]
        model = keras.Sequential([keras.Input((8,)), *layers])
        count = len(model.weights)
        mix = mix_of(model, exchange, count, count, MEAN, outer and outer(), wire_dtype)
        mix.begin()
        for variable in model.layers[1].non_trainable_variables:
            variable.assign(10.0 ** (me - np.arange(8)))
        for _ in range(2 * count):
            mix.step_done()
        mix.finish()
        return [each.numpy() for each in model.layers[1].non_trainable_variables]

    for statistics in crew.run(run).values():
        for each in statistics:
            np.testing.assert_allclose(each, 5.5 * 10.0 ** -np.arange(8), rtol=1e-6)


@pytest.mark.not_in_gate
@pytest.mark.parametrize("wire_dtype", [None, "int8"])
@pytest.mark.parametrize("messages", [5, 6, 7, 8])
def test_the_others_become_equal_again_after_a_loss(messages, wire_dtype):
    """Each fragment, with its outer optimizer, whichever was travelling."""
    for has_read in [(0, 2), (2, 0), (1, 2), (1, 1)]:
        crew = Crew(3)
        crew.let_die(2, messages, has_read)

        def run(me, exchange):
            outer = keras.optimizers.SGD(0.7, 0.9, nesterov=True)
            mix = mix_of(model_of(1), exchange, 2, 4, MEAN, outer, wire_dtype)
            mix.begin()
            random = np.random.RandomState(me)
            try:
                for _ in range(20):
                    train(mix, by=random.normal(size=4 * 64))
                mix.finish()
            except Dies:
                return None
            states = [each.state for each in mix.fragments]
            return np.concatenate([mix.vector.read(), *states]).tobytes()

        found = crew.run(run)
        assert found[0] == found[1], has_read


def test_the_mean_of_a_fragment_is_what_an_optimizer_of_its_own_makes_of_it():
    """Adam counts the steps of each fragment alone, and a schedule does."""
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    for rate in [0.5, schedule]:
        results = []
        for fragments in [1, 2]:

            def run(me, exchange, fragments=fragments, rate=rate):
                outer = keras.optimizers.Adam(rate)
                mix = mix_of(model_of(0), exchange, fragments, 2, MEAN, outer)
                mix.begin()
                for step in range(6):
                    # After the snapshots of both, so that they learn the same.
                    mix.vector.write(mix.vector.read() + (step % 2 == 0))
                    mix.step_done()
                mix.finish()
                return mix.vector.read(), [each.mixes for each in mix.fragments]

            results.append(Crew(1).run(run)[0])
        (whole, (mixes,)), (parts, counts) = results
        assert counts[1] == mixes == 3
        # The second fragment of two is mixed when the whole model is.
        second = slice(64, None, 128)
        np.testing.assert_allclose(parts[second], whole[second], rtol=1e-6)


def test_copies_of_an_outer_optimizer_follow_its_learning_rate():
    original = keras.optimizers.SGD(0.5)
    one, other = one_each(original, 2)
    original.learning_rate = 0.125
    assert float(one.learning_rate) == float(other.learning_rate) == 0.125
    assert one_each(original, 1) == [original]
    assert one_each(None, 3) == [None] * 3
    variable = keras.Variable(1.0)
    one.apply([2.0], [variable])
    assert float(variable.numpy()) == 0.75


class WithoutConfig(keras.optimizers.SGD):
    def __init__(self, first, second):
        super().__init__(first * second)


@pytest.mark.parametrize(
    "make", [lambda: keras.optimizers.SGD(lambda: 0.5), lambda: WithoutConfig(0.1, 5)]
)
@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
def test_an_outer_optimizer_that_cannot_be_copied_is_refused(make):
    optimizer = make()
    with raises(ValueError, "fragments=2", "copy"):
        one_each(optimizer, 2)
    assert one_each(optimizer, 1) == [optimizer]


@pytest.mark.parametrize(
    ("fragments", "overlap", "error", "words"),
    [
        (1.5, True, TypeError, "an integer of 1 or more; received 1.5"),
        (True, True, TypeError, "received True"),
        (0, True, ValueError, "1 to 10 here; received 0"),
        (11, True, ValueError, "1 to 10 here; received 11"),
        (2, False, ValueError, "pass overlap=True with fragments=2"),
    ],
)
def test_bad_fragments_are_told_what_is_allowed(fragments, overlap, error, words):
    with pytest.raises(error, match=words):
        checked_fragments(fragments, overlap, local_steps=10)


def test_more_fragments_than_variables_are_refused():
    (exchange,) = Crew(1).exchanges
    mix_of(model_of(0), exchange, 4, 9, MEAN)
    with raises(ValueError, "4", "fragments=5"):
        mix_of(model_of(0), exchange, 5, 9, MEAN)
