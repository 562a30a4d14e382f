"""What a pipeline costs, as a table and a piece of advice."""

import pytest

from tfdist.data import PipelineReport

STAGES = ("reading", "map 1 (parse)", "map 2", "padded_batch")


def report(*seconds, step=0.1):
    return PipelineReport(STAGES, seconds, (step,) * len(seconds))


def test_a_row_per_worker_and_what_would_help():
    text = str(report((0.01, 0.02, 0.0, 0.001), ()))
    lines = text.splitlines()
    heading, first, second = (
        [cell.strip() for cell in lines[i].split("│")[1:-1]] for i in (1, 3, 4)
    )
    assert heading == ["worker", *STAGES, "a batch", "a step", "share"]
    assert first[:3] == ["0", "10.00 ms", "20.00 ms"]
    assert first[-3:] == ["31.00 ms", "100.00 ms", "31%"]
    assert second == ["1", *["-"] * 5, "100.00 ms", "-"]
    assert lines[-1].startswith(
        "what would help: for map 1 (parse): num_parallel_calls"
    )


@pytest.mark.parametrize(
    ("seconds", "help_"),
    [
        ((0.02, 0.01, 0.01, 0.01), "for reading: a larger block="),
        ((0.01, 0.02, 0.01, 0.01), "for map 1 (parse): num_parallel_calls"),
        ((0.01, 0.01, 0.02, 0.01), "for map 2: num_parallel_calls"),
        ((0.01, 0.01, 0.01, 0.02), "for padded_batch: batch right behind"),
        ((0.001, 0.002, 0.0, 0.0), "nothing here: reading is 3% of a step"),
        ((), "not known: no worker answered"),
    ],
)
def test_the_largest_stage_decides(seconds, help_):
    assert report(seconds).helps.startswith(help_)


def test_the_stage_is_that_of_all_workers_together():
    both = report((0.02, 0.01, 0.0, 0.0), (0.01, 0.09, 0.0, 0.0))
    assert both.slowest_stages == ("reading", "map 1 (parse)")
    assert both.helps.startswith("for map 1 (parse)")


def test_a_worker_that_reads_slowly_is_named():
    usual = (0.01, 0.01, 0.0, 0.0)
    assert "worker" not in report(usual, usual).helps.partition("; worker ")[2]
    slow = report(usual, usual, (0.07, 0.01, 0.0, 0.0))
    assert "worker 2 takes 4.0 times as long as the median worker" in slow.helps


def test_without_steps_the_stages_are_told():
    text = str(report((0.01, 0.02, 0.0, 0.0), step=None))
    assert "no step was measured: call fit before, or pass step_seconds=" in text
    assert "what would help: for map 1 (parse)" in text
