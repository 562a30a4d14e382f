"""Synchronous workers have identical bits, and match one process."""

import sys

import multi_worker_cases as cases
import numpy as np
import pytest
from case_jobs import Job

pytestmark = pytest.mark.cluster

# What has a meaning on a cluster alone, or is drawn at random.
NOT_COMPARED = {
    "packs",
    "callbacks",
    "dropout",
    "initial_weights",
    *(f"kept_{each}" for each in cases.KINDS_OF_DATA),
    "saving",
    "saving_again",
    "saving_elsewhere",
    "unequal_data",
}
COMPARED = [name for name in cases.CASES if name not in NOT_COMPARED]
ON_TWO_DEVICES = [
    "uneven",
    "several_steps_in_one",
    "own_data",
    "dropout",
    "accumulated",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    directory = tmp_path_factory.mktemp("workers")
    with Job(cases.__file__, directory, "--num_workers=2") as job:
        yield job


@pytest.fixture(scope="module")
def on_two_devices(tmp_path_factory):
    directory = tmp_path_factory.mktemp("devices")
    cluster = "--num_workers=1", "--chief"
    with Job(cases.__file__, directory, *cluster, LOCAL_DEVICES="2") as job:
        yield job


def check_like_one_process(name, workers):
    check_same_bits(workers)
    alone = cases.CASES[name](cases.Alone())
    for key in set(alone) - {"hash"}:
        for worker in workers:
            np.testing.assert_allclose(
                worker[key], alone[key], rtol=2e-4, atol=2e-5, err_msg=key
            )


def check_same_bits(workers):
    for worker in workers:
        assert "error" not in worker, worker["error"]
    assert len({worker["hash"] for worker in workers}) == 1


@pytest.mark.in_gate("uneven", "rows_of_steps_in_one_call")
@pytest.mark.parametrize("name", COMPARED)
def test_trains_like_one_process(found, name):
    assert [worker["replicas"] for worker in found[name]] == [2, 2]
    check_like_one_process(name, found[name])


@pytest.mark.parametrize("name", sorted(set(ON_TWO_DEVICES) - {"dropout"}))
def test_trains_on_two_devices_of_a_chief_and_a_worker(on_two_devices, name):
    assert [worker["replicas"] for worker in on_two_devices[name]] == [4, 4]
    check_like_one_process(name, on_two_devices[name])


def test_steps_that_nobody_sees_run_in_few_calls(found):
    for worker in found["many_steps"]:
        assert worker["steps_of_calls"] == [63, 63]
        # Eleven calls of a step tell how long one takes.
        assert 12 <= worker["calls"][0] <= 40
        assert worker["calls"][1] < worker["calls"][0]


def test_replicas_drop_different_units_and_end_the_same(found, on_two_devices):
    for workers in (found["dropout"], on_two_devices["dropout"]):
        check_same_bits(workers)
        assert all(worker["masks_differ"] for worker in workers)


def test_different_seeds_begin_with_the_same_weights(found):
    one, other = found["initial_weights"]
    assert one["seed"] != other["seed"]
    check_same_bits([one, other])


def test_gradients_leave_in_packs(found):
    for worker in found["packs"]:
        assert "error" not in worker, worker["error"]
        assert worker["packs"] == 4
        assert worker["sums"] == [2.0] * 4


def test_callbacks_decide_the_same_and_the_chief_alone_writes(found):
    chief, worker = found["callbacks"]
    check_same_bits([chief, worker])
    assert chief["files"] == ["1.keras", "2.keras", "board", "log.csv"]
    assert worker["files"] == []
    assert chief["epochs"] == worker["epochs"] == 2
    assert chief["rate"] == worker["rate"] == pytest.approx(0.01 * 0.9 * 0.9 * 0.5)


def test_a_worker_that_saves_elsewhere_loads_the_chief_s(found):
    check_same_bits(found["saving_elsewhere"])
    assert all(worker["same"] for worker in found["saving_elsewhere"])


def test_a_worker_loads_the_save_of_the_chief_that_is_its_own(found):
    check_same_bits(found["saving_again"])
    for worker in found["saving_again"]:
        assert worker["loaded"] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_the_chief_alone_saves_and_all_load(found):
    chief, worker = found["saving"]
    check_same_bits([chief, worker])
    assert chief["files"] == [
        "archive",
        "export",
        "model.keras",
        "model.weights.h5",
    ]
    assert worker["files"] == []
    assert chief["same"]
    assert worker["same"]
    assert chief["told"] == ""
    # Python 3.10 has no notes, and the worker's log has the words.
    assert "Call strategy.barrier()" in worker["told"] or sys.version_info < (3, 11)


@pytest.mark.in_gate("arrays")
@pytest.mark.parametrize("kind", cases.KINDS_OF_DATA)
def test_fit_continues_at_its_step_as_if_nothing_had_happened(found, kind):
    workers = found[f"kept_{kind}"]
    check_same_bits(workers)
    for each in workers:
        assert (0, 1) <= each["first"] <= (1, 2)
        assert each["first"] == workers[0]["first"]
        for name, value in each["expected"].items():
            if name != "hash":
                np.testing.assert_allclose(each[name], value, 1e-5, 1e-7, err_msg=name)


def test_unequal_data_is_refused_on_every_worker(found):
    for worker in found["unequal_data"]:
        assert worker["message"].startswith("UnequalDataError: ")
        assert "5, 4 batches" in worker["message"]
        assert "AutoShardPolicy.OFF" in worker["message"]
