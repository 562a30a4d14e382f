"""A script that trains an Estimator is run by every task, unasked."""

import pytest

from launch.program_kind import kind_of_script


@pytest.mark.parametrize(
    "line",
    [
        "from tfdist import estimator",
        "from tfdist import GreedyLoadBalancing, estimator as tfe",
        "import tfdist.estimator",
        "import tfdist.estimator as estimator",
        "from tfdist.estimator import RunConfig",
        "from tfdist.estimator.export import PredictOutput",
        "def main():\n    from tfdist import estimator",
    ],
)
def test_estimators_are_known_by_their_import(line, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"import os\n{line}\n")
    assert kind_of_script(str(script)) == "every_task"
    assert kind_of_script(str(script), "coordinator") == "coordinator"


def test_modules_beside_the_script_are_looked_into(tmp_path, monkeypatch):
    (tmp_path / "trainer").mkdir()
    files = {
        "main.py": "import flags_of\nfrom trainer import task\n",
        "flags_of.py": "import main, flags_of",  # In a circle.
        "trainer/task.py": "from trainer.model import build\n",
        "trainer/model.py": "from tfdist import estimator\n",
        "other.py": "import flags_of_another, json\nfrom trainer import absent\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert kind_of_script(str(tmp_path / "main.py")) == "every_task"
    assert kind_of_script(str(tmp_path / "flags_of.py")) == "every_task"
    monkeypatch.chdir(tmp_path)
    assert kind_of_script("main.py") == "every_task"
    assert kind_of_script(str(tmp_path / "other.py")) == "auto"


@pytest.mark.parametrize(
    "text",
    [
        "import tfdist",
        "from tfdist import ParameterServerStrategy",
        "import tfdist.estimators",
        "from . import estimator",
        "# from tfdist import estimator",
        "print('from tfdist import estimator')",
        "this is no Python",
        "\0",
    ],
)
def test_others_are_left_to_the_cluster(text, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert kind_of_script(str(script)) == "auto"


def test_script_that_is_not_there():
    assert kind_of_script("absent.py") == "auto"
