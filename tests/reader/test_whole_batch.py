"""Synchronous workers match one process for any loss, or raise an error that says why."""

import re

import multi_worker_cases
import numpy as np
import pytest
from case_jobs import STRATEGIES, jobs_by_strategy, under_each

from . import whole_batch_cases as cases

pytestmark = pytest.mark.cluster

OF_SEVERAL_WORKERS = {
    "vocabulary_in_the_model": "UnequalModelError: .*its vocabulary.*on worker:1",
    "vocabulary_in_the_dataset": r"UnequalDataError: .*x, its first batch\[0\].*worker:1",
    "shuffled_arrays": "UnequalDataError: .*different data: x .*worker:1.*; y ",
    "another_activation": r"UnequalModelError: .*\(Dense\): its options.*worker:1",
    "other_epochs": "UnequalModelError: fit was called with different epochs",
    "the_same_vocabulary": "no error",
    "augmented_images": "no error",
}
WORDS = (
    r".*whole_batch_cases\.py, line .*tfdist\.whole_batch\(x\).*replica_loss=\"mean\""
)
REFUSED = {
    **dict.fromkeys(
        ("root_of_a_mean", "log_of_a_state_in_mid_step"),
        r"IndivisibleLossError: .*such as a root or a ratio.*whole_batch\(x\)"
        r".*replica_loss=\"mean\"",
    ),
    "ratio_in_a_weight": "NotAdditiveError: .*ratio must be set to .*a ratio",
    "greatest_loss": rf"IndivisibleLossError: .*through Max {WORDS}",
    "gradients_by_other_means": "IndivisibleLossError: .*tf.GradientTape.gradient",
    "queue_of_examples": "NotAdditiveError: .*kept must be set to .*it holds examples",
    "own_mean_in_a_plain_variable": (
        r"SynchronousTrainingError: .*whole_batch_cases\.py, line .*aggregation=.*MEAN"
    ),
    "mean_in_a_variable_that_a_read_combines": (
        "NotAdditiveError: .*ON_READ is set to what each replica computes"
    ),
    "decaying_sum_in_a_plain_variable": (
        r"SynchronousTrainingError: .*SUM must be set to a sum.*_cases\.py, line"
    ),
    "plain_variable_from_a_graph": (
        "SynchronousTrainingError: .*a tensor of a graph|initial_value.*not be lifted"
    ),
    "normalized_behind_a_mask": "SynchronousTrainingError: .*synchronized=True and a mask",
    "texts_of_any_length": "IndivisibleLossError: .*output_sequence_length",
    "mean_in_a_plain_variable_in_a_function": (
        r"NestedFunctionError: .*'note'.*Remove that @tf\.function"
    ),
    "noise_of_a_shape_without_call": r"TypeError: .*None.*tf\.shape\(x\)\[0\]",
    "batch_of_a_shape": r"TypeError: .*None.*tf\.shape\(x\)\[0\]",
    "noise_of_a_fixed_size": (
        r"IndivisibleLossError: .*whole_batch_cases\.py, line.*makes 8 rows"
        r".*a part.*tf\.shape\(x\)\[0\]"
    ),
    "noise_of_a_fixed_size_for_each_part": (
        r"InvalidArgumentError: .*(whole_batch_cases\.py, line|failed on worker)"
        r".*If one of these sizes.*a part.*tf\.shape\(x\)\[0\]"
    ),
    "callback_that_fails": "assertion failed|InvalidArgumentError",
}
COMPARED = [
    name
    for name in cases.CASES
    if name not in {"within_the_scope", *OF_SEVERAL_WORKERS, *REFUSED, "another_shape"}
]
# Of the ring, which shares with the other strategy how losses and metrics of a part of
# the batch are put together; `make features` runs all.
RING_IN_PART = {
    "several_terms",
    "sum_and_mean",
    "gradient_penalty",
    "masked",
    "mean_by_ones_own_word",
    "metric_of_integers_and_floats",
    "sum_in_a_variable_that_a_read_adds_up",
    "embedded_positions",
    "greatest_loss",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The job of each strategy, started on first use."""
    with jobs_by_strategy(cases.__file__, tmp_path_factory) as of:
        yield of


@pytest.mark.in_gate("gradient_penalty-MultiWorkerMirroredStrategy")
@under_each(COMPARED, RING_IN_PART)
def test_matches_one_process(found, strategy, name):
    alone = cases.CASES[name](multi_worker_cases.Alone())
    workers = found(strategy)[name]
    for worker in workers:
        assert "error" not in worker, worker["error"]
        assert worker["replicas"] == 2
    assert len({worker["hash"] for worker in workers}) == 1
    for key in set(alone) - {"hash"}:
        np.testing.assert_allclose(
            workers[0][key], alone[key], rtol=2e-4, atol=2e-5, err_msg=key
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_script_within_the_scope_saves_and_loads(found, strategy):
    first, *others = found(strategy)["within_the_scope"]
    for worker in (first, *others):
        assert "error" not in worker, worker["error"]
        assert worker["same"]
        # It was backed up after 2 epochs of 5 steps, and went on to the third.
        assert worker["steps_of_again"] == 15
    assert {"best.keras", "each.weights.h5", "model.keras", "export"} <= set(
        first["files"]
    )
    assert {"all.weights.h5", "other.keras", "backup"} <= set(first["files"])
    assert all(worker["files"] == [] for worker in others)


@pytest.mark.in_gate("greatest_loss-MultiWorkerMirroredStrategy")
@under_each(REFUSED, RING_IN_PART)
def test_rejected_with_what_to_do(found, strategy, name):
    for worker in found(strategy)[name]:
        check_message(worker, REFUSED[name])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_callbacks_own_stack_is_kept(found, strategy):
    for worker in found(strategy)["callback_that_fails"]:
        assert "in my_own_callback" in worker["stack"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_line_that_reads_a_size_is_in_the_stack(found, strategy):
    for worker in found(strategy)["noise_of_a_shape_without_call"]:
        assert "keras.random.normal((x.shape[0], 4))" in worker["stack"]


@pytest.mark.parametrize("name", OF_SEVERAL_WORKERS)
def test_what_workers_must_have_in_common(found, name):
    for worker in found("MultiWorkerMirroredStrategy")[name]:
        check_message(worker, OF_SEVERAL_WORKERS[name])


def test_variables_of_different_shapes_are_named(found):
    messages = [
        worker["message"]
        for worker in found("MultiWorkerMirroredStrategy")["another_shape"]
    ]
    words = "UnequalModelError: .*about to create kernel.*of a different shape"
    assert any(re.search(words, each) for each in messages), messages
    # Whoever is later finds the other one gone.
    assert all("Unequal" in each or "PeerLost" in each for each in messages), messages


def test_those_of_make_check_are_there():
    assert set(cases.CASES) >= RING_IN_PART


def check_message(worker, words):
    assert "error" not in worker, worker["error"]
    assert re.search(words, worker["message"], re.S), worker["stack"]
