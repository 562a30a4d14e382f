"""The benchmark of federated averaging: which runs there are, and its tables."""

import importlib
import json
from pathlib import Path

import pytest
from absl import flags

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("mlxtend")
pytestmark = pytest.mark.own_process

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        found = importlib.import_module("federated")
        found.define_flags()
        yield found


def start(benchmark, path, *arguments):
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["federated.py", f"--json={path}", *arguments])
    benchmark.main(["federated.py"])
    return json.loads(path.read_text())


def test_each_row_has_its_best_rate_and_no_run_is_repeated(
    benchmark, monkeypatch, tmp_path, capsys
):
    calls = []

    def run(averaging, split, rate, rounds, **_):
        calls.append((averaging.local_epochs, averaging.batch_size, split, rate))
        good = rate == 0.1
        return {"clients": [5] * 10, "val_accuracy": [0.96 if good else 0.5]}

    monkeypatch.setattr(benchmark, "run", run)
    arguments = ["--seeds=2", "--rates=0.1,0.3"]
    records = start(benchmark, tmp_path / "found.json", *arguments)
    # Two rates on the first seed, and the better one on the second.
    assert len(records) == len(calls) == 8 * 2 * 3
    assert {each["rate"] for each in records if each["seed"] == 1} == {0.1}
    assert start(benchmark, tmp_path / "found.json", *arguments) == records
    assert len(calls) == len(records)
    capsys.readouterr()
    start(benchmark, tmp_path / "found.json", *arguments, "--markdown")
    assert "| 5 | 10 | 0.1, 0.1 | 10 (10 to 10) | 10 (10 to 10) |" in (
        capsys.readouterr().out
    )


def test_a_row_that_was_not_reached_says_so(benchmark):
    assert benchmark.spread([10, 20]) == "15 (10 to 20)"
    assert benchmark.spread([10, None, None]) == "not reached in 2 of 3"


def test_attackers_are_as_many_as_rules_expect(benchmark, monkeypatch, tmp_path):
    seen = []

    def run(averaging, split, rate, rounds, *, behavior, flips, every):
        number = len(behavior.attackers)
        averaging.check_clients(50)
        seen.append((number, flips, type(behavior.attack).__name__))
        return {"val_accuracy": [0.9]}

    monkeypatch.setattr(benchmark, "run", run)
    records = start(benchmark, tmp_path / "a.json", "--part=attacks", "--seeds=1")
    assert len(records) == 6 * (1 + 4 * 3)
    assert {number for number, *_ in seen} == {0, 5, 10, 20}
    assert (20, True, "NoneType") in seen
    assert (5, False, "SignFlip") in seen
    table = benchmark.attacks_table(records)
    assert "| median | 0.900 | 0.900 |" in table


@pytest.mark.slow
def test_a_run_learns(benchmark):
    averaging = benchmark.federated.FederatedAveraging(0.1, 1, 10)
    logs = benchmark.run(averaging, "iid", 0.1, 2, every=2)
    assert logs["val_accuracy"][-1] > 0.3  # at random: 0.1
