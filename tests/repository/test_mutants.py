"""Each mutant still changes one place, and its test is still there."""

import pytest

from .. import mutants
from ..mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_names_a_test(mutant):
    assert mutant.changed(ROOT) != (ROOT / mutant.file).read_text()
    file, _, test = mutant.test.partition("::")
    function = test.partition("[")[0]
    assert f"def {function}" in (ROOT / file).read_text()


def test_the_command_of_the_docstring_names_mutants():
    (command,) = [line for line in mutants.__doc__.splitlines() if "# some" in line]
    names = command.partition("#")[0].split()[3:]
    assert set(names) <= {mutant.name for mutant in MUTANTS}


def test_a_mutant_that_fits_no_more_is_refused_before_anything_runs(
    monkeypatch, capsys
):
    stale = Mutant("stale", "tests/mutants.py", ("no such text", ""), "tests/test_b.py")
    monkeypatch.setattr(mutants, "MUTANTS", (stale,))
    with pytest.raises(SystemExit, match="2"):
        mutants.main([])
    assert "0 times, and not once: renew the mutant" in capsys.readouterr().err


def test_names_are_of_one_mutant_each():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(("text", "count"), [("a = 1", 0), ("b = 2\nb = 2", 2)])
def test_a_text_that_is_not_there_once_is_named(tmp_path, text, count):
    (tmp_path / "module.py").write_text(text)
    mutant = Mutant("wrong-b", "module.py", ("b = 2", "b = 3"), "tests/test_b.py")
    with pytest.raises(
        ValueError, match=rf"^wrong-b: module.py has 'b = 2' {count} times"
    ):
        mutant.changed(tmp_path)
