"""A launcher's flag after the script is warned of, unless the script knows it."""

import pytest

from launch.job.plan import Program
from launch.job.script_source import stray_flags

KNOWN = {"num_ps", "num_workers", "dry_run", "log_dir", "help"}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import helper\nprint(helper.__name__)\n")
    (tmp_path / "helper.py").write_text("")
    return path


def test_all_that_the_script_does_not_mention_are_named(script):
    given = ("--num_ps=1", "--epochs=2", "--num-workers", "3", "--dry_run")
    assert stray_flags(Program(str(script), given), KNOWN) == (
        f"WARNING: --num_ps=1 --num-workers --dry_run after {script} belongs to the script, "
        "which does not mention it. If it is meant for the launcher, put it before the "
        "script"
    )


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("--epochs=1", "num_ps"),
        ("--log_dir=x", "--help"),
        ("--epochs=1", "--", "--num_ps=1"),
    ],
)
def test_nothing_is_said_of_what_belongs_to_a_script(script, given):
    assert stray_flags(Program(str(script), given), KNOWN) == ""


@pytest.mark.parametrize(
    "source",
    [
        "parser.add_argument('--num-ps', type=int)",
        "flags.DEFINE_integer('num_ps', 1, '')",
        "def main(num_ps=1): fire.Fire(main)",
    ],
)
@pytest.mark.parametrize("name", ["train.py", "helper.py"])
def test_a_script_or_its_module_may_have_the_same_flag(script, name, source):
    with (script.parent / name).open("a") as file:
        file.write(source)
    assert stray_flags(Program(str(script), ("--num_ps=1",)), KNOWN) == ""


def test_a_script_that_cannot_be_read_is_not_judged(tmp_path):
    assert stray_flags(Program(str(tmp_path / "none.py"), ("--num_ps=1",)), KNOWN) == ""
