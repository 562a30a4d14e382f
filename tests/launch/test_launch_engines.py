"""Output of the commands of all engines, whatever their flags are."""

import json
import os
import subprocess
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
from launch.loopback import foreground

from ..kubernetes.kubernetes_schemas import KINDS, problems
from ..launch_programs.launcher import DEADLINE
from .test_launch_fuzz import check, command_lines, flags_of, numbers, rest, words

COMMANDS = {"ssh": ssh, "slurm": slurm, "kubernetes": kubernetes, "ray": ray}


@pytest.fixture(autouse=True)
def outside(monkeypatch, tmp_path):
    """Within no job, with jobs and a directory of its own."""
    for name in [*os.environ]:
        if name.startswith("SLURM_") or name == kubernetes_pods.JOB_VARIABLE:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


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
