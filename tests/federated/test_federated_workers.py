"""Simulated clients on the workers of a cluster, and a server that is killed."""

import json
from pathlib import Path

import numpy as np
import pytest

from ..support.worker_processes import run_workers

PROGRAM = Path(__file__).parents[1] / "programs" / "federated_rounds.py"

pytestmark = pytest.mark.cluster


def run(directory, workers, *arguments):
    """Returns what each worker wrote, and its errors."""
    _, errors = run_workers(workers, PROGRAM, directory, *arguments)
    paths = [directory / f"{index}.json" for index in range(workers)]
    return [
        json.loads(each.read_text()) if each.exists() else None for each in paths
    ], errors


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    directory = tmp_path_factory.mktemp("alone")
    (found,), errors = run(directory, 1, 4)
    assert found, errors
    return found


def test_each_worker_trains_its_clients_and_all_have_the_model_of_one(alone, tmp_path):
    (server, other), errors = run(tmp_path, 2, 4)
    assert server, errors
    assert other, errors
    # 4 rounds, 6 clients, 2 steps each: counted in the graph of each worker.
    assert alone["steps"] == 4 * 6 * 2
    assert (server["steps"], other["steps"]) == (24, 24)
    assert server["answered"] == [6.0] * 4
    assert other["answered"] is None
    assert other["weights"] == server["weights"]
    np.testing.assert_allclose(server["weights"], alone["weights"], atol=1e-6)


def test_a_killed_server_goes_on_after_the_last_round(alone, tmp_path):
    (found,), _ = run(tmp_path, 1, 4, "kill", 0)
    assert found is None
    assert (tmp_path / "checkpoint" / "server.npz").exists()
    (found,), errors = run(tmp_path, 1, 4)
    assert found, errors
    assert len(found["answered"]) == 2
    assert found["weights"] == alone["weights"]


def test_a_killed_worker_takes_its_clients_of_that_round_along(tmp_path):
    (server, other), errors = run(tmp_path, 2, 4, "kill", 1)
    assert other is None
    assert server, errors
    assert server["answered"] == [6.0, 6.0, 3.0, 6.0]
    assert "worker:1 has ended" in errors[0]
