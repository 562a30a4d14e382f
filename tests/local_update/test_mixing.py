"""Mixing keeps the mean, and models agree at the rate that the spectral gap says."""

import math
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfdist
from tfdist.local_update import mixing
from tfdist.local_update.mixing import __main__ as command

from ..support.raising import raises

BUILT_IN = {
    name: build
    for name, build in command.TOPOLOGIES.items()
    if name != "random_regular"
}
PRIMES = [5, 7, 11, 13, 17, 19, 23]
SYMMETRIC = ["ring", "torus", "complete", "star"]


def topology(name, participants):
    if name == "torus" and (participants < 4 or participants in PRIMES):
        participants += 4 if participants < 4 else 1
        participants += participants in PRIMES
    return BUILT_IN[name](participants)


topologies = st.builds(topology, st.sampled_from(sorted(BUILT_IN)), st.integers(1, 24))
symmetric = st.builds(topology, st.sampled_from(SYMMETRIC), st.integers(1, 24))


@st.composite
def graphs(draw):
    """Connected graphs: a random tree, and random edges."""
    participants = draw(st.integers(1, 12))
    tree = [(draw(st.integers(0, one - 1)), one) for one in range(1, participants)]
    pairs = st.integers(0, participants - 1)
    more = draw(st.lists(st.tuples(pairs, pairs), max_size=20))
    return mixing.from_edges(participants, tree + more)


def some_of(draw, topology):
    everyone = list(topology.participants)
    return draw(st.sets(st.sampled_from(everyone), min_size=1))


@st.composite
def with_some_present(draw, of=st.one_of(topologies, graphs())):  # noqa: B008
    whole = draw(of)
    return whole, some_of(draw, whole)


def models(topology, seed=0, size=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(topology.participants), size))


def distance(models):
    return np.linalg.norm(models - models.mean(axis=0))


@given(with_some_present(), st.integers(0, 40))
def test_rows_and_columns_sum_to_one_whoever_is_present(drawn, round_index):
    whole, present = drawn
    matrix = whole.among(present).matrix(round_index)
    assert matrix.shape == (len(present), len(present))
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-9)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-9)


@given(with_some_present(), st.integers(0, 40))
def test_a_round_keeps_the_mean(drawn, round_index):
    whole, present = drawn
    gossip = mixing.Gossip(whole)
    before = dict(zip(sorted(present), models(whole.among(present)), strict=True))
    after = [
        sum(weight * before[other] for other, weight in weights.items())
        for one in sorted(present)
        for weights in [gossip.weights(one, round_index, present)]
    ]
    np.testing.assert_allclose(
        np.mean(after, axis=0), np.mean(list(before.values()), axis=0), atol=1e-8
    )


@given(with_some_present(st.one_of(symmetric, graphs())), st.integers(0, 1000))
def test_each_round_shrinks_the_distance_from_the_mean_by_the_eigenvalue(drawn, seed):
    whole, present = drawn
    now = whole.among(present)
    before = models(now, seed)
    after = now.matrix() @ before
    assert distance(after) <= now.second_eigenvalue * distance(before) + 1e-7


@given(with_some_present(st.one_of(symmetric, graphs())))
def test_the_gap_does_not_become_smaller_when_participants_leave(drawn):
    whole, present = drawn
    assert whole.among(present).spectral_gap >= whole.spectral_gap - 1e-6


@given(with_some_present())
def test_those_present_agree_in_the_end(drawn):
    whole, present = drawn
    assert whole.among(present).spectral_gap > 1e-6


@given(with_some_present(topologies))
def test_leaving_in_turn_is_leaving_at_once(drawn):
    whole, present = drawn
    now = whole
    for gone in sorted(set(whole.participants) - present):
        now = now.among(set(now.participants) - {gone})
    for one, other in zip(now.matrices, whole.among(present).matrices, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize("participants", [16, 36])
def test_the_simulated_rate_agrees_with_the_gap(name, participants):
    """Fitted on the distances of rounds, from where rounding does not matter yet."""
    graph = BUILT_IN[name](participants)
    state, distances = models(graph, size=100), []
    while len(distances) < 2000 and (not distances or distances[-1] > 1e-9):
        distances.append(distance(state))
        state = graph.matrix(len(distances) - 1) @ state
    if graph.spectral_gap == 1:
        assert len(distances) <= len(graph.matrices) + 1
        return
    # The first rounds also shrink what dies out faster.
    late = np.log(distances[len(distances) // 2 :])
    fitted = math.exp(np.polyfit(np.arange(len(late)), late, 1)[0])
    assert fitted == pytest.approx(graph.second_eigenvalue, rel=0.01)


@pytest.mark.parametrize("n", [4, 12, 64])
def test_gaps_are_those_of_the_literature(n):
    def gap(name):
        return pytest.approx(BUILT_IN[name](n).spectral_gap, rel=1e-9)

    assert gap("ring") == 2 / 3 * (1 - math.cos(2 * math.pi / n))
    assert gap("complete") == 1
    assert gap("star") == 1 / n
    # Ying et al. 2021, proposition 1.
    assert gap("exponential") == 2 / (1 + math.ceil(math.log2(n)))


@pytest.mark.parametrize("n", [2, 16])
def test_one_peer_exponential_rounds_give_the_mean_exactly(n):
    graph = mixing.one_peer_exponential(n)
    state = models(graph)
    mean = state.mean(axis=0)
    for round_index in range(int(math.log2(n))):
        state = graph.matrix(round_index) @ state
    np.testing.assert_allclose(state, np.broadcast_to(mean, state.shape), atol=1e-12)
    assert (graph.degree, graph.spectral_gap) == (1, 1)


def test_a_participant_that_leaves_a_ring_makes_its_neighbours_neighbours():
    ring = mixing.ring(6)
    assert ring.neighbours(2) == (1, 3)
    assert ring.among({0, 1, 3, 4, 5}).neighbours(3) == (1, 4)
    assert ring.edges == tuple(sorted(each[::-1] for each in ring.edges))
    assert ring.weights(0) == pytest.approx({0: 1 / 3, 1: 1 / 3, 5: 1 / 3})


def test_a_star_goes_on_without_its_centre():
    left = mixing.star(5).among({1, 2, 3, 4})
    assert left.neighbours(1) == (2, 3, 4)


def test_a_torus_is_as_square_as_it_can_be():
    assert mixing.torus(12).neighbours(0) == (1, 3, 4, 8)
    assert mixing.torus(12, rows=2).neighbours(0) == (1, 5, 6)
    assert mixing.torus(12, rows=2).degree == 3


def test_edges_of_an_exponential_graph_lead_one_way():
    graph = mixing.exponential(8)
    assert graph.neighbours(0) == (1, 2, 4)
    assert (1, 0) in graph.edges
    assert (0, 1) not in graph.edges
    assert graph.bytes_per_round(10.0) == 30.0


def test_metropolis_weights_of_a_path():
    path = mixing.from_edges(3, [(0, 1), (1, 2), (2, 2)])
    expected = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    np.testing.assert_allclose(path.matrix(), expected)
    # Each is counted once in each direction.
    assert path.edges == ((0, 1), (1, 0), (1, 2), (2, 1))


def test_a_topology_keeps_its_weights():
    given = np.full((2, 2), 0.5)
    graph = mixing.from_matrix(given)
    given[:] = 7
    assert graph.weights(0) == {0: 0.5, 1: 0.5}
    with raises(ValueError, "read-only"):
        graph.matrix()[0, 0] = 1


def test_rounds_to_shrink():
    ring = mixing.ring(16)
    rounds = ring.rounds_to_shrink(1e-3)
    assert (
        ring.second_eigenvalue**rounds <= 1e-3 < ring.second_eigenvalue ** (rounds - 1)
    )
    assert mixing.complete(16).rounds_to_shrink(1e-3) == 1
    with raises(ValueError, "received 2"):
        ring.rounds_to_shrink(2)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.4]], "row 1, which sums to 0.9"),
        ([[0.5, 0.5], [0.6, 0.4]], "column 0, which sums to 1.1"),
        ([[1.5, -0.5], [-0.5, 1.5]], "received -0.5 in row 0, column 1"),
        (
            [[1.0, 0.0], [0.0, 1.0]],
            r"2 parts without an edge between them: \[0\], \[1\]",
        ),
        ([[0.0, 1.0], [1.0, 0.0]], "a positive weight for its own model"),
        ([[0.5, 0.5]], r"received shape \(1, 2\)"),
        ([[math.nan]], "received nan"),
    ],
)
def test_a_matrix_that_does_not_mix_is_an_error(matrix, message):
    with pytest.raises(ValueError, match=message):
        mixing.from_matrix(matrix)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: mixing.from_edges(4, [(0, 1), (2, 3)]), r"\[0, 1\], \[2, 3\]"),
        (lambda: mixing.from_edges(4, [(0, 4)]), r"joins two of 0 to 3; .* \(0, 4\)"),
        (lambda: mixing.ring(0), "1 or more participants; received 0"),
        (lambda: mixing.torus(7), "received 7 participants"),
        (lambda: mixing.torus(12, rows=5), r"in 5 rows. .*\[2, 3, 4, 6\]"),
        (lambda: mixing.from_matrix(), "received none"),
        (lambda: mixing.from_matrix(np.eye(2), np.eye(3)), "the same participants"),
        (
            lambda: mixing.ring(4).among([]),
            r"1 or more of \[0, 1, 2, 3\]; received \[\]",
        ),
        (lambda: mixing.ring(4).among([1, 4]), r"received \[1, 4\]"),
        (lambda: mixing.ring(4).weights(4), "received 4"),
        (lambda: mixing.ring(4).neighbours(-1), "received -1"),
        (lambda: mixing.Gossip(np.eye(2)), "from_matrix"),
        (
            lambda: mixing.Gossip(mixing.ring(8)).on(4),
            "ring of 8 needs 8 .* there are 4",
        ),
        (lambda: mixing.Gossip(mixing.ring).weights(0, 0, [0]), "call on"),
        (lambda: mixing.Gossip(mixing.ring(4)).weights(0, 0, [1, 2]), "participant 0"),
        (lambda: mixing.Mean().weights(3, 0, [0, 1]), "participant 3"),
        (lambda: mixing.Mean().on(0), "1 or more"),
    ],
)
def test_errors_say_what_is_allowed(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_policies_are_values():
    assert tfdist.mixing.Mean() == mixing.Mean()
    assert hash(mixing.Gossip(mixing.ring)) == hash(mixing.Gossip(mixing.ring))
    for policy in (
        mixing.Mean(),
        mixing.Gossip(mixing.ring),
        mixing.Gossip(mixing.star),
    ):
        assert isinstance(policy, mixing.Mixing)
        bound = policy.on(5)
        assert bound.on(5) is bound
        for one in range(5):
            weights = bound.weights(one, 3, range(5))
            assert list(weights) == sorted(weights)
            assert sum(weights.values()) == pytest.approx(1)
            assert bound.weights(one, 3, [one]) == pytest.approx({one: 1})


@given(st.sets(st.integers(0, 30), min_size=1))
def test_the_mean_has_equal_weights(present):
    assert mixing.Mean().weights(max(present), 0, present) == dict.fromkeys(
        sorted(present), 1 / len(present)
    )


def test_graphs_of_networkx():
    networkx = pytest.importorskip("networkx")
    graph = mixing.from_networkx(networkx.petersen_graph())
    assert graph.degree == 3
    assert graph.name == "Petersen Graph"
    with raises(ValueError, "a directed"):
        mixing.from_networkx(networkx.DiGraph([(0, 1)]))
    with raises(ValueError, "convert_node_labels_to_integers"):
        mixing.from_networkx(networkx.path_graph(["a", "b"]))
    with raises(ValueError, "2 parts"):
        mixing.from_networkx(networkx.empty_graph(2))


def test_random_regular_graphs():
    pytest.importorskip("networkx")
    one, other = (mixing.random_regular(32, seed=1) for _ in range(2))
    assert one.edges == other.edges
    assert one.degree == 4
    assert one.spectral_gap > mixing.torus(32).spectral_gap / 2
    with raises(ValueError, "degree=3", "participants=5"):
        mixing.random_regular(5, degree=3)


def test_random_regular_without_networkx(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with raises(ImportError, "networkx>=3"):
        mixing.random_regular(8)


def test_the_command_prints_a_row_per_graph(capsys):
    assert command.main(["mixing", "--participants=16", "--megabytes=10"]) == 0
    rows = {
        cells[0]: cells[1:]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := [each.strip() for each in line.strip("│").split("│")]) == 7
    }
    assert rows["ring"] == ["2", "0.0507", "14", "133", "20.0", "2,660.0"]
    assert rows["star"][0] == "15"
    assert rows["Mean: a ring all-reduce"][-1] == "18.8"
    assert len(rows) == 8  # The headings are one.


@pytest.mark.not_in_gate
def test_the_command_draws_the_graphs(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    picture = tmp_path / "graphs.png"
    assert command.main(["mixing", f"--plot={picture}", "--participants=8"]) == 0
    columns = np.array_split(image.imread(picture)[..., :3], 3, axis=1)
    panels = [panel for each in columns for panel in np.array_split(each, 2)]
    assert all(0.005 < (panel < 0.9).mean() < 0.5 for panel in panels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=cube"], "ring, torus, .* received 'cube'"),
        (["--topology=torus", "--participants=7"], "received 7 participants"),
        (["--participants=1"], "participants"),
        (["--plot=graphs.jpg"], "example graphs.png; received 'graphs.jpg'"),
        (["train.py"], "only flags are allowed"),
    ],
)
def test_the_command_refuses(arguments, message, capsys):
    assert command.main(["mixing", *arguments]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.startswith("tfdist.local_update.mixing: error: ")


def test_the_help_has_the_flags(capsys):
    assert command.main(["mixing", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("--topology", "--megabytes", "--plot"))
