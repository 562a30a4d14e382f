"""The recommender on a cluster: as good as in one process, with no table on one task."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ..support.jobs import ROOT, launch

EXAMPLE = ROOT / "examples" / "recommender.py"
MOVIELENS = ROOT.parent / "shared" / "data" / "movielens-latest-small"

pytestmark = pytest.mark.cluster


def run(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess:
    logs = f"--log_dir={tmp_path / 'logs'}"
    return launch("--num_ps=2", "--num_workers=2", logs, EXAMPLE, *flags)


@pytest.fixture
def ratings_dir(tmp_path) -> Path:
    """MovieLens, or generated ratings in its format where it is not downloaded."""
    if MOVIELENS.exists():
        return MOVIELENS
    random = np.random.default_rng(0)
    users, movies = random.normal(0, 0.5, size=200), random.normal(0, 0.8, size=300)
    lines = ["userId,movieId,rating"]
    for user, movie in random.integers((200, 300), size=[20_000, 2]):
        # With noise, as of people: an error of nearly 0 has no meaningful 2%.
        stars = 3 + users[user] + movies[movie] + random.normal(0, 0.6)
        stars = np.clip(stars, 0.5, 5)
        lines.append(f"{user},{movie},{stars:.1f}")
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    genres = [f"{movie},{movie % 7}|{movie % 5}" for movie in range(300)]
    (tmp_path / "movies.csv").write_text("\n".join(["movieId,genres", *genres]))
    return tmp_path


@pytest.mark.in_part
@pytest.mark.parametrize("tables", [[], ["--dynamic"]], ids=["static", "dynamic"])
def test_the_error_is_that_of_a_single_process(tmp_path, ratings_dir, tables):
    # Small batches: many steps, of which a few are under way.
    flags = ("--compare", "--epochs=3", "--batch_size=64", *tables)
    done = run(tmp_path, f"--ratings_dir={ratings_dir}", *flags)
    rmse = float(re.search(r"\] +Validation RMSE: ([\d.]+)", done.stdout)[1])
    alone = float(re.search(r"of a single process: ([\d.]+)", done.stdout)[1])
    guessed = float(re.search(r"predicting the mean: ([\d.]+)", done.stdout)[1])
    assert abs(rmse / alone - 1) <= 0.02
    assert rmse < 0.95 * guessed
    # Each worker had its share of the steps, and both ps of the tables.
    assert len(re.findall(r"│ [01]      │ +[1-9][\d,]* │", done.stdout)) == 2
    assert len(re.findall(r"│ [01]  │ (?:users|items)/embeddings", done.stdout)) == 4
    if tables:
        # As many rows on the cluster as in the single process, which has no ps.
        rows = re.findall(r"Table of (\w+: [\d,]+) .*no room: 0$", done.stdout, re.M)
        assert len(rows) == 4
        assert len(set(rows)) == 2


def test_no_process_holds_a_whole_table(tmp_path):
    rows = 8_000_000
    done = run(
        tmp_path,
        *("--dataset=zipf", f"--rows={rows}", "--steps_per_epoch=20", "--epochs=1"),
    )
    table = rows * 16 * 4 / 1e6
    grown = {
        task: int(number.replace(",", ""))
        for task, number in re.findall(r"│ (\w+:\d) +│.*│ +([\d,]+) │\n", done.stdout)
    }
    assert grown.keys() == {"chief:0", "ps:0", "ps:1", "worker:0", "worker:1"}
    # Half of the table, half of its Adagrad slots, and what making them takes. All of
    # both would be twice the table.
    assert table <= grown["ps:0"] <= 1.8 * table
    assert table <= grown["ps:1"] <= 1.8 * table
    # Tracing takes some; half a table would take more.
    assert max(grown["chief:0"], grown["worker:0"], grown["worker:1"]) < table / 2
