"""Leases on a cluster of its own: what is seen, and what the chief sends."""

import pytest

EXAMPLES, EPOCHS, BATCH = 20_003, 3, 8  # As tests/programs/leases.py has them.
MOST_STEPS = 100  # Of a message.

pytestmark = pytest.mark.cluster


@pytest.fixture
def said(run_program, tmp_path):
    """Runs the program, and returns the words of each line by its first."""

    def run(scenario, workers):
        done = run_program("leases.py", scenario, tmp_path, str(workers))
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        return {words[0]: words[1:] for words in lines}

    return run


@pytest.mark.parametrize(
    ("scenario", "workers"),
    [
        ("count", 4),
        ("before", 2),
        ("every", 2),
        ("files_before", 2),
        ("files_every", 2),
    ],
)
def test_each_example_once_per_epoch(said, scenario, workers):
    lines = said(scenario, workers)
    assert ("leased" in lines) == scenario.startswith("files")
    assert lines["least"] == lines["most"] == [str(EPOCHS)]
    steps = [int(each) for each in lines["steps"]]
    assert min(steps) > 0
    assert sum(steps) == EPOCHS * -(-EXAMPLES // BATCH)


@pytest.mark.parametrize("scenario", ["kill", "files_kill"])
def test_none_is_missed_if_a_worker_is_killed(said, scenario):
    lines = said(scenario, 4)
    assert ("leased" in lines) == scenario.startswith("files")
    assert lines["killed"] == []
    assert lines["least"] == [str(EPOCHS)]
    assert 0 <= int(lines["sum"][0]) - EPOCHS * EXAMPLES <= MOST_STEPS * BATCH


def test_the_chief_sends_a_hundredth_of_each_example(said):
    lines = said("bytes", 2)
    assert float(lines["examples"][0]) >= 1  # As it does without leases.
    assert 0 < float(lines["leases"][0]) <= 0.01
