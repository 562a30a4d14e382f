"""The throughput benchmark: that it runs, and what it computes from measurements."""

import dataclasses
import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from .deadline import DEADLINE, PROGRAM_DEADLINE

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "fit_throughput.py"


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("results")


@pytest.fixture
def repeat(results):
    return results.Repeat(
        workload="mlp x10",
        contender="fit",
        index=0,
        steps=100,
        seconds=2.0,
        cpu={"chief": 0.5, "ps:0": 0.5, "worker:0": 0.6, "worker:1": 0.4},
        idle_cpu=0.1,
        iterations=100,
        worker_steps=100,
    )


def test_repeat_tells_throughput_and_cpu_of_every_job(repeat):
    assert repeat.steps_per_second == 50
    assert repeat.cpu_ms() == pytest.approx(20)
    assert [repeat.cpu_ms(job) for job in ("chief", "ps", "worker")] == [
        pytest.approx(5),
        pytest.approx(5),
        pytest.approx(10),
    ]


def test_steps_that_the_optimizer_did_not_count_are_lost(repeat):
    assert repeat.lost == 0
    assert dataclasses.replace(repeat, iterations=80).lost == 20


def test_steps_on_the_chief_are_noticed_by_an_idle_worker(repeat):
    assert repeat.ran_on_workers
    idle = {**repeat.cpu, "worker:1": 0.01}
    assert not dataclasses.replace(repeat, cpu=idle).ran_on_workers


def test_steps_on_the_chief_are_noticed_by_the_workers_own_count(repeat):
    assert not dataclasses.replace(repeat, worker_steps=99).ran_on_workers
    assert dataclasses.replace(repeat, worker_steps=None).ran_on_workers


@pytest.fixture
def repeats(repeat):
    """Three turns on a machine that gets slower; `fit` is 1.5, 2 and 1 times as fast.

    The medians of the two alone have the ratio 1.
    """
    seconds = [("fit", 0, 1.0), ("fit", 1, 2.0), ("fit", 2, 9.0)]
    seconds += [("tf_keras", 2, 9.0), ("tf_keras", 0, 1.5), ("tf_keras", 1, 4.0)]
    return [
        dataclasses.replace(repeat, contender=name, index=index, seconds=each)
        for name, index, each in seconds
    ]


def test_ratios_compare_the_repeats_that_followed_each_other(results, repeats):
    spread = results.paired(
        repeats, "mlp x10", ("fit", "tf_keras"), lambda r: r.steps_per_second
    )
    assert (spread.median, spread.least, spread.greatest) == (1.5, 1.0, 2.0)
    assert str(spread) == "1.50 (1.00 to 2.00)"


def test_a_missing_repeat_is_not_paired_with_another(results, repeats):
    with pytest.raises(ValueError, match="shorter"):
        results.paired(
            repeats[:-1], "mlp x10", ("fit", "tf_keras"), lambda r: r.seconds
        )


def test_the_table_has_the_ratios_and_the_section_the_lost_steps(results, repeats):
    assert results.table(repeats).splitlines() == [
        "| model, steps per call | `fit` / `tf_keras` | CPU per step, `fit` / `tf_keras` |",
        "| --- | --- | --- |",
        "| mlp x10 | 1.50 (1.00 to 2.00) | 1.00 (1.00 to 1.00) |",
    ]
    repeats[0] = dataclasses.replace(repeats[0], iterations=93)
    about = dict.fromkeys(("tensorflow", "keras", "tf_keras"), "1.0")
    rows = [dataclasses.asdict(each) for each in repeats]
    section = results.section({"repeats": rows, "environment": about})
    assert "3 paired repeats of 100 steps" in section
    assert "did not count: `fit` 7 of 300, `tf_keras` 0 of 300." in section


def test_plot_is_a_picture(results, repeats, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "fit.png"
    results.plot(repeats, str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--models=rnn", "must be some of mlp,cnn"),
        ("--contenders=estimator", "must be some of fit,fit_arrays,tf_keras,loop"),
        ("--steps=25", "must be divisors of --steps"),
        ("--steps_per_execution=ten", "must be divisors of --steps"),
    ],
)
def test_wrong_flags_are_refused_before_anything_starts(flag, message):
    result = run(flag, timeout=PROGRAM_DEADLINE)
    assert result.returncode == 1
    assert message in result.stderr


@pytest.mark.cluster
def test_benchmark_measures_steps_that_ran_on_the_workers(tmp_path):
    pytest.importorskip("tf_keras")
    path = tmp_path / "fit.json"
    result = run(
        "--repeats=1",
        "--steps=20",
        "--models=mlp",
        "--steps_per_execution=10",
        "--contenders=fit,loop",
        "--num_ps=1",
        "--num_workers=1",
        f"--json={path}",
        timeout=PROGRAM_DEADLINE,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "`fit` / `loop`" in result.stdout
    repeats = json.loads(path.read_text())["repeats"]
    assert [repeat["contender"] for repeat in repeats] == ["fit", "loop"]
    for each in repeats:
        assert each["iterations"] == each["steps"] == 20
        assert set(each["cpu"]) == {"chief", "ps:0", "worker:0"}
        assert each["cpu"]["worker:0"] > 0
        assert math.isfinite(each["seconds"])
    assert repeats[0]["worker_steps"] == 20


def run(*flags: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *flags],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.slow
def test_the_numbers_in_the_readme_and_docs_are_the_recorded_ones():
    script = ROOT / "benchmarks" / "readme.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
