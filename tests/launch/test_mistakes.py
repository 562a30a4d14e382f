"""Mistakes on the command line: one message, and status 2, before anything starts."""

import importlib
import os
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest

from launch.flags import command_line
from launch.loopback import foreground

ENGINES = {
    "ssh": "--dry_run --hosts=a",
    "slurm": "--dry_run",
    "kubernetes": "--dry_run --image=x --name=a",
    "ray": "--dry_run",
}
"""The commands of engines, with what each cannot do without."""

# Flags that several engines have. "..." stands for any words.
COMMON = [
    ("--checkpoint_dir=", "--checkpoint_dir is empty"),
    ("--connect_timeout=0", "--connect_timeout must be > 0"),
    ("--connect_timeout=nan", "--connect_timeout must be > 0"),
    ("--env=1X=2", "--env='1X=2': write NAME=VALUE"),
    ("'--env=a b=c'", "write NAME=VALUE"),
    ("--env=NO_SUCH_VARIABLE", "there is no variable NO_SUCH_VARIABLE here"),
    ("--env=TF_CONFIG={}", "the launcher tells each task in TF_CONFIG"),
    ("--gpus_per_worker=-1", "--gpus_per_worker must be a non-negative integer"),
    ("--num_workers=200000", "tasks are more than the 10"),
    ("--work_dir=here", "--work_dir must be an absolute path"),
]
OF_ENGINES = {
    "ssh": [
        ("--hostfile=b", "and not both"),
        ("--ssh=", "--ssh is empty"),
        ("""--ssh="'" """, "No closing quotation"),
        ("--python=", "--python is empty"),
        ("--first_port=65533 --secure=off", "leaves too few ports"),
    ],
    "slurm": [
        ("'--partition=a b'", "--partition='a b' cannot be asked of Slurm"),
        ("'--time=$(id)'", "--time='$(id)' cannot be asked of Slurm"),
        ("--mem=", "--mem='' cannot be asked"),
        ("--mem=lots", "--mem='lots': write a number with K, M, G or T"),
        ("--time=soon", "--time='soon': write minutes, hours:minutes:seconds or"),
        ("--time=-5", "--time='-5': write minutes"),
        ("--nodes=0", "--nodes must be a positive integer; received '0'"),
        ("--log_dir=", "--log_dir is empty"),
        ("--grace_period=70000", "at most 65505 seconds before its end"),
    ],
    "kubernetes": [
        ("--image=", "--image must name an image, without spaces; received ''"),
        ("'--image=a b'", "--image must name an image"),
        ("--namespace=A_B", "--namespace='A_B': a namespace has 1 to 63 lower-case"),
        ("--memory_per_ps=lots", "--memory_per_ps must be a number, with a unit"),
        ("--cpus_per_worker=-1", "--cpus_per_worker must be a number"),
        ("'--ps_node_selector=$(id)'", "write LABEL=VALUE"),
        ("--ps_node_selector=foo", "--ps_node_selector='foo': write LABEL=VALUE"),
        ("--log_dir=", "--log_dir is empty"),
        ("--pod_spec=absent", "--pod_spec='absent'"),
        ("--name=9lives", "needs a job's name to begin with a letter"),
        (f"--name={'a' * 52} --num_workers=2000", "choose a shorter --name"),
    ],
    "ray": [
        ("--address=", "--address is empty"),
        ("--memory=big", "--memory='big' is no amount of memory"),
        ("--runtime_env=absent.json", "--runtime_env='absent.json': "),
        ("--runtime_env={", "write a JSON object, or the name of a file with one"),
        ("--runtime_env=ENV", "a runtime_env is a JSON object"),
        ("""'--runtime_env={"excludes": "x"}'""", "and excludes in it a list"),
        (
            """--work_dir=/x '--runtime_env={"working_dir": "."}'""",
            "one that is shipped: give one of them",
        ),
        ("--cpus_per_task=0", "--cpus_per_task must be a positive integer; rec"),
        ("--timeout=0", "--timeout must be > 0"),
        ("--first_port=65535 --secure=off", "leaves too few ports"),
    ],
}
HOSTS = "--chief_hosts=a:1 --ps_hosts=b:1,b:2 --worker_hosts=c:1,c:2"
MISTAKES = {
    "local": [
        ("--num_ps=-1 train.py", "--num_ps must be a non-neg...; received '-1"),
        ("--chief=maybe train.py", "--chief must be true or false; received 'maybe'"),
        (
            "--num_pss=1 train.py",
            "no flag --num_pss...Did you mean 'num_ps...(see --help",
        ),
        ("-n 3 train.py", "no flag -n...Did you mean 'num_workers"),
        ("--np=3 train.py", "no flag --np...Did you mean 'num_workers"),
        ("--num_workers=0 train.py", "--num_ps=2 needs workers...--num_workers to 1"),
        ("--nochief train.py", "--num_ps=2 needs a chief...remove --nochief"),
        ("--num_ps=0 --num_workers=0 train.py", "no task trains: set"),
        ("--num_ps=0 --nochief --program=coordinator train.py", "needs a chief"),
        ("--gpus_per_worker=99 train.py", "=99 of 2 tasks needs 198 GPUs; this"),
        ("--gpus_per_worker=-1 train.py", "gpus_per_worker"),
        ("--program=all train.py", "--program must be one of auto...received 'all'"),
        ("--num_workers=70000 train.py", "needs 70003 free ports"),
        ("--startup_timeout=0 train.py", "--startup_timeout must be > 0 seconds; rec"),
        ("--grace_period=inf train.py", "--grace_period must be > 0 seconds; received"),
        ("--num_ps=1", "no script given: put it after the flags"),
        ("absent.py", "'absent.py' does not exist in ...: check its path"),
        (".", "'.' is not a file"),
        ("BAD.py", "script 'BAD.py' has a syntax error in line 2: "),
        ("--dry_run BAD.py", "script 'BAD.py' has a syntax error in line 2: "),
        ("-m BAD", "script 'BAD' has a syntax error in line 2: "),
        ("-m no.such", "Python finds no module 'no.such' from "),
        ("--checkpoint_dir= train.py", "--checkpoint_dir is empty: give a dir"),
        ("--checkpoint_dir=train.py/a/b train.py", "be made: ...train.py is a file"),
        ("--checkpoint_dir=/proc/x train.py", "--checkpoint_dir=/proc/x ...; choose"),
        ("--timeline=no/such train.py", "cannot be made: there is no .../no;"),
        ("--min_workers=0 train.py", "must be a positive integer; received '0'"),
        ("--min_workers=two train.py", "positive integer; received 'two'"),
        ("--min_workers=3 train.py", "=3 is more than --num_workers=2: choose 1 to 2"),
        ("--min_workers=1 --program=every_task train.py", "only the chief runs"),
        ("train.py --dry-run", "--dry-run after train.py belongs to the script"),
        ("--log_dir=train.py/logs train.py", "cannot write to the log...--log_dir"),
    ],
    "task": [
        (f"{HOSTS} train.py", "--job_name is missing: give the job of this task, one"),
        (f"--job_name=ps {HOSTS} train.py", "--task_index is missing: give the index"),
        (f"--job_name=ps --task_index=2 {HOSTS} x.py", "ps:2 is not in the cluster"),
        (f"--job_name=ps --task_index=x {HOSTS} x.py", "task_index"),
        ("--job_name=chief train.py", "no task that trains"),
        ("--job_name=chief --worker_host=a:1 x.py", "Did you mean 'worker_hosts'"),
        (f"--job_name=chief {HOSTS}", "no script"),
        (f"--job_name=chief {HOSTS} absent.py", "'absent.py' does not exist"),
    ],
    "doctor": [
        ("train.py", "the doctor takes no script; received 'train.py'"),
        ("--timeout=0", "--timeout must be > 0 and at most 14 seconds; received 0"),
        ("--timeout=nan", "--timeout must be > 0 and at most 14 seconds; received nan"),
        ("--timeout=60", "--timeout must be > 0 and at most 14 seconds; received 60"),
        ("--pid=1 --ps_hosts=a:1", "the hosts and --pid each give a cluster"),
        ("--pid=0", "pid"),
        ("--pid=1 --job=a", "--pid and --job each give a cluster"),
        ("--job=no-such-job", "there is no job named 'no-such-job'"),
        ("--tf_config=absent.json", "cannot read 'absent.json': No such file"),
        ("--job_name=ps", "--task_index need the addresses of the cluster"),
        ("--strategy=mirrored", "multi_worker, ring; received 'mirrored'"),
        ("--tf_confi=x", "Did you mean 'tf_config"),
    ],
    "speedup": [
        ("--num_workers=2 train.py", "give all of them, as in --workers=1,2,4"),
        ("--workers=1,x train.py", "received 'x'"),
        ("--consistency=ssp train.py", "received 'ssp'"),
        ("--rate=fast train.py", "a rate is ... such as 200mbit; received 'fast'"),
        ("--output=. train.py", "cannot write .: choose another"),
        ("--checkpoint_dir=there train.py", "where the one before ended"),
        ("--num_ps=2 --nochief train.py", "needs a chief"),
        ("--workers=0 train.py", "numbers from 1, as in 1,2,4; received '0'"),
        ("--workers=1,1 train.py", "--workers names each value once...[1, 1]"),
        ("--workers= train.py", "one at least"),
        ("--consistency=bounded train.py", "a policy is...received 'bounded'"),
        ("--consistency=synchronous,synchronous train.py", "--consistency names each"),
    ],
    "check": [
        ("x", "takes no script; received 'x'"),
        ("--connect_timeout=0", "connect_timeout must be > 0"),
        ("""--ssh="'" """, "is no command"),
        ("--hosts=", "--hosts has ''"),
    ],
    "env": [("x", "takes no arguments; received 'x'")],
    "quickstart": [
        ("a.py b.py", "takes one path; received a.py b.py"),
        ("train.py", "train.py exists, and is not overwritten: remove it, or give"),
        (".", ". exists, and is not overwritten"),
        ("absent/a.py", "cannot write absent/a.py: No such file or directory; choose"),
    ],
    "jobs": [
        ("", "one of status, follow, logs, cancel and the name of a job"),
        ("stat x", "received stat x. Did you mean 'status'?"),
        ("status x", "there is no job named 'x'; no job of this machine is known"),
    ],
    "ssh": [
        ("--dry_run train.py", "--hosts=h0,h1 or --hostfile=FILE, one of them"),
        ("--dry_run --hostfile=absent train.py", "--hostfile='absent': "),
    ],
    "kubernetes": [("--dry_run train.py", "--image is missing: give an image with")],
}


def has(command, flag):
    module = importlib.import_module(f"launch.{command}")
    return flag.strip("-'").partition("=")[0] in module._define_flags()


ROWS = [
    *((name, *row) for name, rows in MISTAKES.items() for row in rows),
    *(
        (name, f"{needs} {flags} train.py", words)
        for name, needs in ENGINES.items()
        for flags, words in [*COMMON, *OF_ENGINES[name]]
        if (flags, words) not in COMMON or has(name, flags)
    ),
]


@pytest.fixture
def with_a_script(monkeypatch, here):
    """A directory with a script, and no cluster."""
    monkeypatch.syspath_prepend(here)  # As `python -m` does.
    for name in ("TF_CONFIG", "KERAS_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    Path("train.py").write_text("print('never')")
    Path("ENV").write_text("[1]")
    Path("BAD.py").write_text("one = 1\ndef f(: pass\n")


@pytest.mark.usefixtures("with_a_script")
@pytest.mark.parametrize(("command", "line", "words"), ROWS)
def test_a_mistake_is_one_message_and_status_2(
    command, line, words, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", [f"launch.{command}", *shlex.split(line)])
    module = importlib.import_module(f"launch.{command}")
    with (
        mock.patch.object(foreground, "Handle", side_effect=AssertionError),
        mock.patch.object(os, "execve", side_effect=AssertionError),
        pytest.raises(SystemExit) as ended,
    ):
        command_line.run(module.main, f"launch.{command}")
    output, errors = capsys.readouterr()
    assert (ended.value.code, output) == (2, "")
    assert errors.startswith(f"launch.{command}: error: ")
    assert "Traceback" not in errors
    # Only an error about flags points to them.
    assert not (words.startswith(("script", "Python")) and "see --help" in errors)
    pattern = ".*".join(map(re.escape, words.split("...")))
    assert re.search(pattern, " ".join(errors.split())), errors
