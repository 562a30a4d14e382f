"""Narrow messages: what they keep, what they lose, and that it is sent later."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdist
from tfdist.local_update import mixing
from tfdist.local_update.compression import BLOCK, NARROW, Coder, ErrorFeedback, Wire
from tfdist.local_update.message import header_bytes
from tfdist.local_update.mix import Mix, MixSettings

from ..support.raising import raises
from .mailboxes_in_memory import Crew, Dies

DTYPES = st.sampled_from(sorted(NARROW))


def vector_of(seed, size, scale=1.0):
    random = np.random.default_rng(seed)
    return (scale * random.normal(size=size)).astype("float32")


def coder_of(wire_dtype, until=1 << 40):
    return Coder(np.dtype("float32"), NARROW[wire_dtype](), until)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 99),
    size=st.integers(1, 3 * BLOCK),
    scale=st.floats(1e-20, 1e20),
)
def test_int8_loses_at_most_half_a_step_of_its_block(seed, size, scale):
    vector = vector_of(seed, size, scale)
    codec = NARROW["int8"]()
    payload = codec.encode(vector)
    assert len(payload) == codec.size(size) == size + 4 * -(-size // BLOCK)
    lost = np.abs(codec.decode(payload) - vector)
    for begin in range(0, size, BLOCK):
        block = slice(begin, begin + BLOCK)
        assert lost[block].max() <= np.abs(vector[block]).max() / 254 * (1 + 1e-5)


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(width=32), min_size=1))
def test_bfloat16_rounds_as_tensorflow_does(values):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    vector = np.array(values, "float32")
    codec = NARROW["bfloat16"]()
    found = codec.decode(codec.encode(vector))
    with np.errstate(over="ignore"):
        expected = vector.astype(ml_dtypes.bfloat16).astype("float32")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("wire_dtype", sorted(NARROW))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_has_diverged_stays_visible(wire_dtype, value):
    vector = vector_of(0, 2 * BLOCK)
    vector[3] = value
    codec = NARROW[wire_dtype]()
    found = codec.decode(codec.encode(vector))
    assert not np.isfinite(found[3])
    assert np.isfinite(found[BLOCK:]).all()


@settings(max_examples=30, deadline=None)
@given(wire_dtype=DTYPES, size=st.integers(1, 2500), rounds=st.integers(1, 6))
def test_what_was_sent_is_what_was_meant_less_the_last_residual(
    wire_dtype, size, rounds
):
    feedback = ErrorFeedback(coder_of(wire_dtype))
    sent, meant = np.zeros(size), np.zeros(size)
    for seed in range(rounds):
        vector = vector_of(seed, size)
        payload, found = feedback.send(vector)
        sent, meant = sent + found, meant + vector
    np.testing.assert_allclose(sent, meant - feedback.residual, atol=1e-4)
    largest = np.abs(vector).max() + np.abs(feedback.residual).max()
    assert np.abs(feedback.residual).max() <= largest / 100


def test_a_change_too_small_for_a_step_is_sent_later():
    vector = np.array([1.0, 1e-3], "float32")  # A step of int8 is 1/127.
    feedback = ErrorFeedback(coder_of("int8"))
    second = [feedback.send(vector)[1][1] for _ in range(100)]
    assert second[0] == 0.0
    assert sum(second) == pytest.approx(0.1, abs=1 / 127)


@settings(max_examples=40, deadline=None)
@given(
    wire_dtype=DTYPES,
    until=st.integers(0, 20),
    begin=st.integers(0, 20),
    data=st.data(),
)
def test_what_is_not_trained_keeps_all_its_bits(wire_dtype, until, begin, data):
    end = data.draw(st.integers(begin, 20))
    coder, vector = coder_of(wire_dtype, until), vector_of(0, 20)
    payload = coder.encode(vector[begin:end], begin)
    assert len(payload) == coder.size(begin, end)
    found = coder.decode(payload, begin)
    assert found.dtype == np.float32
    exact = max(until - begin, 0)
    assert found[exact:].tobytes() == vector[begin:end][exact:].tobytes()
    np.testing.assert_allclose(found, vector[begin:end], atol=0.02)


@pytest.mark.parametrize(("wire_dtype", "bytes_each"), [("bfloat16", 2), ("int8", 1)])
def test_a_narrow_mean_is_the_same_on_all_and_has_fewer_bytes(wire_dtype, bytes_each):
    workers, size, rounds = 4, 4 * BLOCK, 8
    crew = Crew(workers)
    wires = [Wire(coder_of(wire_dtype)) for _ in range(workers)]
    total = np.zeros(size)
    for _ in range(rounds):
        found = crew.run(
            lambda i, exchange: exchange.mean(vector_of(i, size), wires[i])
        )
        assert len({each.tobytes() for each in found.values()}) == 1
        total += found[0]
    expected = np.mean([vector_of(i, size) for i in range(workers)], axis=0)
    once = np.abs(found[0] - expected).max()
    assert 0 < once < 0.05
    # What rounding loses does not add up: the mean over rounds comes nearer.
    assert np.abs(total / rounds - expected).max() < 0.5 * once
    scales = 4 * BLOCK // BLOCK * (4 if wire_dtype == "int8" else 0)
    parts = 2 * (workers - 1) * (size * bytes_each + scales) // workers
    headers = 2 * (workers - 1) * header_bytes(workers)
    for exchange in crew.exchanges:
        assert exchange.received_bytes == rounds * (parts + headers)


@settings(max_examples=40, deadline=None)
@given(
    wire_dtype=DTYPES,
    size=st.integers(0, 5 * BLOCK),
    trained=st.integers(0, 5 * BLOCK),
    lost=st.integers(0, 2),
)
def test_a_narrow_mean_is_right_where_one_worker_knows_first_of_a_loss(
    wire_dtype, size, trained, lost
):
    """It takes the vector to have fewer parts than the other worker does."""
    crew = Crew(3)
    first, second = (i for i in range(3) if i != lost)
    crew.gone.add(lost)
    crew.exchanges[first].members.lose(lost)
    vectors = [vector_of(i, size) for i in range(3)]
    coder = coder_of(wire_dtype, trained)
    found = crew.run(lambda i, exchange: exchange.mean(vectors[i], Wire(coder)))
    mean = (vectors[first] + vectors[second]) / 2
    tolerance = np.where(np.arange(size) < trained, 0.05, 1e-6)
    for i, each in found.items():
        # What neither of them owns stays as it is.
        assert ((np.abs(each - mean) < tolerance) | (each == vectors[i])).all()


@settings(max_examples=40, deadline=None)
@given(wire_dtype=DTYPES, size=st.integers(1, 3000), until=st.integers(0, 3000))
def test_bytes_do_not_depend_on_where_parts_end(wire_dtype, size, until):
    coder, vector = coder_of(wire_dtype, until), vector_of(0, size)
    payload = coder.encode(vector, 0)
    whole = coder.decode(payload, 0)
    for place in range(0, size, 99):
        cut = coder.cut(place)
        assert place - BLOCK < cut <= place
        begin = coder.size(0, cut)
        assert begin + coder.size(cut, size) == len(payload)
        assert coder.decode(payload[:begin], 0).tobytes() == whole[:cut].tobytes()
        assert coder.decode(payload[begin:], cut).tobytes() == whole[cut:].tobytes()


@pytest.mark.parametrize("wire_dtype", sorted(NARROW))
def test_narrow_gossip_keeps_the_mean_and_comes_near_it(wire_dtype):
    workers, size = 6, 50
    policy = mixing.Gossip(mixing.exponential).on(workers)
    crew = Crew(workers)
    wires = [Wire(coder_of(wire_dtype)) for _ in range(workers)]
    models = np.stack([vector_of(i, size) for i in range(workers)])
    mean, apart = models.mean(0), np.abs(models - models.mean(0)).max()
    for round_index in range(12):

        def mix(i, exchange, models=models, round_index=round_index):
            weights = policy.weights(i, round_index, exchange.members.present)
            return exchange.average(models[i], weights, wires[i])

        models = np.stack([each for _, each in sorted(crew.run(mix).items())])
    np.testing.assert_allclose(models.mean(0), mean, atol=1e-5)
    assert np.abs(models - mean).max() < 0.01 * apart


# Together six blocks, so that two or three workers have the same parts in int8 as without.
KERNEL, VARIANCE = 6 * BLOCK - 3, 3


class Variable:
    dtype = "float32"

    def __init__(self, values):
        self.values = np.array(values, "float32")
        self.shape = self.values.shape

    def numpy(self):
        return self.values

    def assign(self, values):
        self.values = np.array(values, "float32")


class Model:
    """As `Mix` needs one: a kernel that is trained, and a variance that is not."""

    def __init__(self):
        self.kernel = Variable(np.zeros(KERNEL))
        self.variance = Variable(np.ones(VARIANCE))
        self.trainable_weights = [self.kernel]
        self.weights = [self.kernel, self.variance]


def models_after(wire_dtype, rate, victim, messages, has_read):
    """The models of those that are left, after some rounds in which a worker dies."""
    import keras

    crew = Crew(3)
    crew.let_die(victim, messages, has_read)
    outers = [rate and keras.optimizers.SGD(rate, 0.9, nesterov=True) for _ in range(3)]

    def rounds(i, exchange):
        model = Model()
        mix = Mix(model, exchange, MixSettings(1, mixing.Mean(), outers[i], wire_dtype))
        mix.begin()
        random, least = np.random.RandomState(i), np.inf
        try:
            for _ in range(6):
                change = random.normal(size=KERNEL).astype("float32")
                model.kernel.assign(model.kernel.values + change)
                of_batch = 10 ** random.uniform(-6, 2, VARIANCE)
                model.variance.assign(0.01 * model.variance.values + of_batch)
                mix.step_done()
                least = min(least, model.variance.values.min())
        except Dies:
            return None
        return model.kernel.values, model.variance.values, least

    return [each for i, each in sorted(crew.run(rounds).items()) if i != victim]


@pytest.mark.not_in_gate
@pytest.mark.parametrize("messages", [3, 4])
@pytest.mark.parametrize(("victim", "rate"), [(0, 0.7), (1, None), (2, 0.7)])
def test_models_become_equal_again_after_a_loss(victim, rate, messages):
    """Whichever message was the last one of a worker, and whoever has read it."""
    for has_read in itertools.product(range(3), repeat=2):
        loss = rate, victim, messages, has_read
        (kernel, variance, least), other = models_after("int8", *loss)
        assert least > 0
        assert other[2] > 0
        assert kernel.tobytes() == other[0].tobytes(), has_read
        assert variance.tobytes() == other[1].tobytes(), has_read
        exact = models_after(None, *loss)[0]
        np.testing.assert_allclose(kernel, exact[0], atol=0.2)
        np.testing.assert_allclose(variance, exact[1], rtol=1e-6)


@pytest.mark.parametrize("wire_dtype", ["float16", "half a byte", 8])
def test_another_wire_dtype_is_told_what_is_allowed(wire_dtype):
    with raises(ValueError, "'bfloat16', 'int8'", "received"):
        tfdist.LocalUpdateStrategy(2, wire_dtype=wire_dtype)
