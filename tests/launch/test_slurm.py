"""What `launch.slurm` decides, without a Slurm; see also test_slurm_nodes.py."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch import doctor, jobs, slurm
from launch.engines import record, slurm_allocation, slurm_client, slurm_script
from launch.engines import slurm as engine
from launch.engines.engine import ENDED, STARTING, EngineError
from launch.engines.record import Record
from launch.engines.slurm_allocation import SlurmNode
from launch.engines.slurm_client import SlurmJob
from launch.engines.slurm_script import Batch, JobPart
from launch.flags.errors import UsageError

from ..launch_programs.launcher import DEADLINE
from .test_launch_fuzz import snares

counts = st.fixed_dictionaries(
    {"ps": st.integers(0, 9), "worker": st.integers(1, 9), "chief": st.integers(0, 1)}
)


pytestmark = pytest.mark.usefixtures("here")


def test_a_refusal_of_sbatch_is_said_without_sinfo(monkeypatch, tmp_path):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid account' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(EngineError, match="sbatch fails: .*invalid account"):
        slurm_client.submit("")


# The script.


def a_batch(**changed):
    return Batch(
        **{
            **{"name": "job", "parts": [JobPart(2, 3)], "command": ["true"]},
            **{"cwd": "/", "output": "/dev/null", "warning": 40},
            **changed,
        }
    )


@pytest.mark.not_in_gate
@settings(max_examples=60, deadline=None)
@given(st.lists(snares, min_size=1, max_size=4), snares)
def test_a_script_carries_everything_through_its_shell(tmp_path_factory, args, odd):
    directory = tmp_path_factory.mktemp("slurm")
    cwd = directory / f"x{odd.replace('/', '_')}y"
    cwd.mkdir()
    seen = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd()]))"
    text = slurm_script.render(
        a_batch(
            command=[sys.executable, "-c", seen, *args],
            cwd=str(cwd),
            output=str(cwd / "new directory" / "out put"),
        )
    )
    # sbatch reads directives up to the first command, and no line ends of DOS.
    head, _, body = text.partition("trap ''")
    assert len(re.findall("^#SBATCH", head, re.M)) == 7
    assert "\r" not in text
    for shell in ("sh", "bash"):
        subprocess.run([shell, "-n"], input=text.encode(), check=True, timeout=DEADLINE)
        subprocess.run([shell], input=text.encode(), check=True, timeout=DEADLINE)
    first, second = (cwd / "new directory" / "out put").read_text().splitlines()
    assert first == second
    assert json.loads(first) == [args, str(cwd)]
    assert sorted(each.name for each in directory.rglob("pwned")) == []


def test_a_node_without_the_directory_says_so_in_the_output(tmp_path):
    output = tmp_path / "new" / "out"
    text = slurm_script.render(a_batch(cwd=str(tmp_path / "gone"), output=str(output)))
    ended = subprocess.run(["sh"], input=text.encode(), timeout=DEADLINE)
    assert ended.returncode == 1
    assert str(tmp_path / "gone") in output.read_text()


@given(counts, st.none() | st.integers(1, 9), st.integers(0, 4))
def test_the_nodes_have_room_for_every_task(counts, nodes, gpus):
    found = slurm_script.parts(counts, nodes, gpus)
    rooms = [part.nodes * part.tasks_per_node for part in found]
    others = counts["ps"] + counts["chief"]
    if gpus and others:
        with_gpus, without = found
        assert rooms[0] >= counts["worker"]
        assert rooms[1] >= others
        assert with_gpus.gpus_per_node == with_gpus.tasks_per_node * gpus
        assert without.gpus_per_node == 0
        assert without.nodes >= counts["ps"]
    else:
        (part,) = found
        assert rooms[0] >= counts["worker"] + others
        assert part.gpus_per_node == part.tasks_per_node * gpus
        if nodes is None:
            assert part.nodes >= counts["ps"]


@given(counts, st.none() | st.integers(1, 9), st.integers(0, 2), st.integers(1, 9))
def test_the_fewest_nodes_have_room_for_the_workers_that_are_needed(
    counts, nodes, gpus, min_workers
):
    min_workers = min(min_workers, counts["worker"])
    found = slurm_script.parts(counts, nodes, gpus, min_workers)
    everything = slurm_script.parts(counts, nodes, gpus)
    assert [replace(part, least=0) for part in found] == everything
    first, *rest = found
    assert all(part.least == 0 for part in rest)
    if min_workers == counts["worker"]:
        assert first.least == 0
        return
    assert first.least <= first.nodes
    others = 0 if rest else counts["ps"] + counts["chief"]
    environ = {"SLURM_NTASKS": str(first.least * first.tasks_per_node)}
    if rest:
        environ["SLURM_HET_SIZE"] = "2"
    else:
        assert first.least >= min(counts["ps"], first.nodes)
    started = slurm_allocation.with_room(counts, min_workers, environ)
    assert min_workers <= started.pop("worker") <= counts["worker"]
    assert started == {job: n for job, n in counts.items() if job != "worker"}
    assert int(environ["SLURM_NTASKS"]) >= others + min_workers


def test_an_allocation_that_says_nothing_of_tasks_is_used_as_it_is():
    assert slurm_allocation.with_room({"ps": 1, "worker": 3}, 1, {})["worker"] == 3
    # One that the user has made may be too small.
    few = slurm_allocation.with_room({"ps": 1, "worker": 3}, 2, {"SLURM_NTASKS": "1"})
    assert few["worker"] == 2


def test_a_range_of_nodes_and_their_loss():
    text = slurm_script.render(a_batch(parts=[JobPart(3, 2, least=2)]))
    assert "#SBATCH --nodes=2-3\n" in text
    assert "no-kill" not in text
    text = slurm_script.render(a_batch(may_lose_nodes=True))
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH --no-kill\n" in text


def test_a_heterogeneous_job():
    text = slurm_script.render(
        a_batch(
            parts=[JobPart(2, 1, 1), JobPart(1, 2)],
            options={"partition": "cpu,gpu"},
            extra=["--exclusive", "--mail-type=END"],
        )
    )
    first, second = text.split("#SBATCH hetjob\n")
    for part in (first, second):
        assert "#SBATCH --partition=cpu,gpu\n" in part
        assert "#SBATCH --exclusive\n" in part
    assert "--gres=gpu:1\n" in first
    assert "gres" not in second
    assert "--job-name" not in second
    assert "--signal=B:USR1@40\n" in first


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--array=1-9", "the launcher needs --array of sbatch for itself"),
        ("--output=x", "needs --output"),
        ("-N4", "'-N4' is no option of sbatch that a script can carry"),
        ("--comment=a b", "without spaces and quotes"),
        ("--comment=a\n#SBATCH --array=1", "without spaces and quotes"),
        ("--comment=$(id)", "is no option"),
        ("", "is no option"),
    ],
)
def test_an_option_of_sbatch_that_no_script_can_carry(option, message):
    with pytest.raises(EngineError, match=re.escape(message)):
        slurm_script.render(a_batch(extra=[option]))


@given(st.text() | snares)
def test_no_option_escapes_its_line(value):
    try:
        text = slurm_script.render(a_batch(options={"partition": value}))
    except EngineError:
        assert not re.fullmatch("[a-z0-9,]+", value)
    else:
        assert f"#SBATCH --partition={value}\n" in text
        assert not {*" \n\"'\\#$`;"} & {*value}


# The command.


def test_a_dry_run_prints_the_script(capsys):
    command = ["launch.slurm", "--dry_run", "--num_ps=2", "--num_workers=4"]
    flags = ["--partition=gpu", "--time=1:00:00", "--cpus_per_task=2", "--name=mine"]
    with mock.patch.object(subprocess, "run") as started:
        assert slurm.main([*command, *flags, "train.py", "a b", "--dry_run"]) == 0
    assert not started.called
    text = capsys.readouterr().out
    for line in ("partition=gpu", "time=1:00:00", "cpus-per-task=2", "nodes=4"):
        assert f"#SBATCH --{line}\n" in text
    assert "#SBATCH --ntasks-per-node=2\n" in text
    argv = shlex.split(text.splitlines()[-1])
    assert argv[:4] == ["exec", sys.executable, "-m", "launch.slurm"]
    assert argv[-3:] == ["train.py", "a b", "--dry_run"]
    assert "--dry_run" not in argv[:-1]
    assert f"--log_dir={os.getcwd()}/logs/mine" in argv


def test_without_slurm(tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    command = ["launch.slurm", "--name=mine", "--detach", "train.py"]
    with pytest.raises(
        EngineError, match="there is no sbatch here: run this on a login node"
    ):
        slurm.main(command)
    # It was never submitted, so nothing is left of it.
    assert record.everything() == []
    assert not (tmp_path / "logs").exists()


def test_an_allocation_without_nodes(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(EngineError, match="unset SLURM_JOB_ID to submit a job"):
        slurm.main(["launch.slurm", "train.py"])


# The allocation.


def test_the_parts_of_an_allocation():
    with mock.patch.object(slurm_client, "hostnames", lambda text: text.split("+")):
        (found,) = slurm_allocation.parts({"SLURM_JOB_NODELIST": "n2+n10"})
        assert found == [SlurmNode("n2"), SlurmNode("n10")]
        het = {"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST": "g0"}
        groups = {"SLURM_JOB_NODELIST_HET_GROUP_0": "g0"}
        groups["SLURM_JOB_NODELIST_HET_GROUP_1"] = "n2+n10"
        assert slurm_allocation.parts({**het, **groups}) == [
            [SlurmNode("g0", 0)],
            [SlurmNode("n2", 1), SlurmNode("n10", 1)],
        ]
    assert "--het-group=1" in SlurmNode("n2", 1).srun()
    assert "--nodelist=n2" in SlurmNode("n2").srun()


def test_workers_go_to_the_first_part_and_ps_to_the_second():
    parts = [[SlurmNode("g0", 0)], [SlurmNode("n2", 1), SlurmNode("n10", 1)]]
    layout = slurm._layout(parts, {"ps": 2, "worker": 2, "chief": 1})
    where = {str(task): layout.hosts[i].name for task, i in layout.where.items()}
    assert where == {
        **{"worker:0": "g0", "worker:1": "g0", "ps:0": "n2", "ps:1": "n10"},
        "chief:0": "n2",
    }


@pytest.mark.parametrize(
    ("given", "gpus", "seen"),
    [("5,7", range(1), "5"), ("5,7", range(1, 2), "7"), (None, range(2, 4), "2,3")],
)
def test_a_worker_sees_its_gpus(given, gpus, seen):
    words = SlurmNode("n2").connect(gpus)
    environ = {"PATH": os.environ["PATH"]}
    if given is not None:
        environ["CUDA_VISIBLE_DEVICES"] = given
    line = 'printf %s "$CUDA_VISIBLE_DEVICES"; kill -TERM $$; echo " alive"'
    # Without srun, as it would run on the node.
    done = subprocess.run(
        [*words[words.index("sh") :], line],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout == f"{seen} alive\n", done.stderr


# What Slurm says.


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "3:0", 3),
        ("FAILED", "0:9", 137),
        ("CANCELLED", "0:0", 143),
        ("NODE_FAIL", "0:0", 1),
    ],
)
def test_the_exit_status_of_a_job(state, code, status):
    line = f"JobId=1 JobName=a JobState={state} Reason=None ExitCode={code} Command=/x"
    assert slurm_client.parse(line) == SlurmJob(state, "", status)


@given(st.text())
def test_whatever_slurm_prints_is_read_or_rejected(text):
    with pytest.raises(EngineError):
        slurm_client.parse(text)


@pytest.mark.parametrize(
    ("state", "reason", "is_hopeless"),
    [
        ("PENDING", "PartitionConfig", True),
        ("PENDING", "PartitionTimeLimit", True),
        ("PENDING", "BadConstraints", True),
        ("PENDING", "Resources", False),
        ("PENDING", "Priority", False),
        ("PENDING", "JobHeldUser", False),
        ("FAILED", "BadConstraints", False),
    ],
)
def test_what_waiting_does_not_help(state, reason, is_hopeless):
    assert SlurmJob(state, reason).is_hopeless == is_hopeless


def a_record(tmp_path):
    return Record("mine", "slurm", str(tmp_path), "", {}, 1.0, job_id="7")


def test_how_a_job_stands(tmp_path):
    job = a_record(tmp_path)

    def status(*says):
        with mock.patch.object(slurm_client, "look", return_value=SlurmJob(*says)):
            return engine.status(job)

    with job.held():
        pass
    assert status("PENDING", "Priority").state == STARTING
    assert status("RUNNING").state == STARTING  # No task has written yet.
    assert str(status("TIMEOUT", "", 143)) == "ended with 143: Slurm says TIMEOUT"
    (tmp_path / "end.json").write_text('{"code": 3, "job_id": "6"}')
    assert status("COMPLETED").code == 0  # That file is of another job.
    (tmp_path / "end.json").write_text('{"code": 3, "job_id": "7"}')
    assert status("FAILED", "NonZeroExitCode", 1).code == 3
    with mock.patch.object(slurm_client, "look", return_value=None):
        (tmp_path / "end.json").unlink()
        assert engine.status(job).state == ENDED  # Slurm forgets; the record does not.
        assert engine.status(job).code is not None


def test_a_record_learns_where_its_tasks_are(tmp_path):
    job = a_record(tmp_path)
    with job.held():
        assert record.load("mine").tasks == {}
        tasks = {"chief": ["n2", "n2:7", "/chief.log"]}
        Record("mine", "slurm", str(tmp_path), "{}", tasks, 1.0).write_place()
        found = record.load("mine")
    assert (found.tasks, found.tf_config, found.job_id) == (tasks, "{}", "7")


def test_the_doctor_of_a_job_that_waits(tmp_path):
    with a_record(tmp_path).held():
        pass
    with pytest.raises(UsageError):
        doctor.main(["launch.doctor", "--job=mine"])


def test_a_controller_that_does_not_answer(tmp_path, capsys):
    with a_record(tmp_path).held():
        pass
    down = EngineError("it is down: wait, and ask again")
    with mock.patch.object(slurm_client, "look", side_effect=down) as look:
        assert jobs.main(["jobs", "list"]) == 0
        assert capsys.readouterr().out.endswith("  unknown: it is down\n")
        # What is known need not be asked for.
        look.reset_mock()
        a_record(tmp_path).write_end(3)
        assert jobs.main(["jobs", "list"]) == 0
        assert capsys.readouterr().out.endswith("  ended with 3\n")
        assert not look.called
