"""Mixes that run during the next local steps: the order of exchanges, and who waits."""

import threading

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.local_update import mixing
from tfdist.local_update.arguments import checked_overlap
from tfdist.local_update.messenger import GivenUpError
from tfdist.local_update.mix import Mix, MixSettings
from tfdist.local_update.mix_schedule import after_overlap

from ..support.deadline import DEADLINE
from ..support.raising import raises
from .mailboxes_in_memory import Crew, train

MEAN = mixing.Mean()


def model_of(value):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full((2, 1), float(value))])
    return model


def value_of(mix):
    return float(mix.vector.read()[0])


class Held:
    """Holds back the messages of one worker until they are let go."""

    def __init__(self, transport):
        self._publish = transport.publish
        self.go = threading.Event()
        transport.publish = self.publish

    def publish(self, message):
        assert self.go.wait(DEADLINE)
        self._publish(message)


def test_local_steps_go_on_while_models_travel():
    crew = Crew(2)
    held = Held(crew.exchanges[1].transport)
    both_are_here = threading.Barrier(2)

    def run(me, exchange):
        mix = Mix(model_of(10 * me), exchange, MixSettings(2, MEAN, overlap=True))
        mix.begin()
        seen = []
        for _ in range(3):  # The mix begins after the second, of 2 and 12.
            train(mix, by=1)
            seen.append(value_of(mix))
        both_are_here.wait(DEADLINE)
        held.go.set()
        train(mix, by=1)
        return [*seen, value_of(mix)]

    found = crew.run(run, timeout=DEADLINE)
    assert found[0] == [1, 2, 3, 9]  # 7 + (4 - 2)
    assert found[1] == [11, 12, 13, 9]


def test_what_is_exchanged_next_waits_for_the_mix_before():
    """The logs of an epoch have the key that they have on all workers."""
    crew = Crew(2)
    held = Held(crew.exchanges[1].transport)

    def run(me, exchange):
        mixed = exchange.in_background(lambda: exchange.mean(np.full(2, float(me))))
        if me == 1:
            threading.Timer(0.2, held.go.set).start()
        logs = exchange.gather(np.array([me]))
        assert mixed.done()
        return mixed.result().tolist(), sorted(logs)

    assert set(map(str, crew.run(run).values())) == {"([0.5, 0.5], [0, 1])"}


def test_an_error_of_a_mix_is_raised_where_its_model_is_needed():
    crew = Crew(2)
    crew.exchanges[1].members.lose(0)  # The others have given worker 0 up.

    def run(me, exchange):
        mix = Mix(model_of(me), exchange, MixSettings(1, MEAN, overlap=True))
        mix.begin()
        train(mix, by=1)
        try:
            mix.finish()
        except GivenUpError:
            return "given up"
        return "mixed"

    assert crew.run(run) == {0: "given up", 1: "mixed"}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 99), workers=st.integers(1, 5))
def test_the_mean_of_all_models_is_kept(seed, workers):
    random = np.random.default_rng(seed)
    snapshots, models = random.normal(size=(2, workers, 7))
    matrix = mixing.ring(workers).matrix() if workers > 2 else np.eye(workers)
    after = [
        after_overlap(*each, num_trainable=7)
        for each in zip(models, snapshots, matrix @ snapshots, strict=True)
    ]
    np.testing.assert_allclose(np.mean(after, 0), models.mean(0), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(values=st.tuples(*[st.floats(0, 1e6)] * 3))
def test_a_variance_stays_one(values):
    model, snapshot, mixed = (np.array([each]) for each in values)
    (after,) = after_overlap(model, snapshot, mixed, num_trainable=0)
    assert min(model, mixed) <= after <= max(model, mixed)
    (same,) = after_overlap(snapshot, snapshot, mixed, num_trainable=0)
    assert same == mixed


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_overlap_is_a_bool(wrong):
    with raises(TypeError, "overlap"):
        checked_overlap(wrong)
