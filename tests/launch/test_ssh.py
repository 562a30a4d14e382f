"""`launch.ssh` with a stand-in for ssh, on this machine; see also test_ssh_hosts.py."""

import json
import re
import shlex
import subprocess
import sys
from unittest import mock

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch import ssh
from launch.engines import ssh as engine
from launch.engines.hosts import Host
from launch.job.plan import Remote, TaskPlan
from tf_config import Task

from ..launch_programs.engine_launcher import EngineLauncher
from ..launch_programs.engine_suite import EngineSuite
from ..launch_programs.launcher import DEADLINE, PROGRAMS, wait_for
from .test_launch_fuzz import snares


class SshLauncher(EngineLauncher):
    """Runs `python -m launch.ssh`, with a stand-in for ssh."""

    engine = "ssh"

    def __init__(self, directory):
        super().__init__(directory)
        self.hosts = {}
        (directory / "bin").mkdir()
        program = directory / "bin" / "ssh.py"
        program.write_text((PROGRAMS / "ssh.py").read_text())
        self.ssh = f"{sys.executable} -I {program}"
        self.command = (
            *(sys.executable, "-m", "launch.ssh", f"--ssh={self.ssh}"),
            *("--hosts=h0,h1,h2", "--log_dir=logs", "--env=TEST_MARK"),
            # The stand-in has one set of ports for all hosts.
            "--secure=off",
        )

    def start(self, *args, **options):
        (self.directory / "bin" / "hosts.json").write_text(json.dumps(self.hosts))
        return super().start(*args, **options)

    def cut(self):
        agent = psutil.Process(self.tasks()["worker:0"]).parent()
        agent.kill()
        return "worker:0"


@pytest.fixture
def launcher(tmp_path):
    with SshLauncher(tmp_path) as launcher:
        yield launcher


@pytest.mark.in_gate
@pytest.mark.slow
def test_the_tasks_run_on_their_hosts(launcher):
    script = launcher.script(
        "import os, sys; sum(range(10**7)); print(os.environ['HOST'], sys.argv[1:])"
    )
    status, output, errors = launcher.run(script, "a b", "$(id)\n")
    assert status == 0, errors
    assert "[chief]    h1 ['a b', '$(id)\\n']" in output
    assert "hello from ps:1" in output
    assert (
        "WARNING: the ports are open (--secure=off): anyone who can reach 10.0.0.0, "
        "10.0.0.1, 10.0.0.2 can run code there" in errors
    )
    assert re.search(r"chief +finished +0 +[\d.]+ +0\.[0-9]*[1-9]", errors), errors
    launcher.wait_until_nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "special", "message"),
    [
        ("h1", {"refuse": "Permission denied"}, "Permission denied; try "),
        ("h2", {"hang": True}, "h2 did not answer within 15 s (--connect_timeout)"),
        ("h1", {"env": {"PYTHONPATH": "other"}}, "h1 has tensorflow 1.2.3, but h0 has"),
        ("h0", {"env": {"PYTHONPATH": "broken"}}, "h0 cannot run "),
    ],
)
def test_a_host_that_cannot_take_part_is_named_before_anything_starts(
    launcher, host, special, message
):
    info = launcher.directory / "other" / "tensorflow-1.2.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: tensorflow\nVersion: 1.2.3\n")
    (launcher.directory / "broken").mkdir()
    (launcher.directory / "broken" / "sitecustomize.py").write_text("raise SystemExit")
    launcher.hosts[host] = special
    script = launcher.script("print('never')")
    timeout = "--connect_timeout=15" if "hang" in special else "--connect_timeout=30"
    status, output, errors = launcher.run(timeout, script)
    assert status == 2
    assert "nothing was started:" in errors
    assert message in errors
    assert special.get("refuse", "") in errors
    assert [
        line.split()[0]
        for line in errors.splitlines()
        if " has " in line or " cannot " in line
    ] in ([host], [])
    assert output == ""
    assert not (launcher.directory / "logs").exists()


def without_programs(launcher):
    """A directory in which no program is found but a shell."""
    path = launcher.directory / "bare"
    path.mkdir()
    (path / "sh").symlink_to("/bin/sh")
    return str(path)


@pytest.mark.slow
def test_a_host_without_stunnel_is_named_with_what_to_install(launcher):
    launcher.hosts["h1"] = {"env": {"PATH": without_programs(launcher)}}
    script = launcher.script("print('never')")
    status, output, errors = launcher.run("--secure=auto", script)
    assert (status, output) == (2, "")
    assert "nothing was started:\n" in errors
    assert "\nh1 has no stunnel: apt-get install stunnel4" in errors
    assert "--secure=private does without it on a network" in errors
    assert "--secure=off lets everyone who can reach the hosts" in errors
    assert not (launcher.directory / "logs").exists()


@pytest.mark.slow
def test_one_host_needs_no_tunnel_and_its_ports_are_closed(launcher):
    launcher.hosts["h0"] = {"env": {"PATH": without_programs(launcher)}}
    code = """
        import json, os, socket
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        print(sorted({each.partition(":")[0] for job in cluster.values() for each in job}))
        own = socket.create_server(("", int(cluster["chief"][0].partition(":")[2])))
        print(own.getsockname()[0], socket.create_server(("", 0)).getsockname()[0])
        """
    status, output, errors = launcher.run(
        "--secure=tls", "--hosts=h0", launcher.script(code)
    )
    assert status == 0, errors
    assert "[chief]    ['127.0.0.1']\n" in output
    # Ports that are not the job's are left alone.
    assert "[chief]    127.0.0.1 0.0.0.0\n" in output
    assert "the ports are closed to other machines\n" in errors


@pytest.mark.slow
def test_only_hosts_that_run_the_script_need_it(launcher):
    status, _, errors = launcher.run("absent.py")
    assert status == 2
    assert f"h1 has no script {launcher.directory / 'absent.py'}" in errors
    assert "h0 has" not in errors
    status, _, errors = launcher.run("--work_dir=/nowhere", "absent.py")
    assert errors.count("has no directory /nowhere") == 3


class TestOnStandIns(EngineSuite):
    pytestmark = pytest.mark.slow
    test_mnist_trains_while_a_worker_a_ps_and_the_chief_are_killed = None


@pytest.mark.slow
@pytest.mark.parametrize("task", ["worker:1", "ps:0", "chief:0"])
def test_a_lost_task_is_restarted(launcher, task):
    process = launcher.start(launcher.waiting())
    launcher.wait_for_log("chief")
    launcher.kill(task)
    if not task.startswith("worker"):
        wait_for(lambda: launcher.log("chief").count(b"ready") == 2, "next chief")
    launcher.over.touch()
    shown = launcher.finish(process)
    assert process.returncode == 0, shown
    name = task.replace("chief:0", "chief")
    assert f"{name} was killed by SIGKILL: restarting" in shown


# What a person pastes.


@pytest.mark.not_in_gate
@settings(max_examples=40, deadline=None)
@given(
    st.lists(snares, min_size=1, max_size=4),
    st.dictionaries(st.sampled_from("ABC"), snares, max_size=2),
)
def test_a_rendered_line_carries_everything_through_two_shells(
    tmp_path_factory, args, env
):
    directory = tmp_path_factory.mktemp("a b' $x")
    seen = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
    plan = TaskPlan(
        Task("chief", 0),
        "h:1",
        (sys.executable, "-c", seen, *args),
        env,
        # Instead of ssh: the login shell of the host runs the last argument.
        remote=Remote("h0", ("sh", "-c"), str(directory)),
    )
    done = subprocess.run(
        ["sh", "-c", plan.shell_line()], capture_output=True, timeout=DEADLINE
    )
    argv, environ, cwd = json.loads(done.stdout)
    assert (argv, cwd) == (args, str(directory))
    assert {name: environ[name] for name in env} == env
    assert not (directory / "pwned").exists()


def test_a_dry_run_starts_nothing_and_groups_by_host(capsys):
    with mock.patch.object(engine, "address", lambda _, host: host.name):
        command = ["launch.ssh", "--dry_run", "--hosts=h0,h1,h2", "--first_port=7000"]
        command += ["--secure=private", "--work_dir=/data"]
        assert ssh.main([*command, "train.py", "a b"]) == 0
    output = capsys.readouterr().out
    assert re.findall(r"^# (\S+)$", output, re.M) == ["h1", "h0", "h2"]
    (chief,) = re.findall(r"# chief on h1:7000\n(.*)", output)
    words = shlex.split(chief)
    assert (words[0], words[-3:-1]) == ("ssh", ["--", "h1"])
    assert words[-1].startswith("cd /data && env TF_CONFIG=")
    assert words[-1].endswith(" train.py 'a b'")


def test_the_users_options_come_first():
    line = engine.connect("ssh -p 22 -oConnectTimeout=99", "h0", 7.4)
    assert line[:4] == ("ssh", "-p", "22", "-oConnectTimeout=99")
    assert "-oConnectTimeout=7" in line
    assert line[-2:] == ("--", "h0")


def test_an_alias_of_the_users_configuration(tmp_path):
    config = tmp_path / "config"
    config.write_text("Host gpu\n  HostName 10.1.2.3\n")
    command = f"ssh -F {config}"
    assert engine.address(command, Host("gpu")) == "10.1.2.3"
    assert engine.address(command, Host("me@h0")) == "h0"
    assert engine.address(command, Host("gpu", "10.0.0.9")) == "10.0.0.9"
    assert engine.address("no-such-ssh", Host("me@h0")) == "h0"


def test_an_ipv6_address_has_brackets_once():
    hosts = [Host("h0", "[fd00::1]"), Host("h1", "fd00::2"), Host("h2", "h2.net")]
    assert engine.addresses("ssh", hosts) == ["[fd00::1]", "[fd00::2]", "h2.net"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["h0", "me@h0"], "h0 and me@h0 have the same address"),
        (["localhost", "h1"], "localhost has the address localhost"),
    ],
)
def test_addresses_at_which_no_other_host_is_reached(names, message):
    with pytest.raises(engine.EngineError, match=message):
        engine.addresses("no-such-ssh", [*map(Host, names)])
