"""Libraries around Keras train under each strategy as in plain Keras: see `make ecosystem`.

docs/ecosystem.md says what a script writes for each of them; the scripts write it.
"""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from ..examples import test_cookbook
from ..scripts_runner import job
from ..scripts_runner.comparison import Row, Script, all_scripts

FOLDER = Path(__file__).parent / "scripts"
SCRIPTS = all_scripts(FOLDER)
STRATEGIES = ("parameter_server", "multi_worker")
PAGE = Path(__file__).parents[2] / "docs" / "ecosystem.md"


def constant(name, what, strategy):
    """What a script says of a strategy in one of its constants."""
    for node in ast.parse((FOLDER / f"{name}.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == what:
            return ast.literal_eval(node.value).get(strategy, {})
    return {}


def way(name, strategy):
    flags = tuple(constant(name, "FLAGS", strategy))
    return job.Way(
        strategy, FOLDER, flags=flags, options=constant(name, "OPTIONS", strategy)
    )


def missing(name, folder=FOLDER):
    """The packages that a script imports and this environment lacks."""
    tree = ast.parse((folder / f"{name}.py").read_text())
    found = [
        each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)
    ]
    imported = [
        a.name for each in found for a in each.names if isinstance(each, ast.Import)
    ]
    imported += [each.module for each in found if isinstance(each, ast.ImportFrom)]
    packages = {each.partition(".")[0] for each in imported}
    return sorted(each for each in packages if find_spec(each) is None)


@pytest.fixture(scope="module")
def found(request):
    """Runs the selected scripts under a strategy, those with the same flags in one job."""
    runs = {}
    selected = {
        (item.callspec.params["name"], item.callspec.params["strategy"])
        for item in request.session.items
        if item.function is test_trains_as_in_plain_keras
    }

    def run(name, strategy):
        if (name, strategy) not in runs:
            names = {each for each, under in selected if strategy in (under, "plain")}
            same = [e for e in names if way(e, strategy) == way(name, strategy)]
            same = [each for each in same if not missing(each)]
            outcomes = job.run(way(name, strategy), sorted(same))
            runs.update({(each, strategy): outcomes[each] for each in same})
        return runs[name, strategy]

    return run


@pytest.mark.cluster
@pytest.mark.timeout(3600)  # The first one of a strategy runs all scripts.
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SCRIPTS)
def test_trains_as_in_plain_keras(found, name, strategy):
    if packages := missing(name):
        pytest.skip(f"needs {', '.join(packages)}: make ecosystem")
    script = Script.read(name, FOLDER)
    row = Row(script, strategy, found(name, strategy), found(name, "plain"))
    assert not row.why_not, f"{row.why_not}\n{row.outcome.traceback}"


@pytest.mark.cluster
@pytest.mark.parametrize("name", sorted(test_cookbook.OF_LIBRARIES))
def test_programs_of_the_cookbook_say_what_the_page_says(name, tmp_path):
    if packages := missing(Path(name).stem, test_cookbook.PROGRAMS):
        pytest.skip(f"needs {', '.join(packages)}: make ecosystem")
    test_cookbook.check(name, tmp_path)


def test_the_page_and_the_scripts_name_each_other():
    named = re.findall(r"tests/ecosystem/scripts/(\w+)\.py", PAGE.read_text())
    assert sorted(set(named)) == SCRIPTS
