"""Clusters from Python: the notebook, and the program of docs/launching.md."""

import importlib.util
import json
from pathlib import Path

import pytest

import launch

from ..support.deadline import PROGRAM_DEADLINE

NOTEBOOK = Path(__file__).parents[2] / "examples" / "clusters.ipynb"
CHECK = """
assert losses[-1] < losses[0] / 2
assert history.history["loss"][-1] < history.history["loss"][0] / 2
assert len(servers.pids) == 4
print("trained twice")
"""
HAS_JUPYTER = all(map(importlib.util.find_spec, ("nbclient", "ipykernel")))


@pytest.fixture(scope="module")
def sources():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def test_it_has_no_outputs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    kept = [(c["outputs"], c["execution_count"]) for c in cells if "outputs" in c]
    assert kept == [([], None)] * len(kept)


@pytest.mark.cluster
@pytest.mark.skipif(HAS_JUPYTER, reason="it runs as a notebook")
def test_its_cells_run_as_a_script(sources, run_python, tmp_path):
    done = run_python(
        "\n".join(["import os", f"os.chdir({str(tmp_path)!r})", *sources, CHECK])
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained twice\n")
    assert "WARNING" not in done.stderr
    assert "[chief]    Epoch 5/5" in done.stdout


@pytest.mark.cluster
@pytest.mark.skipif(not HAS_JUPYTER, reason="nbclient and ipykernel are not installed")
def test_it_runs_as_a_notebook(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(Path(launch.__file__).parents[1]))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CHECK))
    client = nbclient.NotebookClient(
        notebook,
        timeout=PROGRAM_DEADLINE,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    shown = [
        "".join(each.get("text", "") for each in cell.get("outputs", []))
        for cell in notebook.cells
    ]
    assert "trained twice" in shown[-1]
    # The cell that calls `launch.run` shows what the tasks print.
    assert any("[chief]    Epoch 5/5" in text for text in shown)


@pytest.mark.cluster
def test_the_program_of_the_page(run_python, tmp_path):
    page = (NOTEBOOK.parents[1] / "docs" / "launching.md").read_text()
    _, _, after = page.partition("## From Python and notebooks")
    code = after.partition("```python\n")[2].partition("```")[0]
    check = "print([each.shape for each in weights])"
    done = run_python(f"import os\nos.chdir({str(tmp_path)!r})\n{code}\n{check}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[(1, 1), (1,)]\n")
    assert "[chief]    Epoch 3/3\n" in done.stdout
