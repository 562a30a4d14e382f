"""The server learns the sum to the bit, whoever drops out, and nothing else."""

import random
import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist import federated
from tfdist.federated import masks, shamir


class Round:
    """One sum by real clients: who leaves before sharing, before masking, before the end."""

    def __init__(self, values, threshold, silent=(), gone=(), late=()):
        self.threshold = threshold
        self.clients = {
            each: federated.SecureClient(each, threshold) for each in values
        }
        keys = {each: client.public_keys() for each, client in self.clients.items()}
        shares = {
            each: client.shares(keys)
            for each, client in self.clients.items()
            if each not in silent
        }
        self.keys = {each: keys[each] for each in shares}
        self.received = {
            each: {sender: shares[sender][each] for sender in shares if sender != each}
            for each in shares
        }
        self.masked = {
            each: self.clients[each].masked(values[each], self.received[each])
            for each in shares
            if each not in gone
        }
        self.reveals = {
            each: self.clients[each].reveal(self.masked.keys())
            for each in self.masked
            if each not in late
        }

    def total(self):
        return federated.unmasked_sum(
            self.masked, self.reveals, self.keys, self.threshold
        )


def vectors(clients, length=8, seed=0):
    rng = np.random.default_rng(seed)
    return {
        each: rng.integers(0, 2**32, length, dtype=np.uint32) for each in range(clients)
    }


@pytest.mark.slow
def test_sums_are_those_without_masks_to_the_bit_in_1000_rounds_with_dropouts():
    draw = random.Random(0)
    dropped = 0
    for seed in range(1000):
        clients = draw.randint(2, 6)
        threshold = draw.randint(2, clients)
        values = vectors(clients, length=draw.randint(1, 30), seed=seed)
        leaving = draw.sample(range(clients), draw.randint(0, clients - threshold))
        when = [draw.choice(["silent", "gone", "late"]) for _ in leaving]
        stages = {
            stage: {each for each, at in zip(leaving, when, strict=True) if at == stage}
            for stage in ("silent", "gone", "late")
        }
        found = Round(values, threshold, **stages)
        survivors = set(values) - stages["silent"] - stages["gone"]
        plain = sum((values[each] for each in survivors), np.uint32(0))
        np.testing.assert_array_equal(found.total(), plain)
        assert found.total().dtype == np.uint32
        dropped += len(leaving)
    assert dropped > 500


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_the_sum_of_all_masks_is_zero_whoever_drops_out(data):
    """Of vectors of zeros, masks are all that there is."""
    clients = data.draw(st.integers(2, 6))
    threshold = data.draw(st.integers(2, clients))
    gone = data.draw(st.sets(st.integers(0, clients - 1), max_size=clients - threshold))
    zeros = dict.fromkeys(range(clients), np.zeros(5, np.uint32))
    found = Round(zeros, threshold, gone=gone)
    assert all(each.all() for each in found.masked.values())
    assert not found.total().any()


def test_a_masked_vector_looks_random():
    zeros = dict.fromkeys(range(3), np.zeros(100_000, np.uint32))
    for vector in Round(zeros, 2).masked.values():
        bits = np.unpackbits(vector.view(np.uint8))
        # 6 standard deviations of a mean of 3.2 million fair bits.
        assert abs(bits.mean() - 0.5) < 6 * 0.5 / np.sqrt(bits.size)


def test_pairwise_masks_alone_cancel():
    one, other = masks.new_key(), masks.new_key()
    seed = masks.agree(one, masks.public_key(other), b"mask")
    assert seed == masks.agree(other, masks.public_key(one), b"mask")
    assert seed != masks.agree(other, masks.public_key(one), b"seal")
    assert (masks.mask(seed, 9) == masks.mask(seed, 9)).all()
    assert (masks.mask(seed, 9)[:4] == masks.mask(seed, 4)).all()


def test_a_sum_of_floats_is_exact_in_fixed_point():
    rng = np.random.default_rng(0)
    updates = rng.uniform(-0.5, 0.5, (5, 100))
    examples = np.array([10, 20, 30, 40, 50])
    code = federated.FixedPoint(limit=1.0, clients=5)
    rows = np.column_stack([updates * examples[:, None] / 50, examples / 50])
    values = dict(enumerate(map(code.encode, rows)))
    total = code.decode(Round(values, 3, gone={2}).total())
    kept = [0, 1, 3, 4]
    expected = federated.WeightedMean().aggregate(updates[kept], examples[kept])
    np.testing.assert_allclose(total[:-1] / total[-1], expected, atol=1e-8)


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=50),
    st.integers(0, 100),
)
def test_fixed_point_rounds_each_number_once(numbers, more):
    code = federated.FixedPoint(limit=3.0, clients=len(numbers) + more)
    whole = sum((code.encode(np.array([each])) for each in numbers), np.uint32(0))
    error = abs(code.decode(whole)[0] - sum(numbers))
    assert error <= len(numbers) * code.resolution / 2 + 1e-12


@pytest.mark.parametrize("clients", [1, 1000, 2**20])
@pytest.mark.parametrize("limit", [1e-3, 7.3])
def test_the_largest_sums_fit(clients, limit):
    code = federated.FixedPoint(limit, clients)
    for sign in (1, -1):
        one = code.encode(np.array([sign * limit])).astype(np.int64)
        total = (one * clients % 2**32).astype(np.uint32)
        assert code.decode(total)[0] == pytest.approx(sign * limit * clients, rel=1e-3)
    assert code.resolution <= limit * clients * 2**-29


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: federated.FixedPoint(1.0, 2).encode(np.array([2.0])), "received 2"),
        (
            lambda: federated.FixedPoint(1.0, 2).encode(np.array([np.nan])),
            "received nan",
        ),
        (lambda: federated.FixedPoint(0.0, 2), "limit above 0"),
        (lambda: federated.FixedPoint(1.0, 2**21), "clients=2097152"),
    ],
)
def test_fixed_point_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(
    st.binary(min_size=0, max_size=64),
    st.sets(st.integers(0, 1000), min_size=1, max_size=9),
    st.data(),
)
def test_any_shares_of_the_threshold_recover_a_secret(secret, holders, data):
    holders = sorted(holders)
    threshold = data.draw(st.integers(1, len(holders)))
    shares = shamir.split(secret, holders, threshold)
    some = data.draw(st.permutations(holders))[:threshold]
    chosen = {each: shares[each] for each in some}
    assert shamir.combine(chosen, threshold, len(secret)) == secret
    if threshold > 1:
        chosen.pop(some[0])
        with pytest.raises(ValueError, match=f"{threshold} shares are needed"):
            shamir.combine(chosen, threshold, len(secret))


def test_fewer_shares_fit_any_secret():
    """One share less than needed, and any other secret: some last share fits both."""
    shares = shamir.split(b"\x05", [0, 1], 2)
    one = {0: int.from_bytes(shares[0], "big")}
    for secret in range(256):
        slope = (one[0] - secret) % shamir.PRIME
        last = (secret + 2 * slope) % shamir.PRIME
        both = {0: shares[0], 1: last.to_bytes(shamir.SHARE_BYTES, "big")}
        assert shamir.combine(both, 2, 1) == bytes([secret])


def test_the_modulus_is_prime():
    """By Lucas and Lehmer's test."""
    state = 4
    for _ in range(521 - 2):
        state = (state * state - 2) % shamir.PRIME
    assert state == 0


def test_shamir_refuses():
    with pytest.raises(ValueError, match="at most 64 bytes; received 65"):
        shamir.split(bytes(65), [0], 1)
    for holders, threshold in (([0, 1], 3), ([0, 0], 1), ([-1, 2], 1), ([0], 0)):
        with pytest.raises(ValueError, match="different holders"):
            shamir.split(b"", holders, threshold)
    shares = shamir.split(secrets.token_bytes(32), [0, 1, 2], 2)
    with pytest.raises(ValueError, match="not of one secret"):
        shamir.combine({0: shares[0], 1: shares[0]}, 2, 32)


def test_clients_refuse_what_would_unmask_them():
    found = Round(vectors(4), 3, gone={3})
    client = found.clients[0]
    with pytest.raises(ValueError, match="reveals shares once"):
        client.reveal({0, 1, 3})
    with pytest.raises(ValueError, match="masks one vector"):
        client.masked(vectors(1)[0], found.received[0])
    with pytest.raises(ValueError, match="shares once"):
        client.shares(found.keys)
    for reveal in found.reveals.values():
        assert set(reveal.own_seeds) == {0, 1, 2}
        assert set(reveal.masking_keys) == {3}


def test_clients_refuse_to_be_few():
    found = Round(vectors(4), 3, late={0, 1, 2, 3})
    with pytest.raises(ValueError, match=r"survivors of 3 .* received 2: \[0, 1\]"):
        found.clients[0].reveal({0, 1})
    with pytest.raises(ValueError, match=r"clients of this sum .* received \[9\]"):
        found.clients[0].reveal({0, 1, 9})
    with pytest.raises(ValueError, match="answers of 3 clients"):
        found.total()
    with pytest.raises(ValueError, match="2 or more"):
        federated.SecureClient(0, 1)
    alone = federated.SecureClient(0, 2)
    with pytest.raises(ValueError, match="received 1"):
        alone.shares({0: alone.public_keys()})


def test_clients_refuse_keys_that_are_made_up():
    one, other = federated.SecureClient(0, 2), federated.SecureClient(1, 2)
    with pytest.raises(ValueError, match="not its own"):
        one.shares({0: other.public_keys(), 1: other.public_keys()})
    with pytest.raises(ValueError, match="the same key"):
        one.shares({0: one.public_keys(), 1: one.public_keys()})


def test_changed_shares_are_refused():
    found = Round(vectors(3), 2, late={0, 1, 2})
    client = federated.SecureClient(5, 2)
    peers = {each: federated.SecureClient(each, 2) for each in (6, 7)}
    keys = {5: client.public_keys()} | {
        each: peer.public_keys() for each, peer in peers.items()
    }
    client.shares(keys)
    sealed = {each: peer.shares(keys)[5] for each, peer in peers.items()}
    sealed[6], sealed[7] = sealed[7], sealed[6]
    client.masked(np.zeros(3, np.uint32), sealed)
    with pytest.raises(ValueError, match="changed on its way"):
        client.reveal({5, 6, 7})
    with pytest.raises(ValueError, match="vectors of 2"):
        federated.unmasked_sum({}, {}, found.keys, 2)


def test_a_wrong_key_is_found():
    found = Round(vectors(3), 2, gone={2})
    for reveal in found.reveals.values():
        reveal.masking_keys.update(
            dict.fromkeys(reveal.masking_keys, reveal.own_seeds[0])
        )
    with pytest.raises(ValueError, match="client 2's key"):
        found.total()


def test_vectors_are_integers():
    found = Round(vectors(3), 2)
    fresh = federated.SecureClient(0, 2)
    with pytest.raises(ValueError, match=r"FixedPoint\.encode .* float64"):
        fresh.masked(np.ones(3), found.received[0])


def test_rules_that_see_single_updates_are_refused():
    federated.check_rule(federated.WeightedMean())
    federated.check_rule(federated.NormClipping(1.0))
    for rule in (
        federated.Median(),
        federated.TrimmedMean(1),
        federated.GeometricMedian(),
        federated.Krum(1),
        federated.MultiKrum(1),
        federated.NormClipping(1.0, federated.Krum(1)),
    ):
        with pytest.raises(ValueError, match="the server sees their sum alone"):
            federated.check_rule(rule)


@pytest.mark.parametrize(("clients", "threshold"), [(3, 3), (4, 3), (10, 7), (100, 67)])
def test_the_default_threshold(clients, threshold):
    assert federated.default_threshold(clients) == threshold
