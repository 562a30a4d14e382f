"""The measuring command on real clusters, as small as they get."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tf_config.speedup import Speedup

from ..support import jobs
from ..support.deadline import STARTUP_FLAG

PROGRAM = str(Path(__file__).parents[1] / "programs" / "speedup_program.py")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and iproute2"
)


def measure(tmp_path, *arguments):
    done = jobs.run(
        *("-m", "launch.speedup", f"--log_dir={tmp_path / 'logs'}"),
        *(f"--output={tmp_path / 'speedup.json'}", "--num_ps=1", "--repeats=1"),
        *(STARTUP_FLAG, *arguments),
        TFDIST_TEST_RUN=str(tmp_path),
    )
    assert jobs.with_environment("TFDIST_TEST_RUN", str(tmp_path)) == []
    return done.stdout, Speedup.from_json((tmp_path / "speedup.json").read_text())


@pytest.mark.cluster
def test_each_size_is_measured_epoch_by_epoch(tmp_path):
    flags = ["--workers=1,2", "--consistency=bounded:1"]
    output, measured = measure(tmp_path, *flags, PROGRAM)
    assert [run.workers for run in measured.runs] == [1, 2]
    for run in measured.runs:
        assert (run.status, run.policy) == (0, "bounded:1")
        assert [epoch.steps for epoch in run.epochs] == [8, 8, 8]
        assert run.epochs[2].logs["loss"] < run.epochs[0].logs["loss"]
        assert "val_loss" in run.epochs[0].logs
        tasks = {"chief", "ps:0", *(f"worker:{at}" for at in range(run.workers))}
        assert set(run.epochs[0].cpu) == tasks
        assert 0 < sum(epoch.seconds for epoch in run.epochs) < run.seconds
        assert sum(epoch.cpu["chief"] for epoch in run.epochs) > 0
    assert "speedup" in output
    assert "whatever" not in output


@pytest.mark.cluster
def test_the_script_s_own_policy_is_told(tmp_path):
    flags = ["--workers=1", "--consistency=bounded:1"]
    output, measured = measure(tmp_path, *flags, PROGRAM, "3")
    [run] = measured.runs
    assert (run.consistency, run.policy) == ("bounded:1", "bounded:3")
    assert "whatever --consistency=bounded:1 says" in output


@needs_root
@pytest.mark.cluster
@pytest.mark.namespaces
def test_links_of_a_rate(tmp_path):
    # 80 KB take longer than at the speed of this machine's own network.
    _, measured = measure(tmp_path, "--workers=1", "--rate=1mbit", PROGRAM)
    [run] = measured.runs
    assert measured.rate == 125_000.0
    assert measured.burst == 70_000
    for epoch in run.epochs:
        assert min(epoch.sent[task] for task in ("chief", "ps:0", "worker:0")) > 0
        moved = epoch.sent["chief"] - measured.burst
        assert epoch.seconds >= moved / measured.rate * 0.9
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    assert not any(
        line.split()[0].endswith("-chief") and owner_is_gone(line)
        for line in listed.stdout.splitlines()
    )


def owner_is_gone(line):
    pid = line.removeprefix("tfd").partition("-")[0]
    return line.startswith("tfd") and not Path("/proc", pid).exists()
