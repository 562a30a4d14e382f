"""A pipeline on two workers of a cluster: where it computes, and what it keeps there."""

import json
from pathlib import Path

import pytest

from ..support import jobs

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).parents[1] / "programs" / "pipeline_stages.py"
LOST_STAGE = PROGRAM.with_name("pipeline_lost_stage.py")


def run(directory, program, *options, status=0):
    cluster = "--num_ps=0", "--num_workers=2", "--program=coordinator"
    logs = f"--log_dir={directory / 'logs'}"
    return jobs.launch(*cluster, logs, program, directory, *options, status=status)


def found_alike(directory, *options):
    """What the program wrote, which trained as one process does."""
    run(directory, PROGRAM, *options)
    found = json.loads((directory / "found.json").read_text())
    assert found["difference"] < 1e-6
    for name, values in found["expected"].items():
        assert found["history"][name] == pytest.approx(values, rel=1e-5)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return found_alike(tmp_path_factory.mktemp("pipeline"))


def test_each_stage_is_computed_on_its_worker(found):
    first, second = found["processes"]
    assert len({first, second, found["chief"]}) == 3


def test_weights_and_slots_live_on_the_worker_of_their_stage(found):
    for path, device in {**found["devices"], **found["slots"]}.items():
        name = path.rpartition("/")[2] if path in found["slots"] else path
        if name in ("iteration", "learning_rate"):
            assert "/job:chief/" in device
        else:
            task = 0 if name.startswith(("first", "where_first")) else 1
            assert f"/job:worker/replica:0/task:{task}/" in device, path


def test_it_trains_evaluates_and_predicts_as_one_process(found):
    assert found["predicted"] < 1e-6
    assert found["evaluated"] == pytest.approx(found["evaluated_alone"], rel=1e-5)


def test_what_it_saves_is_loaded_by_one_process(found):
    assert found["loaded"] == 0
    assert found["restored"] == 0


def test_a_lost_stage_comes_back_and_training_goes_on_from_its_backup(tmp_path):
    done = run(tmp_path, LOST_STAGE, "SIGKILL")
    assert "worker:1 was killed by SIGKILL; restarted chief, worker:0" in done.stderr
    # One epoch of five steps was kept, and of the second two steps were lost.
    assert "epochs [1, 2, 3] iterations 20" in done.stdout


def test_a_stopped_stage_is_named(tmp_path):
    done = run(tmp_path, LOST_STAGE, "SIGSTOP", status=None)
    assert done.returncode != 0
    assert "PeerLostError: worker:1 at " in done.stdout


def test_without_waiting_each_batch_still_counts_once(tmp_path):
    found = found_alike(tmp_path, "--without_waiting")
    assert len(set(found["processes"])) == 2
    assert found["iterations"] == 2 + 3 * 5
    assert found["losses"][-1] < found["losses"][0]


def test_replicas_share_each_batch_and_the_weights(tmp_path):
    found = found_alike(tmp_path, "--replicas")
    assert len(found["seen"]) == 2
    assert str(found["chief"]) not in found["seen"]
    workers = {each.rpartition("/device")[0] for each in found["devices"].values()}
    assert len(workers) == 2


def test_parts_of_a_layer_are_on_all_workers(tmp_path):
    found = found_alike(tmp_path, "--split")
    assert found["predicted"] < 1e-6
    for devices in found["parts"].values():
        assert [each.partition("/device")[0] for each in devices] == [
            f"/job:worker/replica:0/task:{at}" for at in range(2)
        ]
    where = {**found["devices"], **found["slots"]}
    in_parts = {path: device for path, device in where.items() if "_part_" in path}
    # A matrix each, a bias of columns, and two slots of all of them.
    assert len(in_parts) == 3 * (2 + 2 + 2)
    for path, device in in_parts.items():
        at = path.partition("_part_")[2][0]
        assert f"/job:worker/replica:0/task:{at}/" in device, path
