"""Rules do not depend on who sends what, and withstand as many attackers as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tfdist.research import federated
from tfdist.research.federated.aggregation import clipped, norm
from tfdist.research.federated.attacks import largest_unnoticed
from tfdist.research.federated.robust import krum_scores

from ..support.raising import raises

numbers = st.floats(-1e6, 1e6, width=32)
wild = st.floats(-1e30, 1e30)


def rules(attackers):
    return {
        "Median": federated.Median(attackers),
        "TrimmedMean": federated.TrimmedMean(attackers),
        "GeometricMedian": federated.GeometricMedian(attackers),
        "Krum": federated.Krum(attackers),
        "MultiKrum": federated.MultiKrum(attackers),
    }


def needed(name, attackers):
    return 2 * attackers + (3 if "Krum" in name else 1)


def matrices(rows, columns, elements=numbers):
    return arrays.arrays(np.float64, (rows, columns), elements=elements)


@st.composite
def attacked(draw, names=sorted(rules(0))):  # noqa: B008
    """A rule, the updates of honest clients, and those of as many attackers as it takes."""
    attackers = draw(st.integers(0, 3))
    name = draw(st.sampled_from(names))
    honest = needed(name, attackers) - attackers + draw(st.integers(0, 3))
    columns = draw(st.integers(1, 4))
    return (
        rules(attackers)[name],
        draw(matrices(honest, columns)),
        draw(matrices(attackers, columns, wild)),
    )


def ones(updates):
    return np.ones(len(updates))


@given(attacked(), st.randoms(use_true_random=False))
def test_a_rule_does_not_depend_on_the_order_of_clients(drawn, random):
    rule, honest, bad = drawn
    updates = np.concatenate([honest, bad])
    order = list(range(len(updates)))
    random.shuffle(order)
    one = rule.aggregate(updates, ones(updates))
    other = rule.aggregate(updates[order], ones(updates))
    size = np.abs(updates).max()
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * size + 1e-12)


@given(matrices(5, 3), st.permutations(range(5)))
def test_the_mean_does_not_depend_on_the_order_of_clients(updates, order):
    weights = np.arange(1.0, 6.0)
    rule = federated.NormClipping(2.0)
    np.testing.assert_allclose(
        rule.aggregate(updates, weights),
        rule.aggregate(updates[order], weights[order]),
        atol=1e-9,
    )


@given(attacked(["Median", "TrimmedMean"]))
def test_coordinates_stay_between_honest_ones(drawn):
    rule, honest, bad = drawn
    updates = np.concatenate([honest, bad])
    found = rule.aggregate(updates, ones(updates))
    assert (honest.min(axis=0) <= found).all()
    assert (found <= honest.max(axis=0)).all()


@given(attacked(["GeometricMedian"]))
def test_the_geometric_median_stays_near_the_honest_ones(drawn):
    """Minsker 2015, lemma 2.1."""
    rule, honest, bad = drawn
    updates = np.concatenate([honest, bad])
    n, f = len(updates), len(bad)
    centre = honest.mean(axis=0)
    radius = norm(honest - centre).max()
    found = rule.aggregate(updates, ones(updates))
    bound = 2 * (n - f) / (n - 2 * f) * radius
    assert norm(found - centre) <= bound * (1 + 1e-6) + 1e-6


@given(attacked(["Krum"]))
def test_krum_selects_an_update_whose_neighbours_are_honest_enough(drawn):
    """The selected one is as near to its neighbours as any honest one is to honest ones."""
    rule, honest, bad = drawn
    updates = np.concatenate([honest, bad])
    found = rule.aggregate(updates, ones(updates))
    selected = np.flatnonzero((updates == found).all(axis=1))
    assert len(selected)
    near = len(updates) - rule.attackers - 2
    squares = np.array([norm(honest - each) ** 2 for each in honest])
    best = np.sort(squares, axis=1)[:, 1 : near + 1].sum(axis=1).min()
    scores = krum_scores(updates, rule.attackers)
    assert scores[selected].min() <= best * (1 + 1e-9) + 1e-9


@given(matrices(7, 3))
def test_the_geometric_median_has_the_least_distance(updates):
    found = federated.GeometricMedian().aggregate(updates, ones(updates))
    least = norm(updates - found).sum()
    spread = np.ptp(updates, axis=0).max()
    others = [*updates, updates.mean(axis=0), np.median(updates, axis=0)]
    others += [
        found + spread * step for step in 0.01 * np.array([*np.eye(3), [-1] * 3])
    ]
    # It stops once a step is short, as steps are beside an update that nearly holds it.
    assert (
        least <= min(norm(updates - each).sum() for each in others) * (1 + 1e-5) + 1e-9
    )


def test_the_geometric_median_leaves_a_client_beside_which_it_begins():
    """The median of coordinates is 2e-9 from the first client, so that steps are short."""
    updates = np.array(
        [
            *([0.0, 0.0, 0.0], [2e-9, 9.0, -11.4], [-51.5, -429.7, 1018.4]),
            *([-363.1, 552.2, 115.3], [1606.8, 37.7, -15.6], [366.2, -37.8, -737.0]),
            [40.1, -1.0, 14.1],
        ]
    )
    found = federated.GeometricMedian().aggregate(updates, ones(updates))
    assert norm(updates[0] - np.median(updates, axis=0)) == pytest.approx(2e-9)
    assert norm(updates - found).sum() < norm(updates).sum() * (1 - 1e-5)


def test_the_geometric_median_leaves_a_client_where_it_begins():
    """The median of coordinates is the third client, and not the best point."""
    corners = np.array([[0.0, 0.0], [10.0, 10.0], [5.0, 1.0], [4.0, 9.0], [9.0, 0.0]])
    assert (np.median(corners, axis=0) == [5.0, 1.0]).all()
    found = federated.GeometricMedian().aggregate(corners, np.ones(5))
    towards = corners - found
    pull = (towards / norm(towards)[:, None]).sum(axis=0)
    assert norm(pull) < 1e-3 or norm(found - corners).min() < 1e-9
    assert norm(corners - found).sum() < norm(corners - corners[2]).sum()


def test_means():
    updates = np.array([[1.0, 2.0], [3.0, 6.0]], "float32")
    found = federated.WeightedMean().aggregate(updates, np.array([3, 1]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [1.5, 3.0])
    trimmed = federated.TrimmedMean(1).aggregate(
        np.array([[0.0], [1.0], [3.0], [1e9]]), np.ones(4)
    )
    np.testing.assert_allclose(trimmed, [2.0])


def test_krum_by_hand():
    updates = np.array([[0.0], [1.0], [1.5], [9.0], [100.0]])
    np.testing.assert_allclose(
        krum_scores(updates, 1),
        [1 + 2.25, 0.25 + 1, 0.25 + 2.25, 7.5**2 + 64, 91**2 + 98.5**2],
    )
    assert federated.Krum(1).aggregate(updates, np.ones(5)).tolist() == [1.0]
    two = federated.MultiKrum(1, selected=2).aggregate(updates, np.ones(5))
    assert two.tolist() == [1.25]
    assert federated.Krum(1) == federated.Krum(attackers=1)


def test_one_attacker_moves_the_mean_and_no_other_rule():
    rng = np.random.default_rng(0)
    updates = 1 + 0.1 * rng.normal(size=(10, 50))
    sent = federated.ScaledUpdate(-1000.0).apply(updates, [3])
    weights = np.ones(10)
    assert federated.WeightedMean().aggregate(sent, weights).max() < -50
    for rule in rules(1).values():
        assert np.abs(rule.aggregate(sent, weights) - 1).max() < 0.5
    assert (federated.NormClipping(8.0).aggregate(sent, weights) > 0.5).all()


@given(matrices(3, 4), st.floats(1e-3, 1e3))
def test_clipped_norms(updates, most):
    found = clipped(updates, most)
    assert (norm(found) <= most * (1 + 1e-9)).all()
    within = norm(updates) <= most
    np.testing.assert_array_equal(found[within], updates[within])


@pytest.mark.parametrize("name", sorted(rules(0)))
@pytest.mark.parametrize("attackers", [0, 3])
def test_more_attackers_than_a_rule_takes_are_refused(name, attackers):
    rule, least = rules(attackers)[name], needed(name, attackers)
    rule.check(least)
    updates = np.ones((least - 1, 2))
    with pytest.raises(
        ValueError, match=rf"n = {least} or more .* received {least - 1}"
    ):
        rule.aggregate(updates, ones(updates))
    with pytest.raises(ValueError, match=rf"f = {attackers} "):
        federated.NormClipping(1.0, rule).check(least - 1)


@pytest.mark.parametrize(
    ("updates", "weights", "message"),
    [
        (np.ones((5, 2)), np.ones(4), r"\(5, 2\) and \(4,\)"),
        (np.ones(5), np.ones(5), r"\(5,\)"),
        (np.ones((5, 2), int), np.ones(5), "int64"),
        (np.array([[1.0], [np.nan], [1.0], [np.inf], [0.0]]), np.ones(5), r"\[1, 3\]"),
        (np.ones((5, 1)), np.array([1, 1, 0, 1, 1]), "clients without data"),
    ],
)
def test_updates_that_do_not_fit_are_refused(updates, weights, message):
    for rule in (federated.WeightedMean(), *rules(1).values()):
        with pytest.raises(ValueError, match=message):
            rule.aggregate(updates, weights)


LABELS = np.array([0, 1, 9], "uint8")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: federated.Median(-1).check(3), "must be 0 or more; received -1"),
        (
            lambda: federated.MultiKrum(1, selected=6).check(8),
            "1 to n - f - 2 = 5 updates; received selected=6",
        ),
        (lambda: federated.NormClipping(0), "above 0 and finite; received 0"),
        (lambda: federated.WeightedMean().check(0), "n >= 1"),
        (lambda: federated.SignFlip(-1.0), "above 0"),
        # A majority needs no supporters.
        (lambda: largest_unnoticed(20, 12), "received 12 of 20"),
        (lambda: federated.label_flip(LABELS, 9), "0 to 8; received 0 to 9"),
        (lambda: federated.Backdoor(1, fraction=0), "fraction=0"),
    ],
)
def test_what_means_nothing_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


UPDATES = np.random.default_rng(1).normal(1.0, 0.5, (20, 2000))


def test_attacks_replace_the_attackers_alone():
    for attack in (
        federated.SignFlip(2.0),
        federated.ScaledUpdate(),
        federated.ALittleIsEnough(),
    ):
        sent = attack.apply(UPDATES, {3, 5})
        changed = np.flatnonzero((sent != UPDATES).any(axis=1))
        assert changed.tolist() == [3, 5]
        with raises(ValueError, "0 to 19"):
            attack.apply(UPDATES, [20])
        with raises(ValueError, "honest"):
            attack.apply(UPDATES, range(20))
    np.testing.assert_array_equal(
        federated.SignFlip(2.0).apply(UPDATES, [0])[0], -2 * UPDATES[0]
    )


def test_a_little_is_enough_of_the_paper():
    """Baruch et al. 2019: n = 50, f = 24 needs 2 supporters of 26, hence z = 1.43."""
    assert largest_unnoticed(50, 24) == pytest.approx(1.43, abs=0.01)
    sent = federated.ALittleIsEnough(1.5).apply(UPDATES, range(4))
    honest = UPDATES[4:]
    np.testing.assert_allclose(
        sent[0], honest.mean(axis=0) - 1.5 * honest.std(axis=0), atol=1e-9
    )
    assert (sent[0] == sent[3]).all()


def test_poisoned_data():
    assert federated.label_flip(LABELS, 10).tolist() == [9, 8, 0]
    assert federated.label_flip(LABELS, 10).dtype == np.uint8
    images = np.zeros((10, 8, 8, 1), "float32")
    backdoor = federated.Backdoor(target=7, side=2, fraction=0.3)
    poisoned, flipped = backdoor.poisoned(images, np.zeros(10, int))
    marked = poisoned.any(axis=(1, 2, 3))
    assert marked.sum() == 3
    np.testing.assert_array_equal(flipped == 7, marked)
    assert poisoned[marked].sum() == 3 * 4
    assert (poisoned[marked][:, -2:, -2:] == 1).all()
    assert backdoor.marked(np.zeros((1, 4, 4), np.uint8)).max() == 255
    assert not images.any()
