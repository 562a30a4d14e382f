"""The console command `tfdist`, which a wheel installs."""

import configparser
import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from launch import quickstart
from launch.engines import engine
from launch.flags import command_line
from tf_config import flag_help
from tf_config.commands import COMMANDS, GROUPS, as_typed

from ..launch_programs.launcher import ROOT
from ..support.deadline import PROGRAM_DEADLINE

_SCRIPT = """\
import sys
from {module} import {function}
sys.exit({function}())
"""


@pytest.fixture(scope="session")
def console(tmp_path_factory):
    """The path of the command: the wheel's, or one like that which pip would write."""
    if wheel := os.environ.get("TFDIST_WHEEL"):
        return Path(wheel).resolve() / "bin" / "tfdist"
    parser = configparser.ConfigParser()
    parser.read(Path(__file__).parents[2] / "setup.cfg")
    entry = parser["options.entry_points"]["console_scripts"]
    name, _, target = entry.strip().partition(" = ")
    module, _, function = target.partition(":")
    path = tmp_path_factory.mktemp("bin") / name
    path.write_text(_SCRIPT.format(module=module, function=function))
    return path


@pytest.fixture
def run(console, tmp_path):
    def run(*arguments, python=(sys.executable,)):
        return subprocess.run(
            [*python, *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{tmp_path}",
                "XDG_STATE_HOME": str(tmp_path / "state"),
            },
            capture_output=True,
            text=True,
            timeout=PROGRAM_DEADLINE,
        )

    def run_console(*arguments, options=()):
        return run(*options, str(console), *arguments)

    run_console.python = run
    return run_console


@pytest.mark.parametrize(
    ("program", "local"),
    [
        ("tfdist quickstart", "tfdist local"),
        ("launch/quickstart.py", "python -m launch.local"),
    ],
)
def test_it_writes_the_quickstart(program, local, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert quickstart.main([program]) == 0
    assert quickstart.main([program, "my first.py"]) == 0
    example = Path(__file__).parents[2] / "examples" / "quickstart.py"
    for name in ("quickstart.py", "my first.py"):
        assert Path(name).read_text() == example.read_text()
    told = capsys.readouterr().out
    assert f"\n    {local} quickstart.py\n" in told
    assert f"\n    {local} 'my first.py'\n" in told


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 0),
        (("--help",), 0),
        (("-h",), 0),
        (("help",), 0),
        (("lokal", "train.py"), 2),
    ],
)
def test_it_lists_all_commands(run, arguments, status):
    done = run(*arguments)
    output = done.stdout + done.stderr
    listed = re.findall(r"^    (\w+)  ", output, re.M)
    assert done.returncode == status
    assert listed == [name for group in GROUPS.values() for name in group]
    # Only the launchers start a server.
    assert sorted([*listed, "server"]) == sorted(COMMANDS)
    if status:
        error = "tfdist: error: there is no command 'lokal'. Did you mean 'local'?"
        assert done.stderr.startswith(error)


def test_it_knows_its_version(run):
    for words in ("--version", "-V", "version"):
        assert re.fullmatch(r"tfdist \d+\.\d+\.\d+\n", run(words).stdout)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--num-ps=2 train.py --num-ps=3", "--num_ps=2 train.py --num-ps=3"),
        ("--num-ps 2 --no-chief train.py -h", "--num_ps 2 --nochief train.py -h"),
        ("-h", "--help"),
        ("--chief -h", "--chief --help"),
        ("--not-known=1 train.py", "--not-known=1 train.py"),
        ("-- --num-ps=2", "-- --num-ps=2"),
        ("--num_ps -1 train.py", "--num_ps -1 train.py"),
    ],
)
def test_flags_may_have_dashes_up_to_the_script(typed, read):
    values = flags.FlagValues()
    flags.DEFINE_integer("num_ps", 2, "", flag_values=values)
    flags.DEFINE_boolean("chief", None, "", flag_values=values)
    found = flag_help.normalized(typed.split(), values, has_script=True)
    assert found == read.split()


def test_flags_may_have_dashes_after_names():
    values = flags.FlagValues()
    flags.DEFINE_integer("num_ps", 2, "", flag_values=values)
    assert flag_help.normalized(["m:f", "--num-ps=2"], values) == ["m:f", "--num_ps=2"]


@pytest.mark.parametrize("name", ["local", "jobs", "doctor", "plan", "checkpoint"])
def test_a_command_has_the_help_of_its_module(run, name):
    module, _ = COMMANDS[name]
    typed, told = run(name, "--help"), run.python("-m", module, "--help")
    assert (typed.returncode, told.returncode) == (0, 0)
    assert f"    tfdist {name} " in typed.stdout
    ours = as_typed(told.stdout, f"tfdist {name}")
    assert typed.stdout.split() == ours.split() != told.stdout.split()


def test_the_server_says_at_once_that_it_has_no_flags(run):
    assert "TFDIST_IMPORTS" in run("server", "--help").stdout
    done = run("server", "--help", options=("-X", "importtime"))
    assert (done.returncode, "tensorflow" in done.stderr) == (0, False)
    assert run("server", "--port=1").returncode == 2


@pytest.mark.parametrize("name", ["local", "jobs", "doctor", "speedup", "kubernetes"])
def test_paragraphs_of_a_help_are_wrapped_with_the_names_that_are_shown(name, capsys):
    main = importlib.import_module(COMMANDS[name][0]).main
    with pytest.raises(SystemExit):
        main([f"tfdist {name}", "--help"])
    lines = capsys.readouterr().out.splitlines()
    for line, following in itertools.pairwise(lines):
        indent, text = line[: len(line) - len(line.lstrip())], following.split()
        is_one_paragraph = (
            line
            and text
            and indent == following[: len(following) - len(following.lstrip())]
        )
        if is_one_paragraph and indent in ("", " " * 6):
            assert len(line) <= 80 < len(f"{line} {text[0]}"), line


def test_an_error_says_which_command_it_is_of(run):
    done = run("local", "--num_ps=1")
    assert done.returncode == 2
    assert done.stderr.startswith("tfdist local: error: no script given")


def test_an_error_names_commands_as_they_are_typed(monkeypatch, capsys):
    def main(_):
        raise command_line.UsageError("give the same flags as for launch.task")

    monkeypatch.setattr(sys, "argv", ["tfdist doctor"])
    with pytest.raises(SystemExit):
        command_line.run(main, "python -m launch.doctor")
    told = capsys.readouterr().err
    assert told.startswith(
        "tfdist doctor: error: give the same flags as for tfdist task\n"
    )


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["si"], {"simulate"}),
        (["--v"], {"--version"}),
        (["local", "--num_"], {"--num_ps", "--num_workers"}),
        (["plan", "--js"], {"--json"}),
        (["local", "train"], set()),  # The shell offers files.
        (["lokal", "--num_"], set()),
    ],
)
def test_bash_completes_commands_and_their_flags(
    run, console, tmp_path, typed, offered
):
    """As on Tab after the last word."""
    script = f"""\
tfdist() {{ {shlex.join([sys.executable, str(console)])} "$@"; }}
source <(tfdist completion)
COMP_WORDS=(tfdist {shlex.join(typed)})
COMP_CWORD={len(typed)}
_tfdist
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    path = tmp_path / "tab.sh"
    path.write_text(script)
    done = run.python(str(path), python=("bash",))
    assert done.stderr == ""
    assert set(done.stdout.split()) == offered


def test_a_launcher_starts_without_tensorflow(run, tmp_path):
    (tmp_path / "train.py").touch()
    done = run("local", "--dry_run", "train.py", options=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0
    assert "launch.local" not in imported  # It is run, as by `python -m`.
    assert "launch.loopback.cluster" in imported
    assert imported & {"tensorflow", "keras", "numpy", "tfdist"} == set()


def test_modules_of_the_current_directory_are_found(run, tmp_path):
    (tmp_path / "training.py").touch()
    done = run("local", "--dry_run", "-m", "training")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].endswith(" -m training")


def test_a_job_runs_and_has_its_exit_status(launcher, console):
    launcher.command = (sys.executable, str(console), "local", "--fork_server=off")
    script = launcher.script("print('trained', flush=True); raise SystemExit(3)")
    code, output, _ = launcher.run("--num_ps=1", "--num_workers=1", script)
    assert code == 3
    assert re.search(r"^\[chief\] +trained$", output, re.M)


FIFTH = '''
"""Runs a job nowhere.

    tfdist fifth --num_ps=1 train.py
"""
import sys
from absl import flags
from launch.engines import record as records
from launch.engines.engine import ENDED, Status
from launch.engines.record import Record
from launch.flags import command_line, engine_flags
from launch.flags.values import Flags

def main(argv):
    values = Flags()
    engine_flags.define(values, 20.0, "nobody has to answer")
    values, program = command_line.parse(argv, values, __doc__)
    engine_flags.check(values, [])
    name = records.name_of(values.name, program.script)
    job = Record(name, "fifth", ".", "{}", {"chief": ("h", "h:1", "log")}, 1.0)
    return engine_flags.start(values, sys.modules[__name__], program, job)

def run(job, record):
    with record.held():
        record.write_end(job.flags.count("--fails"))
    return record.end["code"]

def status(record):
    return Status(ENDED, record.end["code"], "it ran nowhere")

def logs(record, task):
    yield f"{task} was here"
'''


def test_an_engine_of_another_package_is_one_of_ours(run, tmp_path):
    (tmp_path / "fifth.py").write_text(FIFTH)
    info = tmp_path / "fifth-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fifth\nVersion: 1.0\n")
    points = f"[{engine.GROUP}]\nfifth = fifth\nbroken = no_such_module\n"
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "train.py").write_text("import tfdist\ntfdist.RingStrategy()\n")
    (tmp_path / "c.toml").write_text("num_workers = 2\n[fifth]\nname = 'mine'\n")

    def said(*words, status=0):
        done = run(*words)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    told = said("fifth", "--config=c.toml", "train.py", "--fails", status=1)
    assert "train.py uses RingStrategy: --num_ps=0" in told
    told = said("jobs", "status", "mine")
    assert re.match(r"mine on fifth since \S+: ended with 1: it ran nowhere\n", told)
    assert said("jobs", "logs", "mine", "chief") == "chief was here\n"
    told = said("fifth", "--num_worker=1", "train.py", status=2)
    assert told.startswith("tfdist fifth: error: there is no flag --num_worker.")
    assert "tfdist fifth --num_ps=1 train.py" in said("fifth", "--help")
    assert "Did you mean 'fifth'?" in said("fift", status=2)
    told = said("broken", "train.py", status=2)
    assert "no_such_module cannot be imported (No module named" in told
