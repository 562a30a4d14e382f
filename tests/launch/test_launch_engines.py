"""What the commands of all engines refuse, and print whatever the flags say."""

import json
import os
import re
import subprocess
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch import kubernetes, ray, slurm, ssh
from launch.engines import (
    kubernetes_pods,
    preflight,
    ray_launcher_process,
    slurm_client,
)
from launch.engines import ray as ray_engine
from launch.engines import ssh as ssh_engine
from launch.engines.engine import EngineError
from launch.flags.errors import UsageError
from launch.loopback import foreground

from ..kubernetes.kubernetes_schemas import KINDS, problems
from ..launch_programs.launcher import DEADLINE
from .test_launch_fuzz import check, command_lines, flags_of, numbers, rest, words

COMMANDS = {"ssh": ssh, "slurm": slurm, "kubernetes": kubernetes, "ray": ray}
# What a command cannot do without.
NEEDED = {"ssh": ["--hosts=a"], "kubernetes": ["--image=x", "--name=a"]}


@pytest.fixture(autouse=True)
def outside(monkeypatch, tmp_path):
    """Within no job, with jobs and a directory of its own."""
    for name in [*os.environ]:
        if name.startswith("SLURM_") or name == kubernetes_pods.JOB_VARIABLE:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


# Flags that several engines have.
COMMON = [
    ("--checkpoint_dir=", "--checkpoint_dir is empty"),
    ("--connect_timeout=0", "--connect_timeout must be > 0"),
    ("--connect_timeout=nan", "--connect_timeout must be > 0"),
    ("--env=1X=2", "--env='1X=2': write NAME=VALUE"),
    ("--env=a b=c", "write NAME=VALUE"),
    ("--env=NO_SUCH_VARIABLE", "there is no variable NO_SUCH_VARIABLE here"),
    ("--env=TF_CONFIG={}", "the launcher tells each task in TF_CONFIG"),
    ("--gpus_per_worker=-1", "--gpus_per_worker must be a non-negative integer"),
    ("--num_workers=200000", "tasks are more than the 10"),
    ("--work_dir=here", "--work_dir must be an absolute path"),
]
OWN = {
    "ssh": [
        (["--hosts=a", "--hostfile=b"], "and not both"),
        (["--ssh="], "--ssh is empty"),
        (["--ssh='"], "No closing quotation"),
        (["--python="], "--python is empty"),
        (["--first_port=65533", "--secure=off"], "leaves too few ports"),
    ],
    "slurm": [
        (["--partition=a b"], "--partition='a b' cannot be asked of Slurm"),
        (["--time=$(id)"], "--time='$(id)' cannot be asked of Slurm"),
        (["--mem="], "--mem='' cannot be asked"),
        (["--mem=lots"], "--mem='lots': write a number with K, M, G or T"),
        (["--time=soon"], "--time='soon': write minutes, hours:minutes:seconds or"),
        (["--time=-5"], "--time='-5': write minutes"),
        (["--nodes=0"], "--nodes must be a positive integer; received '0'"),
        (["--log_dir="], "--log_dir is empty"),
        (["--grace_period=70000"], "at most 65505 seconds before its end"),
    ],
    "kubernetes": [
        (["--image="], "--image must name an image, without spaces; received ''"),
        (["--image=a b"], "--image must name an image"),
        (["--namespace=A_B"], "--namespace='A_B': a namespace has 1 to 63 lower-case"),
        (["--memory_per_ps=lots"], "--memory_per_ps must be a number, with a unit"),
        (["--cpus_per_worker=-1"], "--cpus_per_worker must be a number"),
        (["--ps_node_selector=$(id)"], "write LABEL=VALUE"),
        (["--ps_node_selector=foo"], "--ps_node_selector='foo': write LABEL=VALUE"),
        (["--log_dir="], "--log_dir is empty"),
        (["--pod_spec=absent"], "--pod_spec='absent'"),
        (["--name=9lives"], "needs a job's name to begin with a letter"),
        ([f"--name={'a' * 52}", "--num_workers=2000"], "choose a shorter --name"),
    ],
    "ray": [
        (["--address="], "--address is empty"),
        (["--memory=big"], "--memory='big' is no amount of memory"),
        (["--runtime_env=absent.json"], "--runtime_env='absent.json': "),
        (["--runtime_env={"], "write a JSON object, or the name of a file with one"),
        (["--runtime_env=ENV"], "a runtime_env is a JSON object"),
        (['--runtime_env={"excludes": "x"}'], "and excludes in it a list"),
        (
            ["--work_dir=/x", '--runtime_env={"working_dir": "."}'],
            "one that is shipped: give one of them",
        ),
        (
            ["--cpus_per_task=0"],
            "--cpus_per_task must be a positive integer; received '0'",
        ),
        (["--timeout=0"], "--timeout must be > 0"),
        (["--first_port=65535", "--secure=off"], "leaves too few ports"),
    ],
}


def has(command, flag):
    return flag.removeprefix("--").partition("=")[0] in command._define_flags()


WRONG = [
    *(
        (name, [flag], message)
        for name, command in COMMANDS.items()
        for flag, message in COMMON
        if has(command, flag)
    ),
    *((name, flags, message) for name, rows in OWN.items() for flags, message in rows),
]


@pytest.mark.parametrize(("name", "flags", "message"), WRONG)
def test_wrong_flags(name, flags, message):
    Path("ENV").write_text("[1]")
    command = [*NEEDED.get(name, []), "--dry_run", *flags, "train.py"]
    with pytest.raises((UsageError, EngineError), match=re.escape(message)):
        COMMANDS[name].main([f"launch.{name}", *command])


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("ssh", [], "--hosts=h0,h1 or --hostfile=FILE, one of them"),
        ("ssh", ["--hostfile=absent"], "--hostfile='absent': "),
        ("kubernetes", [], "--image is missing: give an image with the script"),
    ],
)
def test_what_a_command_cannot_do_without(name, flags, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        COMMANDS[name].main([f"launch.{name}", "--dry_run", *flags, "train.py"])


roles = [
    f"{what}_per_{who}"
    for what in ("cpus", "memory")
    for who in ("ps", "worker", "chief")
]
gpus = {"gpus_per_worker": st.integers(0, 4) | numbers}
cpus = {"cpus_per_task": st.integers(1, 9) | numbers}
env = {"env": st.sampled_from(["A=1", "A=", "PATH"]) | words}
elsewhere = {
    "first_port": st.integers(1, 65535) | numbers,
    "work_dir": st.just("/data") | words,
}
FLAGS = {
    "ssh": flags_of(
        ssh,
        hosts=st.sampled_from(["h0", "h0,h1", "root@h0,h1"]) | words,
        hostfile=st.just("HOSTFILE") | words,
        ssh=st.sampled_from(["ssh", "ssh -p 22"]) | words,
        **(env | elsewhere),
    ),
    "slurm": flags_of(
        slurm,
        nodes=st.integers(1, 9) | numbers,
        time=st.sampled_from(["60", "1-0"]) | words,
        sbatch=st.sampled_from(["--exclusive", "--mem=1G"]) | words,
        **(cpus | gpus),
    ),
    "kubernetes": flags_of(
        kubernetes,
        image=st.just("image") | words,
        ps_node_selector=st.just("a/b=c") | words,
        pod_spec=st.just("absent"),
        namespace=st.just("there") | words,
        **dict.fromkeys(roles, st.sampled_from(["2", "500m", "4Gi"]) | words),
        **(env | gpus),
    ),
    "ray": flags_of(
        ray,
        address=st.sampled_from(["auto", "h0:6379", "ray://h0:10001"]) | words,
        memory=st.sampled_from(["4G", "512M"]) | words,
        runtime_env=st.sampled_from(['{"pip": ["rich"]}', "{}", '{"excludes": 1}'])
        | words,
        **(env | elsewhere | cpus | gpus),
    ),
}
BEGINNING = {"ssh": "# ", "slurm": "#!/bin/sh\n#SBATCH --job-name=", "ray": "# Ray at "}


@pytest.mark.not_in_gate
@pytest.mark.parametrize("name", COMMANDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_the_flags_say(name, data, tmp_path_factory):
    hostfile = tmp_path_factory.mktemp("hosts") / "hosts.txt"
    hostfile.write_text("h0 link=10\nh1\n")
    args = data.draw(command_lines(FLAGS[name], rest))
    args = [each.replace("HOSTFILE", str(hostfile)) for each in args]
    needed = ["--image=i"] if name == "kubernetes" else []
    no = EngineError("no")
    with (
        mock.patch.object(ssh_engine, "address", return_value="10.0.0.7"),
        mock.patch.object(preflight, "ask", side_effect=no),
        mock.patch.object(kubernetes, "KubernetesClient", side_effect=no),
        mock.patch.object(ray_engine, "run", side_effect=no),
        mock.patch.object(ray_engine, "detach", side_effect=no),
        mock.patch.object(foreground, "run") as run,
        mock.patch.object(slurm_client, "submit") as submit,
        mock.patch.object(ray_launcher_process, "DriverHandle") as driver,
    ):
        status, output = check(COMMANDS[name].main, ["--dry_run", *needed, *args])
    assert [each.called for each in (run, submit, driver)] == [False] * 3
    if status or "flags:" in output:
        return
    if name == "kubernetes":
        pytest.importorskip("kubernetes")
        for each in json.loads(output)["items"]:
            assert problems(each, KINDS[each["kind"]]) == []
        return
    assert output.startswith(BEGINNING[name])
    subprocess.run(
        ["sh", "-n"],
        input=output.encode(errors="surrogateescape"),
        check=True,
        timeout=DEADLINE,
    )
