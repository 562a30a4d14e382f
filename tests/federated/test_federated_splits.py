"""Splits hand out each example once, as unlike each other as they say."""

import functools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfdist
from tfdist.research import federated
from tfdist.research.federated.feature_shifts import brighter, rotated

from ..support.raising import raises

SPLITS = {
    "iid": federated.iid,
    "label_shards": federated.label_shards,
    "dirichlet": functools.partial(federated.dirichlet, alpha=1.0),
    "unequal": federated.unequal,
}
LABELS = np.random.default_rng(0).integers(0, 10, 2000)


@given(
    st.sampled_from(sorted(SPLITS)),
    st.lists(st.integers(-2, 5), min_size=40, max_size=120),
    st.integers(1, 8),
    st.integers(0, 99),
)
def test_every_example_is_handed_out_once(name, labels, clients, seed):
    split = SPLITS[name](labels, clients, seed=seed)
    assert len(split) == clients
    assert min(map(len, split)) >= 1
    assert sorted(np.concatenate(split)) == list(range(len(labels)))


@pytest.mark.parametrize("name", SPLITS)
def test_a_seed_says_which_split(name):
    one, same, other = (SPLITS[name](LABELS, 20, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(*pair) for pair in zip(one, same, strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def distance_from_iid(split):
    """The mean total variation between a client's labels and all labels."""
    amounts = federated.counts(split, LABELS)
    parts = amounts / amounts.sum(axis=1, keepdims=True)
    whole = amounts.sum(axis=0) / amounts.sum()
    return np.abs(parts - whole).sum(axis=1).mean() / 2


def test_splits_are_as_unlike_as_they_say():
    def by(alpha):
        return distance_from_iid(federated.dirichlet(LABELS, 20, alpha))

    iid = distance_from_iid(federated.iid(LABELS, 20))
    shards = distance_from_iid(federated.label_shards(LABELS, 20))
    assert iid < 0.2 < by(1.0) < by(0.1)
    assert by(1000.0) < 0.2
    assert shards > 0.6


def test_most_clients_have_two_classes_of_two_shards():
    labels = np.repeat(np.arange(10), 200)
    split = federated.label_shards(labels, 50)
    classes = (federated.counts(split, labels) > 0).sum(axis=1)
    assert set(classes) <= {1, 2}
    assert {len(each) for each in split} == {40}


def test_unequal_amounts():
    even = federated.unequal(LABELS, 20, spread=0.0)
    assert {len(each) for each in even} == {100}
    sizes = sorted(len(each) for each in federated.unequal(LABELS, 20, spread=1.0))
    assert sizes[-1] > 5 * sizes[0]


def test_counts_are_of_the_classes_that_occur():
    found = federated.counts([np.array([0, 1]), np.array([2], int)], [7, 9, 9])
    assert found.tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda: federated.iid([0, 1], 3), "2 examples for 3 clients"),
        (lambda: federated.iid([0, 1], 0), "for 0 clients"),
        (lambda: federated.iid([0.5, 1.0], 1), "float64"),
        (lambda: federated.iid(np.eye(3, dtype=int), 1), "argmax"),
        (lambda: federated.label_shards([0] * 5, 3), "6 parts"),
        (lambda: federated.label_shards([0] * 5, 3, 0), "1 or more shards"),
        (lambda: federated.dirichlet([0, 1], 1, 0.0), "alpha is above 0"),
        (
            lambda: federated.dirichlet([0] * 9, 8, 0.01),
            "none of 1000 .* min_examples=0",
        ),
        (lambda: federated.unequal([0, 1], 1, -1.0), "spread is at least 0"),
        (lambda: brighter(IMAGES, 3), "-1 to 1; received 3"),
        (lambda: rotated(IMAGES[0], 3), r"received \(8, 8\)"),
    ],
)
def test_errors_say_what_is_allowed(split, message):
    with pytest.raises(ValueError, match=message):
        split()


def test_clients_may_be_empty_if_asked():
    split = federated.dirichlet([0] * 9, 8, 0.01, min_examples=0)
    assert sum(map(len, split)) == 9


IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize("turns", range(4))
def test_quarter_turns_are_exact(turns):
    expected = np.rot90(IMAGES, turns, axes=(1, 2))
    np.testing.assert_array_equal(rotated(IMAGES, 90 * turns), expected)


def test_any_angle_of_any_images():
    images = IMAGES[..., None] / 255.0
    turned = rotated(rotated(images, 20), -20)
    assert turned.shape == images.shape
    assert turned.dtype == images.dtype
    smooth = np.tile(np.linspace(0, 1, 16), (1, 16, 1))
    back = rotated(rotated(smooth, 20), -20)
    np.testing.assert_allclose(back[:, 5:11, 5:11], smooth[:, 5:11, 5:11], atol=1e-2)
    assert (rotated(smooth + 1, 45)[:, 0, 0] == 0).all()


def test_brighter_images():
    np.testing.assert_array_equal(
        brighter(IMAGES, 0.2), np.minimum(IMAGES.astype(int) + 51, 255)
    )
    assert brighter(IMAGES / 255.0, -1).max() == 0


def test_a_table_of_who_has_what():
    split = tfdist.research.federated.label_shards(LABELS, 30)
    text = federated.table(split, LABELS, rows=3)
    lines = [line for line in text.splitlines() if re.match(r"│ +\d+ │", line)]
    amounts = federated.counts(split, LABELS)
    for line, each in zip(lines, amounts, strict=False):
        cells = [int(cell.replace(",", "")) for cell in re.findall(r"[\d,]+", line)]
        assert cells[1:] == [each.sum(), *each[each > 0]]
    assert len(lines) == 3
    assert "27 more" in text
    assert "2,000" in text


@pytest.mark.not_in_gate
def test_a_picture_of_who_has_what(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    split = federated.label_shards(LABELS, 20)
    federated.plot(split, LABELS, tmp_path / "split.png")
    pixels = image.imread(tmp_path / "split.png")[..., :3]
    colours = {tuple(each) for each in np.round(pixels.reshape(-1, 3), 1)}
    assert len(colours) >= 10
    with raises(ValueError, "split.png", "'split.gif'"):
        federated.plot(split, LABELS, "split.gif")
