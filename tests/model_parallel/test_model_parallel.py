"""A model that no process has memory for (docs/cookbook.md), and the benchmark of pieces."""

import re
import signal

import pytest

from ..support.jobs import ROOT, launch, run

PROGRAM = ROOT / "examples" / "model_parallel.py"


@pytest.mark.slow
def test_one_process_lacks_the_memory():
    done = run(PROGRAM, "--alone", status=None)
    # Where a native library is the first that gets none, it ends the process.
    ended = done.returncode
    assert ended in (1, -signal.SIGABRT), done.stdout[-2000:] + done.stderr[-2000:]
    if ended == 1:
        assert "The memory of a process does not suffice" in done.stdout


@pytest.mark.cluster
def test_in_two_stages_each_worker_has_half(tmp_path):
    cluster = "--num_ps=0", "--num_workers=2", "--program=coordinator"
    done = launch(*cluster, f"--log_dir={tmp_path}", PROGRAM)
    [(first, last)] = re.findall(r"loss went from (\S+) to (\S+)", done.stdout)
    assert float(last) < float(first)
    held = dict(re.findall(r"task:(\d)/\S+ has (\d+) MB of variables", done.stdout))
    one, two = (int(held[task]) for task in ("0", "1"))
    assert 0.5 < one / two < 2


def test_the_page_shows_what_was_measured(benchmark):
    pieces = benchmark("model_parallel")
    page = pieces.pages.DOCS / "measured-pieces.md"
    sections = pieces.sections(pieces.pages.measured("model_parallel"))
    assert pieces.pages.publish(page, sections, is_check=True) == 0
