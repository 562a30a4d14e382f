"""`LocalUpdateStrategy` on real workers, against the same training by hand."""

import json

import keras
import multi_worker_cases as synchronous
import numpy as np
import pytest
from case_jobs import Job

from tfdist.local_update import mixing

from . import local_update_cases as cases

pytestmark = pytest.mark.cluster
OUTER = (0.7, 0.9, True)  # DiLoCo's: rate, momentum, Nesterov


def job(tmp_path_factory, workers=2, **options):
    return Job(
        cases.__file__,
        tmp_path_factory.mktemp("workers"),
        f"--num_workers={workers}",
        tasks=workers,
        LOCAL_UPDATE=json.dumps(options),
    )


@pytest.fixture(scope="module")
def every_step(tmp_path_factory):
    with job(tmp_path_factory, local_steps=1) as found:
        yield found


@pytest.fixture(scope="module")
def diloco(tmp_path_factory):
    with job(tmp_path_factory, local_steps=3, outer=OUTER) as found:
        yield found


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory):
    with job(tmp_path_factory, local_steps=3, outer=OUTER, overlap=True) as found:
        yield found


@pytest.fixture(scope="module")
def fragmented(tmp_path_factory):
    options = {"local_steps": 3, "overlap": True, "fragments": 2}
    with job(tmp_path_factory, outer=OUTER, **options) as found:
        yield found


@pytest.fixture(scope="module")
def gossip(tmp_path_factory):
    with job(tmp_path_factory, workers=4, local_steps=2, ring=True) as found:
        yield found


def check(workers):
    for worker in workers:
        assert "error" not in worker, worker["error"]
    return workers


def check_equal(workers):
    first, *others = check(workers)
    for other in others:
        for name in weights_of(first):
            assert other[name].tobytes() == first[name].tobytes(), name


def check_close(found, expected, names, tolerance=2e-4):
    for name in names:
        np.testing.assert_allclose(
            found[name], expected[name], tolerance, tolerance / 10, err_msg=name
        )


def by_hand(workers, local_steps, optimizer, matrix, outer=None, epochs=2):
    """The weights of all workers: models, local steps and mixes in this process."""
    models = [
        synchronous.compiled(synchronous.Alone(), optimizer=optimizer)
        for _ in range(workers)
    ]
    x, y = synchronous.data(40)
    anchor, speed = np.array(flat(models[0])), 0.0
    steps = [slice(b, b + 8) for b in range(0, 40, 8)] * epochs
    for count, rows in enumerate(steps, start=1):
        for i, model in enumerate(models):
            mine = slice(i * 8 // workers, (i + 1) * 8 // workers)
            model.train_on_batch(x[rows][mine], y[rows][mine])
        if count % local_steps and count < len(steps):
            continue
        mixed = matrix @ np.stack([flat(model) for model in models])
        if outer is not None:
            rate, momentum, _ = outer
            change = anchor - mixed[0]
            speed = momentum * speed - rate * change
            anchor = anchor + momentum * speed - rate * change  # Nesterov
            mixed = np.stack([anchor] * workers)
        for model, values in zip(models, mixed, strict=True):
            set_flat(model, values)
    return [cases.result(model) for model in models]


def by_hand_overlapped(optimizer, outer, ends=(3,), groups=None, workers=2, epochs=2):
    """The same where a mix runs during the next steps, and DiLoCo's outer step.

    A round has as many steps as the last of `ends`. After each of these steps, the mix
    of the next group of weights begins, and that of the one before is taken.
    """
    models = [
        synchronous.compiled(synchronous.Alone(), optimizer=optimizer)
        for _ in range(workers)
    ]
    x, y = synchronous.data(40)
    anchors = models[0].get_weights()
    groups = groups or [range(len(anchors))]
    speeds = [np.zeros_like(each) for each in anchors]
    rate, momentum, _ = outer
    begun = None
    since = [0] * len(groups)

    def take(group, snapshots):
        after = [model.get_weights() for model in models]
        for w in groups[group]:
            change = anchors[w] - np.mean([each[w] for each in snapshots], axis=0)
            speeds[w] = momentum * speeds[w] - rate * change
            anchors[w] = anchors[w] + momentum * speeds[w] - rate * change  # Nesterov
            for model, snapshot in zip(after, snapshots, strict=True):
                model[w] = anchors[w] + (model[w] - snapshot[w])
        for model, values in zip(models, after, strict=True):
            model.set_weights(values)

    steps = [slice(b, b + 8) for b in range(0, 40, 8)] * epochs
    for count, rows in enumerate(steps):
        for i, model in enumerate(models):
            mine = slice(i * 8 // workers, (i + 1) * 8 // workers)
            model.train_on_batch(x[rows][mine], y[rows][mine])
        since = [each + 1 for each in since]
        step = count % ends[-1] + 1
        if step in ends:
            if begun is not None:
                take(*begun)
            begun = ends.index(step), [model.get_weights() for model in models]
            since[begun[0]] = 0
    take(*begun)
    for group, open_steps in enumerate(since):
        if open_steps:
            take(group, [model.get_weights() for model in models])
    return cases.result(models[0])


def flat(model):
    return np.concatenate([each.ravel() for each in model.get_weights()])


def set_flat(model, values):
    shapes = [each.shape for each in model.get_weights()]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    parts = np.split(values, ends)
    model.set_weights([p.reshape(s) for p, s in zip(parts, shapes, strict=True)])


def test_a_mean_after_every_step_of_sgd_is_synchronous_training(every_step):
    workers = every_step["sgd"]
    check_equal(workers)
    alone = cases.trained(synchronous.Alone())
    for worker in workers:
        check_close(worker, alone, set(alone))


def adam():
    return keras.optimizers.AdamW(0.01)


def mean_by_hand(local_steps, outer=None):
    return by_hand(2, local_steps, adam, np.full((2, 2), 0.5), outer)[0]


def weights_of(found):
    return [name for name in found if name.startswith("w")]


def check_by_hand(workers, expected, other, differs=("w0",)):
    """The same model on all, which is as expected, and not what another way gives."""
    check_equal(workers)
    check_close(workers[0], expected, weights_of(expected))
    assert max(np.abs(workers[0][n] - other[n]).max() for n in differs) > 1e-3


def test_each_worker_has_an_optimizer_of_its_own(every_step):
    """Adam is not linear: the mean of two Adams is not Adam of the mean."""
    alone = cases.trained(synchronous.Alone(), adam)
    expected = mean_by_hand(1)
    check_by_hand(every_step["adam"], expected, alone, weights_of(expected))


def test_statistics_of_batch_normalization_are_averaged(every_step):
    workers = every_step["batch_norm"]
    check_equal(workers)
    assert np.abs(workers[0]["w4"]).max() > 0.01  # the moving mean


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        # A worker without a row takes no step, and mixes.
        ("last_batch_of_one", [2, 3]),
        # Of unknown length.
        ("generator", [5, 5]),
        # A dataset of each worker's own.
        ("own_data", [10, 10]),
    ],
)
def test_each_worker_takes_the_steps_of_its_data(every_step, case, steps):
    workers = every_step[case]
    check_equal(workers)
    assert [worker["steps"] for worker in workers] == steps


def test_what_the_strategy_distributes_is_the_same_data(every_step):
    workers = every_step["distributed"]
    own_data, all_data = every_step["own_data"], every_step["sgd"]
    for worker, own, all_of_it in zip(workers, own_data, all_data, strict=True):
        np.testing.assert_allclose(worker["w0"], own["w0"], rtol=1e-5)
        assert worker["steps"] == own["steps"] == 10
        np.testing.assert_allclose(worker["of_all"], all_of_it["w0"], rtol=1e-5)


def test_callbacks_decide_alike_and_the_chief_alone_writes(every_step):
    chief, worker = every_step["callbacks"]
    check_equal([chief, worker])
    assert chief["epochs"] == worker["epochs"] == 2
    assert chief["files"] == ["1.keras", "2.keras", "model.keras"]
    assert worker["files"] == []
    assert chief["val_loss"].tolist() == worker["val_loss"].tolist()


def test_bytes_are_counted(every_step):
    """49 weights; a mean costs as many bytes as the model with two workers."""
    for worker in check(every_step["sgd"]):
        # Headers of 40 bytes: two messages per mean, and one of four logs in JSON.
        mixes, logs = 5 * (49 * 4 + 2 * 40), 40
        assert 4 * 10 < worker["received_bytes"][1] - mixes - logs < 4 * 40


def test_workers_with_different_models_are_told_before_the_first_mix(every_step):
    for worker in every_step["unequal_model"]:
        message = worker["message"]
        assert message.startswith("UnequalModelError: the workers differ in layer")
        assert "on worker:1, against worker:0" in message


def test_workers_with_different_strategies_are_told_before_the_first_mix(
    tmp_path_factory,
):
    with job(tmp_path_factory, local_steps=3, differ=True) as found:
        for worker in found["unequal_strategy"]:
            message = worker["message"]
            assert message.startswith("UnequalModelError: the workers have strategies")
            assert "local_steps (on worker:1, against worker:0)" in message
            assert "outer_optimizer (on worker:1" in message


def test_diloco_is_what_its_paper_says(diloco):
    check_by_hand(diloco["adam"], mean_by_hand(3, OUTER), mean_by_hand(3))


def test_a_mix_that_overlaps_with_the_next_round(overlapped):
    """Ten steps: rounds of 3, 3, 3 and 1, the last of which is waited for."""
    expected = by_hand_overlapped(adam, OUTER)
    check_by_hand(overlapped["adam"], expected, mean_by_hand(3, OUTER))


def test_fragments_are_mixed_one_after_the_other(fragmented):
    """Of 32, 8, 8 and 1 weights: in rounds of 3 steps, after the first and the third."""
    expected = by_hand_overlapped(adam, OUTER, (1, 3), [[0], [1, 2, 3]])
    check_by_hand(fragmented["adam"], expected, by_hand_overlapped(adam, OUTER))


def test_gossip_on_a_ring_is_what_its_matrix_says(gossip):
    optimizer = lambda: keras.optimizers.SGD(0.1, momentum=0.9)  # noqa: E731
    expected = by_hand(4, 2, optimizer, mixing.ring(4).matrix())
    for found, model in zip(check(gossip["sgd"]), expected, strict=True):
        check_close(found, model, weights_of(model))
