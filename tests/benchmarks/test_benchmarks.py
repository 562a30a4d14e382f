"""What benchmarks compute from measurements, that pages have it, and that one of them runs."""

import dataclasses
import json
import math
import subprocess
from pathlib import Path

import pytest

from launch.fault import faults

from ..support import jobs
from ..support.raising import raises

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "fit_throughput.py"


@pytest.mark.parametrize(
    "subject",
    ["all_reduce", "chaos", "embedding", "growing", "local_updates", "peers"],
)
def test_the_page_has_what_was_measured(benchmark, subject):
    assert benchmark(f"{subject}_report").main(["--check"]) == 0


def test_a_file_keeps_at_which_commit_each_part_was_measured(
    benchmark, monkeypatch, tmp_path
):
    turns, pages = benchmark("turns"), benchmark("pages")
    path = tmp_path / "work.json"
    path.write_text('{"recorded": {"old": ["1234567", "2026-01-02"]}}')
    turns.keep(str(path), {"old": 1, "new": 2}, ["new"])
    found = json.loads(path.read_text())
    assert (found["old"], found["new"]) == (1, 2)
    commit, day = found["recorded"]["new"]
    git = ["git", "-C", ROOT, "rev-parse", "--short=7", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    assert commit.rstrip("+") == head.strip()
    monkeypatch.setattr(pages, "MEASURED", tmp_path)
    assert pages.recorded("work") == (
        "Recorded at commit `1234567` on 2026-01-02: old.\n"
        f"Recorded at commit `{commit}` on {day}: new.\n"
    )


@pytest.fixture
def results(benchmark):
    return benchmark("results")


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
    with raises(ValueError, "shorter"):
        results.paired(
            repeats[:-1], "mlp x10", ("fit", "tf_keras"), lambda r: r.seconds
        )


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
    assert message in jobs.run(SCRIPT, flag, status=1).stderr


@pytest.mark.in_part
@pytest.mark.cluster
def test_benchmark_measures_steps_that_ran_on_the_workers(tmp_path):
    pytest.importorskip("tf_keras")
    path = tmp_path / "fit.json"
    result = jobs.run(
        SCRIPT,
        "--repeats=1",
        "--steps=20",
        "--models=mlp",
        "--steps_per_execution=10",
        "--contenders=fit,loop",
        "--num_ps=1",
        "--num_workers=1",
        f"--json={path}",
    )
    assert "`fit` / `loop`" in result.stdout
    repeats = json.loads(path.read_text())["repeats"]
    assert [repeat["contender"] for repeat in repeats] == ["fit", "loop"]
    for each in repeats:
        assert each["iterations"] == each["steps"] == 20
        assert set(each["cpu"]) == {"chief", "ps:0", "worker:0"}
        assert each["cpu"]["worker:0"] > 0
        assert math.isfinite(each["seconds"])
    assert repeats[0]["worker_steps"] == 20


@pytest.mark.slow
def test_the_numbers_in_the_readme_and_docs_are_the_recorded_ones():
    jobs.run(ROOT / "benchmarks" / "readme.py", "--check")


def run_with_faults(report, **values):
    struck = {"kind": "kill", "task": "ps:1", "recovery": 7.0}
    return report.Run(
        **{
            "seed": 3,
            "faults": [{"kind": "kill", "task": "ps:1"}],
            "recovered": [struck],
            "status": 0,
            "reason": "",
            "seconds": 30.0,
            "steps": 203,
            "expected": 200,
            "done_again": 0.5,
            "broken": [],
            **values,
        }
    )


def test_the_section_counts_what_was_lost_and_what_did_not_hold(benchmark):
    report = benchmark("chaos_report")
    runs = [
        run_with_faults(report),
        run_with_faults(report, seed=4, steps=198, broken=["no step is lost: 198"]),
    ]
    about = {"tensorflow": "2", "keras": "3", "cores": 2}
    measured = {"environment": about, "runs": [vars(each) for each in runs]}
    text = report.section(measured)
    assert "2 ended with the right weights, 0 with an error" in text
    assert "2 steps were lost" in text
    assert "seed 4: no step is lost: 198" in text


def test_every_kind_of_fault_is_drawn_and_a_kill_twice_as_often(benchmark):
    kinds = benchmark("chaos").KINDS
    assert sorted(kinds) == sorted([*faults.FAULT_KINDS, faults.KILL])


def local_run(config, seed, *epochs, megabytes=1.0):
    return {
        "config": config,
        "seed": seed,
        "load": 1.0,
        "received": [megabytes * 1e6] * 4,
        "epochs": [{"seconds": s, "received": 1e6, "accuracy": a} for s, a in epochs],
    }


def test_configurations_take_turns_and_few_get_all_seeds(benchmark):
    schedule = benchmark("local_updates").schedule
    assert schedule(["synchronous", "mean_10", "diloco_100"], 2, 1) == [
        ("synchronous", 0),
        ("mean_10", 0),
        ("diloco_100", 0),
        ("diloco_100", 1),
        ("synchronous", 1),
    ]


def test_the_interval_is_students(benchmark):
    """The ends are those of scipy.stats.ttest_1samp(...).confidence_interval()."""
    report = benchmark("local_updates_report")
    low, high = report.interval([0.01, -0.002, 0.004, 0.003, 0.0])
    assert low == pytest.approx(-0.0026900, abs=1e-6)
    assert high == pytest.approx(0.0086900, abs=1e-6)
    assert report.interval([0.01]) is None


def test_a_run_that_never_gets_there_is_not_left_out(benchmark):
    report = benchmark("local_updates_report")
    runs = [local_run("synchronous", i, (9.0, 0.96)) for i in range(2)]
    runs += [
        local_run("diloco_100", seed, (1.0, accuracy))
        for seed, accuracy in enumerate((0.96, 0.94))
    ]
    assert "| inf | < 1 | missed |" in report.targets({"runs": runs})
