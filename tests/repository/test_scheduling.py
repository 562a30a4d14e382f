"""A process of pytest-xdist that crashes fails one test, and the others still run."""

from pathlib import Path

import pytest

from ..support import jobs

ROOT = Path(__file__).parents[2]

CRASHES_ONCE = """
import os, pathlib

def test_before():
    pass

def test_that_crashes():
    crashed = pathlib.Path(__file__).with_name("crashed")
    if not crashed.exists():
        crashed.touch()
        os._exit(9)

def test_after():
    pass
"""


@pytest.mark.not_in_gate
def test_a_crash_fails_one_test_and_all_others_run(tmp_path):
    for name in ("a", "b", "c", "d"):
        Path(tmp_path, f"test_{name}.py").write_text("def test_one():\n    pass\n")
    Path(tmp_path, "test_e.py").write_text(CRASHES_ONCE)
    command = ["-m", "pytest", "-n1", "--dist=loadfile"]
    command += ["--no-loadscope-reorder", "-ptests.support.scheduling", "-pno:randomly"]
    command += [f"--rootdir={tmp_path}", "-c/dev/null", tmp_path]
    ended = jobs.run(*command, cwd=ROOT, status=None)
    # The test that crashed runs once more, with the rest of its file.
    assert "1 failed, 7 passed" in ended.stdout, ended.stdout
