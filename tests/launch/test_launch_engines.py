"""Output of the commands of all engines, whatever their flags are."""

import json
import subprocess
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch import kubernetes, ray, slurm, ssh
from launch.engines import (
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


pytestmark = pytest.mark.usefixtures("here")


amounts = st.sampled_from(["2", "500m", "4Gi"]) | words
OWN = {
    "address": st.sampled_from(["auto", "h0:6379", "ray://h0:10001"]) | words,
    "cpus_per_task": st.integers(1, 9) | numbers,
    "env": st.sampled_from(["A=1", "A=", "PATH"]) | words,
    "first_port": st.integers(1, 65535) | numbers,
    "gpus_per_worker": st.integers(0, 4) | numbers,
    "hostfile": st.just("HOSTFILE") | words,
    "hosts": st.sampled_from(["h0", "h0,h1", "root@h0,h1"]) | words,
    "image": st.just("image") | words,
    "memory": st.sampled_from(["4G", "512M"]) | words,
    "namespace": st.just("there") | words,
    "nodes": st.integers(1, 9) | numbers,
    "pod_spec": st.just("absent"),
    "ps_node_selector": st.just("a/b=c") | words,
    "runtime_env": st.sampled_from(['{"pip": ["rich"]}', "{}", '{"excludes": 1}'])
    | words,
    "sbatch": st.sampled_from(["--exclusive", "--mem=1G"]) | words,
    "ssh": st.sampled_from(["ssh", "ssh -p 22"]) | words,
    "time": st.sampled_from(["60", "1-0"]) | words,
    "work_dir": st.just("/data") | words,
    **{f"cpus_per_{role}": amounts for role in ("ps", "worker", "chief")},
    **{f"memory_per_{role}": amounts for role in ("ps", "worker", "chief")},
}
"""Values of flags, each of which means the same to every engine that has it."""
BEGINNING = {"ssh": "# ", "slurm": "#!/bin/sh\n#SBATCH --job-name=", "ray": "# Ray at "}


@pytest.mark.not_in_gate
@pytest.mark.parametrize("name", COMMANDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_the_flags_say(name, data, tmp_path_factory):
    hostfile = tmp_path_factory.mktemp("hosts") / "hosts.txt"
    hostfile.write_text("h0 link=10\nh1\n")
    args = data.draw(command_lines(flags_of(COMMANDS[name], **OWN), rest))
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
