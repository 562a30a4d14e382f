"""Which clients take part, how the server applies what they send, and what stays private."""

import math
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.research import federated

from ..support.raising import raises

PAGE = (Path(__file__).parents[2] / "docs" / "federated.md").read_text()
SAMPLINGS = [federated.FixedSampling, federated.PoissonSampling]


@given(
    st.sampled_from(SAMPLINGS),
    st.floats(0.01, 1.0),
    st.integers(0, 5),
    st.sets(st.integers(0, 29), min_size=1),
)
def test_a_round_has_available_clients_and_is_drawn_alike_again(
    kind, fraction, round_index, available
):
    sampling = kind(fraction, seed=3)
    drawn = sampling.clients(round_index, 30, available)
    assert set(drawn) <= available
    assert list(drawn) == sorted(set(drawn))
    assert drawn == sampling.clients(round_index, 30, sorted(available, reverse=True))


@pytest.mark.parametrize(
    ("fraction", "number"), [(0.1, 10), (0.07, 7), (0.29, 29), (0.001, 1), (1.0, 100)]
)
def test_a_fixed_fraction_of_all_clients(fraction, number):
    sampling = federated.FixedSampling(fraction)
    assert len(sampling.clients(0, 100)) == number
    assert sampling.clients(0, 100, [4]) == (4,)
    assert sampling.clients(0, 100, []) == ()


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_each_client_takes_part_equally_often(kind):
    rounds = [kind(0.3, seed=1).clients(each, 20) for each in range(2000)]
    counts = np.bincount(np.concatenate(rounds).astype(int), minlength=20)
    # 6 standard deviations of a binomial variable.
    np.testing.assert_allclose(counts, 600, atol=6 * math.sqrt(2000 * 0.3 * 0.7))
    assert len({*rounds}) > 1900
    sizes = {len(each) for each in rounds}
    assert (sizes == {6}) == (kind is federated.FixedSampling)


def test_who_else_is_there_does_not_change_a_poisson_draw():
    sampling = federated.PoissonSampling(0.5)
    everyone = sampling.clients(7, 50)
    some = sampling.clients(7, 50, range(20))
    assert some == tuple(each for each in everyone if each < 20)


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_samplings_refuse(kind):
    for fraction in (0.0, 1.5, math.nan):
        with raises(ValueError, "above 0", "at most 1"):
            kind(fraction)
    with raises(ValueError, "0 to 9", "[10]"):
        kind(1.0).clients(0, 10, [1, 10])


def applied(optimizer, updates):
    weights = np.zeros(1)
    state = optimizer.initial(weights)
    for update in updates:
        weights, state = optimizer.apply(weights, np.array([update]), state)
    return float(weights[0])


def test_optimizers_by_hand():
    assert applied(federated.FedAvgM(), [1.0, 2.0, 4.0]) == 7.0
    assert applied(federated.FedAvgM(0.5), [1.0, 2.0, 4.0]) == 3.5
    assert applied(federated.FedAvgM(momentum=0.5), [1.0, 1.0]) == 1.0 + 1.5
    adam = federated.FedAdam(0.1, beta_1=0.9, beta_2=0.99, adaptivity=0.5)
    m, v, w = 0.0, 0.25, 0.0
    for update in (2.0, -1.0):
        m = 0.9 * m + 0.1 * update
        v = 0.99 * v + 0.01 * update**2
        w += 0.1 * m / (math.sqrt(v) + 0.5)
    assert applied(adam, [2.0, -1.0]) == pytest.approx(w)


@pytest.mark.parametrize(
    "optimizer", [federated.FedAvgM(0.1, 0.5), federated.FedAdam()]
)
def test_optimizers_reach_a_minimum(optimizer):
    weights = np.array([3.0, -2.0], "float32")
    state = optimizer.initial(weights)
    for _ in range(400):
        weights, state = optimizer.apply(weights, -weights, state)
    np.testing.assert_allclose(weights, 0, atol=0.05)
    assert weights.dtype == np.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: federated.FedAvgM(0.0), "learning rate is above 0"),
        (lambda: federated.FedAvgM(momentum=1.0), "momentum is from 0"),
        (lambda: federated.FedAdam(beta_2=-0.1), "beta_2"),
        (lambda: federated.FedAdam(adaptivity=0.0), "adaptivity"),
        (lambda: federated.GaussianMechanism(noise_multiplier=1.0), "without a clip"),
        (lambda: federated.GaussianMechanism(1.0, -1.0), "0 or more; received -1"),
        (lambda: federated.GaussianMechanism(0.0), "a norm above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_noisy_mean_is_clipped_and_has_the_noise_of_its_formula():
    mechanism = federated.GaussianMechanism(clip=2.0, noise_multiplier=1.5)
    updates = np.zeros((3, 20_000))
    updates[:, 0] = [10.0, 1.0, -50.0]
    found = mechanism.mean(updates, 4.0, np.random.default_rng(0))
    # The standard deviation of an estimate from 20,000 numbers is 0.5% of it.
    assert found[1:].std() == pytest.approx(1.5 * 2.0 / 4, rel=0.03)
    quiet = federated.GaussianMechanism(clip=2.0).mean(
        updates, 4.0, np.random.default_rng(0)
    )
    assert quiet[0] == pytest.approx((2 + 1 - 2) / 4)
    assert mechanism.mean(updates[:0], 4.0, np.random.default_rng(0)).std() > 0
    with raises(ValueError, "above 0", "received 0"):
        mechanism.mean(updates, 0, np.random.default_rng(0))


def exact_delta(epsilon, deviation):
    """Of one Gaussian mechanism: Balle and Wang, ICML 2018, theorem 8."""
    phi = statistics.NormalDist().cdf
    half = 1 / (2 * deviation)
    return phi(half - epsilon * deviation) - math.exp(epsilon) * phi(
        -half - epsilon * deviation
    )


@pytest.mark.parametrize(("multiplier", "rounds"), [(1.0, 1), (2.0, 1), (4.0, 16)])
def test_epsilon_bounds_the_exact_one_closely(multiplier, rounds):
    pytest.importorskip("dp_accounting")
    mechanism = federated.GaussianMechanism(1.0, multiplier)
    found = mechanism.epsilon(federated.FixedSampling(1.0), rounds, delta=1e-5)
    # Rounds of Gaussian noise are one with a deviation smaller by their root.
    deviation = multiplier / math.sqrt(rounds)
    assert exact_delta(found, deviation) <= 1e-5
    assert exact_delta(found / 1.3, deviation) > 1e-5


def test_epsilon_falls_with_noise_and_sampling_and_grows_with_rounds():
    pytest.importorskip("dp_accounting")

    def epsilon(multiplier=1.0, fraction=0.1, rounds=100):
        mechanism = federated.GaussianMechanism(1.0, multiplier)
        return mechanism.epsilon(federated.PoissonSampling(fraction), rounds, 1e-5)

    assert epsilon(multiplier=2.0) < epsilon() < epsilon(rounds=200)
    assert epsilon(fraction=0.01) < epsilon()
    assert federated.GaussianMechanism(1.0).epsilon(
        federated.PoissonSampling(0.1), 1, 1e-5
    ) == (math.inf)


def test_epsilon_is_for_a_sampling_that_has_one(monkeypatch):
    mechanism = federated.GaussianMechanism(1.0, 1.0)
    with raises(ValueError, "PoissonSampling"):
        mechanism.epsilon(federated.FixedSampling(0.1), 10, 1e-5)
    with raises(ValueError, "delta=1"):
        mechanism.epsilon(federated.PoissonSampling(0.1), 10, 1)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with raises(ImportError, "dp-accounting>=0.6"):
        mechanism.epsilon(federated.PoissonSampling(0.1), 10, 1e-5)


def test_the_epsilons_of_the_page():
    pytest.importorskip("dp_accounting")
    header, *rows = re.findall(r"^\| (clients in a round.*|\d+% .*) \|$", PAGE, re.M)
    multipliers = [float(each) for each in re.findall(r"z = ([\d.]+)", header)]
    assert len(rows) == 3
    for row in rows:
        percent, *epsilons = row.split(" | ")
        sampling = federated.PoissonSampling(float(percent.rstrip("%")) / 100)
        for multiplier, epsilon in zip(multipliers, epsilons, strict=True):
            mechanism = federated.GaussianMechanism(1.0, multiplier)
            assert f"{mechanism.epsilon(sampling, 100, 1e-5):.2f}" == epsilon


@pytest.mark.not_in_gate
def test_the_programs_of_the_page(capsys):
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    # The apps of Flower are an example of their own, which its tests run.
    programs = [each for each in programs if not re.match("(from|import) exp", each)]
    assert len(programs) == 3
    exec("\n".join(programs), {})  # noqa: S102
    assert "5,000" in capsys.readouterr().out
