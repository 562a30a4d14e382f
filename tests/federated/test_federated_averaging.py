"""The algorithm, the server and who answers: decisions, without TensorFlow."""

import logging
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.research import federated
from tfdist.research.federated import server_file
from tfdist.research.federated.averaging import local_batches, random_stream
from tfdist.research.federated.client_update import merged

from ..support.raising import raises

PRIVATE = federated.GaussianMechanism(1.0, 1.0)


class Everybody:
    """A sampling of one's own."""

    def clients(self, round_index, num_clients, available=None):
        return tuple(range(num_clients))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": 0.0}, "above 0 and at most 1; received 0.0"),
        ({"local_epochs": 0}, "local_epochs is 1 or more; received 0"),
        ({"local_epochs": 1.5}, "local_epochs is 1 or more; received 1.5"),
        ({"batch_size": 0}, "1 or more or None, for all examples; received 0"),
        ({"min_clients": 0}, "min_clients is 1 or more"),
        ({"proximal": -1.0}, "proximal is 0 or more; received -1"),
        ({"learning_rate_decay": 1.1}, "above 0 and at most 1, the factor"),
        ({"deadline": 0.0}, "above 0 seconds, or None"),
        ({"seed": -1}, "a seed is 0 or more"),
        (
            {"fraction": 0.5, "sampling": federated.PoissonSampling(0.5)},
            "give fraction or sampling",
        ),
        ({"rule": federated.Median(), "privacy": PRIVATE}, "a mean of its own"),
        ({"sampling": Everybody(), "privacy": PRIVATE}, "expected number of clients"),
    ],
)
def test_an_algorithm_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        averaging(**arguments)


Behavior = federated.ClientBehavior
averaging = federated.FederatedAveraging
ONE_HOT = np.eye(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Behavior(dropout=1.5), "probability from 0 to 1"),
        (lambda: Behavior(seconds=[-1.0]), "0 seconds or more"),
        (lambda: Behavior(attack=federated.SignFlip()), "an attack needs attackers="),
        (lambda: Behavior(attackers=[4]).check(4), r"s of clients, 0 to 3.*\[4\]"),
        (lambda: Behavior(dropout=[9]).check(4), r"dropout are .*, 0 to 3.*\[9\]"),
        (lambda: Behavior(seconds=[1.0]).check(4), "for each of 4 clients; received 1"),
        (lambda: local_batches(averaging(), 0, 0, 7), "client 7 has no examples"),
        (lambda: server(weights=np.zeros((2, 2))), "weights are floats of shape"),
        (lambda: server(0), "1 or more clients; received 0"),
        (lambda: server().leave(4), "clients are 0 to 3; received 4"),
        (lambda: server().leave(1, take_out=True), "give keep_contributions=True"),
        (lambda: server(keep=True, rule=federated.Median()), "add up under WeightedM"),
        (
            lambda: server(keep=True, server_optimizer=federated.FedAdam()),
            "add up under",
        ),
        (
            lambda: server(14, rule=federated.Krum(1.5)),
            "must be 0 or more; received 1.5",
        ),
        (lambda: federated.label_flip(ONE_HOT, 3), "class numbers.*argmax"),
        (
            lambda: federated.Backdoor(1).poisoned(np.zeros((3, 4, 4)), ONE_HOT),
            "class numbers.*argmax",
        ),
        (lambda: federated.Backdoor(-1), "a class, 0 or more; received -1"),
    ],
)
def test_what_means_nothing_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(st.integers(1, 50), st.integers(1, 4), st.none() | st.integers(1, 60))
def test_each_epoch_takes_every_example_once(examples, epochs, batch_size):
    algorithm = averaging(local_epochs=epochs, batch_size=batch_size, seed=5)
    rows, sizes = local_batches(algorithm, examples, 3, 2)
    assert sizes.sum() == len(rows) == examples * epochs
    for epoch in rows.reshape(epochs, examples):
        assert sorted(epoch) == list(range(examples))
    size = min(batch_size or examples, examples)
    assert set(sizes) <= {size, examples % size}
    assert len(sizes) == epochs * math.ceil(examples / size)


def test_each_epoch_is_shuffled_anew():
    rows = local_batches(averaging(local_epochs=2), 100, 0, 0).rows
    assert rows[:100].tolist() != rows[100:].tolist()


def test_the_order_depends_on_seed_round_and_client_alone():
    def order(seed=0, round_index=0, client=0):
        return local_batches(
            averaging(seed=seed), 100, round_index, client
        ).rows.tolist()

    assert order() == order()
    others = [order(seed=1), order(round_index=1), order(client=1)]
    assert order() not in others
    streams = {random_stream(averaging(), r, c) for r in range(10) for c in range(10)}
    assert len(streams) == 100


def test_a_round_without_the_vanished_and_the_late():
    behavior = federated.ClientBehavior(dropout=[1], seconds=[1.0, 2.0, 3.0, 9.0])
    assert behavior.answers(0, range(4), 5.0) == ((0, 2), (1,), (3,), 5.0)
    assert behavior.answers(0, range(4), None) == ((0, 2, 3), (1,), (), 9.0)
    assert behavior.answers(0, [0, 2], 5.0) == ((0, 2), (), (), 3.0)


def test_clients_vanish_with_their_probability_and_alike_again():
    behavior = federated.ClientBehavior(dropout=0.3, seed=1)
    rounds = [behavior.answers(each, range(50), None) for each in range(100)]
    assert rounds == [behavior.answers(each, range(50), None) for each in range(100)]
    gone = sum(len(each.vanished) for each in rounds)
    # 6 standard deviations of a binomial variable.
    assert gone == pytest.approx(1500, abs=6 * math.sqrt(5000 * 0.3 * 0.7))


def update(client, *change, examples=1):
    return federated.ClientUpdate(client, np.array(change, np.float32), examples)


def server(num_clients=4, weights=(0.0, 0.0), keep=False, **arguments):
    weights = np.array(weights, np.float32)
    return federated.Server(averaging(**arguments), weights, num_clients, keep)


def test_a_round_adds_the_mean_weighted_by_examples():
    one = server(weights=(1.0, 1.0))
    assert one.finish_round([update(0, 2.0, 0.0, examples=3), update(3, -2.0, 4.0)])
    np.testing.assert_array_equal(one.weights, [2.0, 2.0])
    assert one.round_index == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (update(4, 1.0, 1.0), "an update of client 4"),
        (update(0, 1.0), r"client 0 has another model.*\(2,\).*\(1,\)"),
        (update(0, 1.0, 1.0, examples=0), "client 0 has no examples"),
        (update(0, 1.0, math.nan), "client 0 must send finite numbers"),
    ],
)
def test_updates_that_cannot_be_used_are_refused_and_change_nothing(wrong, message):
    one = server()
    with pytest.raises(ValueError, match=message):
        one.finish_round([update(1, 1.0, 1.0), wrong])
    assert one.round_index == 0
    assert not one.weights.any()


@pytest.mark.parametrize(
    "arguments", [{"min_clients": 3}, {"rule": federated.Median(attackers=1)}]
)
def test_too_few_answers_change_nothing_and_say_so(arguments, caplog):
    one = server(**arguments)
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert not one.finish_round([update(0, 1.0, 1.0), update(1, 1.0, 1.0)])
    assert "round 1 changes nothing" in caplog.text
    assert one.round_index == 1
    assert not one.weights.any()


def test_clients_that_left_are_not_asked():
    one = server()
    one.leave(2)
    assert one.select() == (0, 1, 3)
    assert one.select([2, 3]) == (3,)
    with raises(ValueError, "[2]", "client 2"):
        one.finish_round([update(2, 1.0, 1.0)])


def random_rounds(rounds, clients, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        there = rng.choice(clients, size=3, replace=False)
        yield [
            update(int(each), *rng.normal(size=2), examples=int(rng.integers(1, 9)))
            for each in there
        ]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_all_clients_have_added_is_the_model(momentum):
    one = server(
        6, (1.0, -2.0), keep=True, server_optimizer=federated.FedAvgM(0.5, momentum)
    )
    for updates in random_rounds(6, 5):
        one.finish_round(updates)
    assert np.abs(one.weights - [1.0, -2.0]).min() > 1e-3
    for client in range(5):
        one.leave(client, take_out=True)
    np.testing.assert_allclose(one.weights, [1.0, -2.0], atol=1e-6)
    # Nothing of theirs is left in the momentum, either.
    one.finish_round([update(5, 0.0, 0.0)])
    np.testing.assert_allclose(one.weights, [1.0, -2.0], atol=1e-6)


def test_taking_a_client_out_leaves_the_terms_of_the_others():
    one = server(keep=True)
    one.finish_round([update(0, 4.0, 0.0), update(1, 0.0, 2.0)])
    one.leave(0, take_out=True)
    np.testing.assert_allclose(one.weights, [0.0, 1.0])


@pytest.mark.parametrize(
    "arguments",
    [
        {"server_optimizer": federated.FedAvgM(1.0, 0.9), "keep": True},
        {"server_optimizer": federated.FedAdam()},
        {"privacy": PRIVATE},
    ],
)
def test_a_server_that_was_started_again_goes_on_alike(arguments, tmp_path):
    rounds = list(random_rounds(6, 4))
    whole, first = server(**arguments), server(**arguments)
    for updates in rounds:
        whole.finish_round(updates)
    for updates in rounds[:3]:
        first.finish_round(updates)
    server_file.save(tmp_path / "new", "this", first.state())
    second = server(**arguments)
    second.restore(server_file.load(tmp_path / "new", "this"))
    for updates in rounds[3:]:
        second.finish_round(updates)
    assert second.weights.tobytes() == whole.weights.tobytes()
    for name, value in whole.state().items():
        np.testing.assert_array_equal(second.state()[name], value)


def test_a_file_is_of_one_experiment_and_whole(tmp_path):
    assert server_file.load(tmp_path, "this") is None
    server_file.save(tmp_path, "this", server().state())
    with raises(ValueError, "another experiment"):
        server_file.load(tmp_path, "that")
    assert [each.name for each in tmp_path.iterdir()] == ["server.npz"]
    with raises(ValueError, "3 parameters", "2"):
        server(weights=(0.0, 0.0, 0.0)).restore(server_file.load(tmp_path, "this"))


def test_a_private_round_has_clipped_updates_noise_and_the_expected_number():
    quiet = federated.GaussianMechanism(1.0, 0.0)
    one = server(10, privacy=quiet, sampling=federated.PoissonSampling(0.5))
    one.finish_round([update(0, 30.0, 40.0, examples=99)])
    np.testing.assert_allclose(one.weights, [0.6 / 5, 0.8 / 5], rtol=1e-6)
    noisy = server(10, privacy=PRIVATE)
    assert noisy.finish_round([])  # A round without noise would tell that no one came.
    assert noisy.weights.all()


def test_means_of_groups_are_the_mean():
    updates = next(random_rounds(1, 4))
    whole, parts = server(), server()
    whole.finish_round(updates)
    parts.finish_round([merged(updates[:2]), updates[2]])
    np.testing.assert_allclose(parts.weights, whole.weights, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rule", "median"),
        ("rule", federated.Median),
        ("rule", None),
        ("server_optimizer", "adam"),
        ("sampling", "poisson"),
        ("privacy", 1.0),
    ],
)
def test_a_choice_is_an_object_of_its_kind(name, value):
    with pytest.raises(
        TypeError, match=f"^{name} is an object of tfdist.research.federated"
    ):
        averaging(**{name: value})


def test_a_round_takes_one_update_of_each_client_that_it_has_asked():
    one = server(fraction=0.5)
    first, second = one.select()
    (other, _) = set(range(4)) - {first, second}
    with raises(ValueError, "one update", "several"):
        one.finish_round([update(first, 1.0, 1.0), update(first, 1.0, 1.0)])
    with pytest.raises(ValueError, match=rf"has asked clients.*updates of \[{other}\]"):
        one.finish_round([update(first, 1.0, 1.0), update(other, 1.0, 1.0)])
    assert one.round_index == 0
    assert one.finish_round([update(first, 1.0, 1.0), update(second, 1.0, 1.0)])


def test_rounds_that_could_never_count_are_refused_before_the_first():
    server(14, fraction=0.5, rule=federated.Krum(2))
    with raises(ValueError, "no round", "0.5 of 12", "6"):
        server(12, fraction=0.5, rule=federated.Krum(2))


def test_a_damaged_file_of_a_server_is_named(tmp_path):
    server_file.save(tmp_path, "this", {"weights": np.zeros(3)})
    whole = (tmp_path / "server.npz").read_bytes()
    for length in (0, 10, len(whole) // 2):
        (tmp_path / "server.npz").write_bytes(whole[:length])
        with raises(ValueError, "server.npz", "damaged"):
            server_file.load(tmp_path, "this")
