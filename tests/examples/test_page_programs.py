"""The programs at the top of the pages run as they are printed.

A block with the mark `program: tfdist local FLAGS` or `program: python` is a complete
program. Blocks that begin with `# Continues the program above` are appended to it.
"""

import itertools
import re
import shlex

import pytest
from documents import PROGRAM, Program, blocks, programs

from ..support import jobs

NO_TFDIST = "import sys\n\nsys.modules['tfdist'] = None  # `import tfdist` fails.\n"
"""The beginning of a program with the mark `program: without tfdist`."""

PAGES = {
    page.name: [each for each in found if each.blocks[0].mark.startswith(PROGRAM)]
    for page, found in itertools.groupby(
        programs(blocks("python")), lambda program: program.blocks[0].page
    )
}


@pytest.mark.cluster
@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if found])
def test_programs_of_a_page_run(page, tmp_path):
    """They run in their order and in one directory, where a later one finds files."""
    for program in PAGES[page]:
        run(program, tmp_path)


def run(program: Program, directory):
    script = directory / "train.py"
    script.write_text(program.code(runnable=True))
    match shlex.split(program.command):
        case "tfdist", "local", *flags:
            jobs.launch(*flags, script, cwd=directory, TF_CPP_MIN_LOG_LEVEL="2")
        case ["python"]:
            jobs.run(script, cwd=directory)
        case "without", "tfdist":
            script.write_text(NO_TFDIST + script.read_text())
            jobs.run(script, cwd=directory)
        case _:
            pytest.fail(f"{program.blocks[0]}: no such command: {program.command}")


@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategy",
    [
        "MultiWorkerMirroredStrategy()",
        "RingStrategy()",
        "LocalUpdateStrategy(local_steps=100)",
    ],
)
def test_each_strategy_runs_the_quickstart_and_saves_for_all(strategy, tmp_path):
    """The two pages have one strategy, and promise the same of every other."""
    train, load = PAGES["saving.md"]
    for program in (*PAGES["start.md"], train):
        code = program.code().replace("ParameterServerStrategy()", strategy)
        assert strategy in code
        (tmp_path / "train.py").write_text(code)
        jobs.launch("train.py", cwd=tmp_path)
    run(load, tmp_path)


@pytest.mark.cluster
def test_two_runs_give_the_same_weights(tmp_path):
    """The program that says when two runs give the same weights."""
    (program,) = PAGES["troubleshooting.md"]
    (tmp_path / "train.py").write_text(program.code())
    said = [
        jobs.launch("--num_workers=2", "train.py", cwd=tmp_path).stdout
        for _ in range(2)
    ]
    first, second = (re.search(r"weights ([0-9a-f]{64})", each)[1] for each in said)
    assert first == second
