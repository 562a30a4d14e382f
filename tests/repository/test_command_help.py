"""What the commands tell of themselves: which there are, and their flags."""

from pathlib import Path

import pytest
from absl import flags

import launch.jobs
import launch.kubernetes
import launch.ssh
import launch.task
import tfdist
from launch.flags import command_line
from tf_config import flag_help

from ..support import jobs

ROOT = Path(tfdist.__file__).parent.parent


@pytest.mark.parametrize("package", ["launch", "tfdist"])
def test_a_package_of_commands_lists_them(package):
    done = jobs.run("-m", package, cwd=ROOT)
    top = ROOT / package
    modules = {
        path.with_suffix("")
        for path in (*top.glob("[!_]*.py"), *top.glob("research/[!_]*.py"))
        if '__name__ == "__main__"' in path.read_text()
    }
    # A process that only the launcher starts is no command.
    modules |= {
        path.parent
        for path in top.glob("*/**/__main__.py")
        if path.parent.name != "fork_server"
    }
    commands = {".".join(path.relative_to(ROOT).parts) for path in modules}
    listed = [line.split() for line in done.stdout.splitlines() if " -m " in line]
    assert {words[2] for words in listed} == commands
    assert done.stderr == ""


def test_flags_are_told_by_group():
    values = flags.FlagValues()
    flags.DEFINE_integer("rare", 0, "Few want it.", flag_values=values)
    flags.DEFINE_boolean(
        "m", False, "Said shortly.", short_name="x", flag_values=values
    )
    flags.DEFINE_multi_string("names", [], "Again.", flag_values=values)
    flags.DEFINE_list(
        "sizes", ["1", "2"], " ".join(["What others say."] * 6), flag_values=values
    )
    flags.DEFINE_string("log_dir", None, "Directory of logs.", flag_values=values)
    flags.DEFINE_enum("color", None, ["red", "blue"], "Which.", flag_values=values)
    told = flag_help.describe(values, {"common": "sizes m absent", "none": "absent"})
    assert (
        told
        == """\
common:
  --sizes=SIZES,...
      What others say. What others say. What others say. What others say. What
      others say. What others say. Default: 1,2.
  -x, --[no]m
      Said shortly.

advanced:
  --rare=N
      Few want it. Default: 0.
  --names=NAMES
      Again.
  --log_dir=DIR
      Directory of logs.
  --color=red|blue
      Which."""
    )
    assert flag_help.describe(values).startswith("flags:\n  --rare=N\n")


def test_each_value_has_a_placeholder_that_says_what_it_is():
    told = "".join(
        flag_help.describe(module._define_flags())
        for module in (launch.kubernetes, launch.ssh, launch.task)
    )
    for flag in (
        *("num_ps=N", "log_dir=DIR", "config=FILE", "pod_spec=FILE", "env=NAME=VALUE"),
        *("cpus_per_ps=CPUS", "memory_per_chief=MEMORY", "connect_timeout=SECONDS"),
        *("ps_node_selector=LABEL=VALUE", "worker_hosts=HOST:PORT,...", "hosts=HOSTS"),
    ):
        assert f"  --{flag}\n" in told


def test_no_flag_of_a_group_is_misspelt():
    from launch import chaos, doctor, kubernetes, local, ray, slurm, speedup, ssh, task

    modules = (chaos, doctor, kubernetes, local, ray, slurm, speedup, ssh, task)
    known = {
        name
        for each in modules
        for name in (getattr(each, "define_flags", None) or each._define_flags)()
    }
    named = {name for names in command_line._GROUPS.values() for name in names.split()}
    assert named <= known


def test_no_jobs_are_said_to_be_none(monkeypatch, capsys):
    monkeypatch.setattr(launch.jobs.record, "everything", list)
    assert launch.jobs.main(["jobs", "list"]) == 0
    assert capsys.readouterr() == ("", "no jobs\n")
