"""A worker that was killed is restarted by the launcher, and takes part again."""

import json
from pathlib import Path

import pytest

from ..support.jobs import launch

PROGRAM = Path(__file__).parents[1] / "programs" / "local_update_rejoin.py"


def launched(workers, victim, options, directory):
    """Return what each worker has found, and what the launcher has said."""
    done = launch(
        *("--num_ps=0", f"--num_workers={workers}", "--min_workers=2"),
        *(f"--log_dir={directory / 'logs'}", PROGRAM, str(victim)),
        *(json.dumps(options), directory),
    )
    found = [json.loads((directory / f"{i}.json").read_text()) for i in range(workers)]
    return found, done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("workers", "victim", "options"),
    [
        (3, 0, {"local_steps": 4, "outer": 0.01}),
        (
            3,
            1,
            {"local_steps": 6, "overlap": True, "fragments": 2, "wire_dtype": "int8"},
        ),
        (3, 2, {"local_steps": 7, "overlap": True}),
        # Of five, two on a ring are no neighbours of the victim.
        (5, 2, {"local_steps": 4, "ring": True}),
    ],
)
def test_a_killed_worker_takes_part_again(tmp_path, workers, victim, options):
    found, said = launched(workers, victim, options, tmp_path)
    assert f"worker:{victim} was killed by SIGKILL: restarting worker:{victim}" in said
    assert f"restarted worker:{victim}, at work after" in said
    assert len((tmp_path / f"{victim}.pids").read_text().split()) == 2
    for index, each in enumerate(found):
        assert (each["present"], each["epochs"]) == (workers, 3)
        log = (tmp_path / "logs" / f"worker-{index}.log").read_text()
        what = "takes part again" if index == victim else "is back"
        assert (
            f"worker:{victim} {what}: training goes on with {workers} of {workers} workers"
            in log
        )
        assert each["last_epoch"] == found[0]["last_epoch"]
    # It has missed the steps from its second epoch on.
    assert found[victim]["first"] > [1, 9]
    if "ring" not in options:
        for name in ("weights", "state", "loss"):
            assert all(each[name] == found[0][name] for each in found)
