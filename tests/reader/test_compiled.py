"""Any compiled loss or metric gives one process's results: see compiled_cases.py."""

import re

import multi_worker_cases
import numpy as np
import pytest
from case_jobs import jobs_by_strategy, under_each

from . import compiled_cases as cases

pytestmark = pytest.mark.cluster

HERE = r".*compiled_cases\.py, line .*tfdist\.whole_batch\(x\).*replica_loss=\"mean\""
REFUSED = {
    "contrastive_step": f"IndivisibleLossError: {HERE}",
    "centered_gradient_step": f"IndivisibleLossError: {HERE}",
    "greatest_log_step": f"IndivisibleLossError: .*Max{HERE}",
    "two_rows_for_each_example": "IndivisibleLossError: .*several outputs",
    "above_the_limit": "IndivisibleLossError: .*whole batch.* bytes.*whole_batch=False",
}
OF_WORKERS = {"own_data"}
APART = {"mixed_precision", "on_parts", *REFUSED}
COMPARED = [name for name in cases.CASES if name not in APART]
# Of the ring, whose exchange is the other one; `make features` runs all.
RING_IN_PART = {
    "beside_added_losses",
    "contrastive_with_a_last_batch_of_one",
    "metric_of_a_maximum",
    "several_outputs",
    "step_of_ones_own",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The job of each strategy, started on first use."""
    with jobs_by_strategy(cases.__file__, tmp_path_factory) as of:
        yield of


def alone(name):
    return cases.CASES[name](multi_worker_cases.Alone())


def checked(workers):
    for worker in workers:
        assert "error" not in worker, worker["error"]
        assert worker["replicas"] == 2
    assert len({worker["hash"] for worker in workers}) == 1
    return workers[0]


@under_each(COMPARED, RING_IN_PART, OF_WORKERS)
def test_matches_one_process(found, strategy, name):
    expected = alone(name)
    worker = checked(found(strategy)[name])
    for key in set(expected) - {"hash"}:
        np.testing.assert_allclose(
            worker[key], expected[key], rtol=2e-4, atol=2e-5, err_msg=key
        )


@under_each(["mixed_precision"], RING_IN_PART)
def test_matches_one_process_as_well_as_float16_can(found, strategy, name):
    expected = alone(name)
    worker = checked(found(strategy)[name])
    np.testing.assert_allclose(worker["loss"], expected["loss"], rtol=0.02)


@under_each(["on_parts"], RING_IN_PART)
def test_each_replica_computes_on_its_part_if_asked_to(found, strategy, name):
    expected = alone(name)
    worker = checked(found(strategy)[name])
    # Fewer examples to tell apart.
    assert worker["loss"][0] < 0.9 * expected["loss"][0]
    assert worker["in_a_step"][0] < 0.9 * expected["in_a_step"][0]
    assert worker["greatest"][0] < expected["greatest"][0]


@under_each(REFUSED, RING_IN_PART)
def test_rejected_with_what_to_do(found, strategy, name):
    for worker in found(strategy)[name]:
        assert "error" not in worker, worker["error"]
        assert re.search(REFUSED[name], worker["message"], re.S), worker["message"]
