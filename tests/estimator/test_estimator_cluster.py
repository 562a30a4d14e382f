"""The Estimator's example in a cluster of real processes, all of which end."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ..support.jobs import ROOT, launch, path_with, with_environment

WITNESS = Path(__file__).parent / "estimator_witness.py"

pytestmark = pytest.mark.cluster


class Run:
    """What a run printed, and what its tasks wrote down."""

    def __init__(self, directory: Path, cluster: list[str], *flags: str) -> None:
        self.model_dir = directory / "model"
        witness_dir = directory / "witness"
        witness_dir.mkdir(exist_ok=True)
        for old in witness_dir.iterdir():
            old.unlink()
        done = launch(
            *(*cluster, f"--log_dir={directory / 'logs'}"),
            # A busy machine is no reason to end what would end by itself.
            *("--straggler_timeout=150", "--grace_period=90"),
            *(WITNESS, f"--model_dir={self.model_dir}", *flags),
            WITNESS_DIR=str(witness_dir),
            TF_CPP_MIN_LOG_LEVEL="2",
            PYTHONPATH=path_with(ROOT / "examples"),
        )
        self.output, self.errors = done.stdout, done.stderr
        self.tasks = {
            path.stem: json.loads(path.read_text())
            for path in witness_dir.glob("*.json")
        }
        assert with_environment("WITNESS_DIR", str(witness_dir)) == []

    def endings(self) -> dict[str, str]:
        """How each task ended: by itself or by the launcher, and with which status."""
        return dict(
            re.findall(
                r"^\[launch\] +(\S+) +((?:finished|failed|ended|killed).*?\d|.*-) ",
                self.errors,
                re.M,
            )
        )


@pytest.fixture(scope="module")
def six(tmp_path_factory) -> Run:
    return Run(
        tmp_path_factory.mktemp("six"),
        ["--num_ps=2", "--num_workers=2", "--evaluator"],
        *("--max_steps=80", "--save_steps=40", "--shards=2"),
    )


@pytest.mark.in_gate
def test_every_process_ends_by_itself_with_status_0(six):
    endings = {
        name: " ".join(ending.split()[:2]) for name, ending in six.endings().items()
    }
    tasks = ("chief", "ps:0", "ps:1", "worker:0", "worker:1", "evaluator")
    assert endings == dict.fromkeys(tasks, "finished 0"), six.errors


@pytest.mark.in_gate
def test_steps_run_on_chief_and_workers_and_reach_max_steps(six):
    assert {*six.tasks} == {"chief-0", "worker-0", "worker-1"}
    steps = [task["steps"] for task in six.tasks.values()]
    assert min(steps) > 0
    # Each was counted once, by whom it was run. The three see the end at their own
    # next step, or the one after.
    assert sum(steps) == max(task["step"] for task in six.tasks.values())
    assert 80 <= sum(steps) <= 80 + 2 * 3


@pytest.mark.in_gate
def test_variables_are_where_the_report_says(six):
    reported = {
        name: int(ps) for ps, name in re.findall(r"│ ([01])  │ (\S+) ", six.output)
    }
    reported = {n: ps for n, ps in reported.items() if not n.isdigit()}
    assert {"conv2/kernel/part_0", "conv2/kernel/part_1"} <= {*reported}
    for task in six.tasks.values():
        found = {
            name: tf.DeviceSpec.from_string(device)
            for name, device in task["devices"].items()
        }
        assert {device.job for device in found.values()} == {"ps"}
        assert {name: device.task for name, device in found.items()} == reported
    assert float(re.search(r"fullest ps / mean: ([\d.]+)", six.output)[1]) < 1.01


def test_evaluator_reports_and_its_export_predicts(six):
    step, accuracy = re.search(r"Step (\d+): accuracy ([\d.]+)", six.output).groups()
    assert int(step) >= 80
    assert float(accuracy) > 0.3
    exported = re.search(r"Exported to (\S+)", six.output)[1]
    serve = tf.saved_model.load(exported).signatures["serving_default"]
    served = serve(image=tf.zeros([3, 28, 28, 1], tf.uint8))
    assert served["digit"].shape == [3]
    np.testing.assert_allclose(tf.reduce_sum(served["probability"], 1), 1, rtol=1e-5)


def test_second_start_goes_on_from_the_checkpoint_on_other_ps(six):
    before = int(re.search(r"Step (\d+)", six.output)[1])
    again = Run(
        six.model_dir.parent,
        ["--num_ps=1", "--num_workers=1"],
        *("--max_steps=100", "--save_steps=100"),
    )
    steps = sum(task["steps"] for task in again.tasks.values())
    assert 100 - before <= steps <= 100 - before + 2 * 2
    assert {name: e.split()[0] for name, e in again.endings().items()} == dict.fromkeys(
        ("chief", "ps:0", "worker:0"), "finished"
    )


def test_workers_in_step_end_with_the_same_bits(tmp_path):
    run = Run(
        tmp_path,
        ["--num_ps=0", "--num_workers=2"],
        *("--strategy=multi_worker", "--max_steps=20", "--save_steps=20"),
    )
    one, other = run.tasks["worker-0"], run.tasks["worker-1"]
    assert one["steps"] == other["steps"] == 20
    # From different images: had they not met, they would differ.
    assert one["value"] == other["value"]
    assert any(one["value"])
