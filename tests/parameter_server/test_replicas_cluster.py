"""Workers with several devices: each computes steps, as a worker of its own would."""

import json
import re
from pathlib import Path

import pytest

import launch

from ..conftest import PATIENT, PROGRAMS

SERVER = str(PROGRAMS / "server_with_devices.py")
PLACED = re.compile(
    r"^\S*/MatMul: .*/job:worker/replica:0/task:(\d)/device:([CG]PU:\d)$", re.M
)


def train(run_program, directory, policy, data, fault, *devices):
    """What the program says, and where the logs say that products were computed."""
    server = (SERVER, *(devices or ("2",)))
    with launch.servers(
        1, 2, server=server, log_dir=str(directory), **PATIENT
    ) as servers:
        done = run_program(
            "several_devices.py", policy, data, fault, config=servers.tf_config
        )
    assert done.returncode == 0, done.stderr[-4000:]
    line = done.stdout.rpartition("result ")[2].splitlines()[0]
    logs = [Path(directory, f"worker-{i}.log").read_text() for i in range(2)]
    return json.loads(line), {m.groups() for log in logs for m in PLACED.finditer(log)}


POLICIES = [
    ("asynchronous", "arrays"),
    ("asynchronous", "endless"),
    ("bounded", "arrays"),
    ("rounds", "arrays"),
]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("policy", "data"),
    [
        *POLICIES,
        ("backups", "arrays"),
        ("exchange", "arrays"),
        ("changed", "arrays"),
    ],
)
def test_every_device_of_every_worker_computes_steps(
    run_program, tmp_path, policy, data
):
    found, placed = train(run_program, tmp_path, policy, data, "none")
    assert found["replicas"] == ["0 CPU:0", "0 CPU:1", "1 CPU:0", "1 CPU:1"]
    assert placed == {(w, f"CPU:{d}") for w in "01" for d in (0, 1)}
    assert found["in_sync"] == 1  # A step's batch is that of one replica.
    asked, counts = found["asked"], found["counts"]
    assert min(counts) > 0
    assert sum(counts) == asked
    assert found["workers"] == [sum(counts[:2]), sum(counts[2:])]
    if policy == "rounds":
        assert found["iterations"] == asked / 4
    elif policy == "backups":
        assert asked / 4 <= found["iterations"] <= asked / 3 + 1
    else:
        assert found["iterations"] == asked
    assert found["weight"] == -found["iterations"]
    assert found["in_order"]
    assert found["evaluated"] == found["weight"]
    if policy == "bounded":
        assert found["staleness"] <= 2
        assert found["reported"] == list(counts)
        assert "1 CPU:0" in found["table"]


@pytest.mark.cluster
def test_a_worker_with_one_device_is_sent_steps_as_before(run_program, tmp_path):
    found, placed = train(run_program, tmp_path, "asynchronous", "arrays", "none", "1")
    assert found["replicas"] == ["0", "1"]
    assert found["trace"] == ["/device:CPU:0"]
    assert placed == {("0", "CPU:0"), ("1", "CPU:0")}
    assert found["iterations"] == sum(found["counts"]) == found["asked"]


@pytest.mark.cluster
@pytest.mark.parametrize("fault", ["killed", "restart"])
@pytest.mark.parametrize(("policy", "data"), POLICIES)
def test_a_lost_worker_takes_all_of_its_devices_along(
    run_program, tmp_path, policy, data, fault
):
    found, placed = train(run_program, tmp_path, policy, data, fault)
    assert {("1", "CPU:0"), ("1", "CPU:1")} <= placed
    asked = found["asked"] / (4 if policy == "rounds" else 1)
    # Each of its two devices had a message of one step under way, which may have written
    # a part of what it writes.
    again = 0 if policy == "rounds" else 2
    for updates in (found["iterations"], -found["weight"]):
        assert asked <= updates <= asked + again
    assert found["in_order"]
    assert found["evaluated"] == found["weight"]
    if fault == "restart":
        assert min(found["counts"]) > 0
