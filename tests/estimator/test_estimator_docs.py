"""The program in docs/estimator.md runs, with the changes that the page lists."""

import re
from pathlib import Path

import pytest

# A process that is the chief of a cluster, as that of the feature tests is, has no
# devices under the names that a session looks for.
pytestmark = pytest.mark.own_process

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "estimator.md").read_text()


def test_the_program_runs_and_has_the_changes_of_the_page(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    after, keras_program, *_ = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    new = re.search(r"^\| added \| +\| `(.*)` \|$", PAGE, re.M)[1]
    strategy = re.search(r"^\| the strategy \| `.*` \| `(.*)` \|$", PAGE, re.M)[1]
    assert new in after
    assert strategy in after
    names: dict[str, object] = {}
    after = after.replace("/tmp/model", str(tmp_path))
    exec(compile(after, "docs/estimator.md", "exec"), names)
    assert names["model"].evaluate(names["input_fn"], steps=8)["global_step"] == 500
    # The same data, and the same model.
    same = [line for line in after.splitlines() if line.startswith(("x =", "y ="))]
    assert len(same) == 2
    assert set(same) <= set(keras_program.splitlines())
