"""The doctor: what it is shown, what it decides, and what it prints."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import psutil
import pytest

from launch import doctor
from launch.diagnose import running
from launch.diagnose.agreement import between_tasks
from launch.diagnose.definition import STRATEGIES, from_hosts, from_text, roles
from launch.diagnose.diagnosis import each_task
from launch.diagnose.finding import Level
from launch.diagnose.probe_result import Peer, ProbeOutcome, ProbeResult
from launch.engines.record import Record
from launch.flags import command_line
from tf_config import Cluster, Task, TFConfig

from ..launch_programs import fake_servers
from ..launch_programs.launcher import DEADLINE, SLEEP, Launcher, marked
from ..support import jobs

GOOD = {
    "cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]},
    "task": {"type": "chief", "index": 0},
}


def changed(**jobs):
    return json.dumps({**GOOD, "cluster": {**GOOD["cluster"], **jobs}})


def wrong(findings):
    return [each for each in findings if each.level is not Level.OK]


@pytest.mark.parametrize(
    ("text", "found", "tasks"),
    [
        ("{", "TF_CONFIG is not JSON", 0),
        ("[1]", "TF_CONFIG is an object", 0),
        ('{"cluster": 7, "task": {}}', "TF_CONFIG", 0),
        ("[" * 100_000, "TF_CONFIG cannot be read", 0),
        (changed(chief=[]), "parameter servers and no chief", 3),
        (changed(worker=["c:1", "b:1"]), "ps:0 and worker:1 have the same address", 4),
        (changed(worker=["c", "d:1", 5]), "has no port", 3),
        (changed(chief=["a:1", "e:1"]), "a cluster has one chief", 5),
        (changed(Worker=["e:1"]), "unknown job 'Worker'", 5),
    ],
)
def test_what_is_wrong_is_said_and_the_rest_is_probed_all_the_same(text, found, tasks):
    definition = from_text(text)
    (finding,) = definition.findings
    assert found in finding.found
    assert finding.level is Level.WRONG
    assert finding.advice
    assert len(definition.addresses) == tasks


def test_an_evaluator_inside_of_the_cluster():
    addresses = {"chief:0": "a:1", "ps:0": "b:1", "worker:0": "c:1", "worker:1": "d:1"}
    assert from_text(changed()).findings == ()
    definition = from_text(changed(evaluator=["e:1"]))
    (finding,) = definition.findings
    assert finding.subject == "evaluator:0"
    assert "wait forever" in finding.found
    assert 'remove "evaluator" from "cluster"' in finding.advice
    assert definition.addresses == from_text(changed()).addresses == addresses


def test_the_flags_of_a_task():
    hosts = {"chief": "a:1", "ps": "b:1", "worker": "c:1", "evaluator": "e:1"}
    assert from_hosts(hosts, "chief").findings == ()
    (finding,) = from_hosts(hosts, "ps", 1).findings
    assert "ps:1 is not in the cluster" in finding.found
    (finding,) = from_hosts({**hosts, "chief": ""}).findings
    assert "no chief" in finding.found


@pytest.mark.parametrize(
    ("jobs", "fits"),
    [
        ("chief ps worker", {"parameter_server"}),
        ("chief worker", {"multi_worker", "ring"}),
        ("worker", {"multi_worker"}),
        ("chief", set()),
        ("", set()),
    ],
)
def test_roles_that_fit_the_strategy(jobs, fits):
    hosts = {job: f"{job}:1" for job in jobs.split()}
    findings = {each: roles(from_hosts(hosts), each) for each in STRATEGIES}
    assert {name for name, each in findings.items() if each.level is Level.OK} == fits
    for name, finding in findings.items():
        assert (name in fits) == (finding.advice == "")


def report(task, *, ip="10.0.0.1", is_here=False, port=1, **about):
    peer = Peer(**{"task": task, "version": "2.21.0", "clock": 0.0, **about})
    address = f"{ip}:{port}"
    return ProbeResult(
        address, ProbeOutcome.TENSORFLOW, ip=ip, is_here=is_here, peer=peer
    )


DIFFER = "the TensorFlow versions differ: 2.16.2 on ps:0; 2.21.0 on worker:0"


@pytest.mark.parametrize(
    ("ps", "worker", "found"),
    [
        ({"version": "2.16.2"}, {"port": 2}, DIFFER),
        ({"version": None}, None, "ps:0 does not report its TensorFlow version"),
        ({"clock": -2.5}, {"clock": 1.0, "port": 2}, "of worker:0 is 3.5 s ahead of"),
        ({"clock": -2.5}, None, "the clock of this machine is 2.5 s ahead of"),
        ({"clock": None, "silence": "INTERNAL"}, None, "report its clock (INTERNAL)"),
        ({}, {}, "ps:0 and worker:0 have the same address, 10.0.0.1 port 1"),
        ({"ip": "127.0.1.1", "is_here": True}, {}, "worker:0 is on another machine"),
        # A slow network is no wrong clock.
        ({"clock": 1.5, "uncertainty": 1.0}, None, ""),
        ({"ip": "127.0.0.1", "is_here": True}, {"is_here": True}, ""),
    ],
)
def test_what_does_not_fit_between_tasks(ps, worker, found):
    about = {"ps:0": ps, "worker:0": worker}
    reports = {t: report(t, **each) for t, each in about.items() if each is not None}
    findings = wrong(between_tasks(reports))
    assert len(findings) == bool(found)
    assert all(found in each.found and each.advice for each in findings)
    assert between_tasks({}) == []


MORE = '{"cluster": {"ps": ["10.0.0.1:1"], "worker": ["x:1"]}}'


@pytest.mark.parametrize(
    ("text", "level", "found"),
    [
        (None, Level.UNKNOWN, "does not report the addresses"),
        ("nonsense", Level.UNKNOWN, "does not report the addresses"),
        ('{"cluster": {"ps": 7}}', Level.UNKNOWN, "does not report the addresses"),
        ('{"cluster": {"ps": ["10.0.0.1:1"]}}', Level.OK, "the same addresses"),
        (MORE, Level.WRONG, "worker:0 is x:1; here it is not in the cluster"),
    ],
)
def test_the_definition_of_a_task(text, level, found):
    task, definition = each_task({"ps:0": report("ps:0", tf_config=text)})
    assert task.level is Level.OK
    assert definition.level is level
    assert found in definition.found


@pytest.fixture
def run(capsys, monkeypatch):
    for name in ("TF_CONFIG", "grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["doctor", *args])
        with pytest.raises(SystemExit) as ended:
            command_line.run(doctor.main, "launch.doctor")
        output, errors = capsys.readouterr()
        return ended.value.code, output, errors

    return run


@pytest.fixture
def healthy():
    """A cluster of fake servers; its TF_CONFIG."""
    cluster = {"chief": [], "ps": [], "worker": []}
    told = []
    with ExitStack() as stack:
        for job, addresses in cluster.items():
            server = fake_servers.tensorflow_server(
                f"{job}:0", tf_config=lambda: told[0]
            )
            addresses.append(stack.enter_context(server))
        task = {"type": "chief", "index": 0}
        told.append(json.dumps({"cluster": cluster, "task": task}))
        yield told[0]


def test_all_is_well(run, healthy, monkeypatch):
    status, output, errors = run(
        f"--tf_config={healthy}", "--strategy=parameter_server"
    )
    assert (status, errors) == (0, "")
    assert "wrong" not in output
    assert "TensorFlow 9.8.7 on chief:0, ps:0, worker:0" in output
    monkeypatch.setenv("TF_CONFIG", healthy)
    status, output, _ = run("--json")
    assert status == 0
    told = json.loads(output)
    assert told["ok"] is True
    assert {each["level"] for each in told["findings"]} == {"ok"}


def test_a_proxy_between_the_tasks(run, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps(GOOD))
    monkeypatch.setenv("http_proxy", "http://p:3128")
    monkeypatch.setenv("no_proxy", "a,b")
    status, output, _ = run("--dry_run", "--json")
    assert status == 1
    (finding,) = json.loads(output)["findings"]
    assert finding["found"].endswith(
        "TensorFlow would connect to c, d through a proxy, and hang"
    )
    assert finding["advice"].startswith("export no_grpc_proxy=a,b,c,d on every")


def test_something_is_wrong(run, tmp_path):
    file = tmp_path / "tf_config.json"
    with fake_servers.talking(b"SSH-2.0-[bold]x\r\n") as address:
        file.write_text(json.dumps({"cluster": {"worker": [address]}}))
        status, output, errors = run(f"--tf_config={file}", "--json")
        flags = (f"--worker_hosts={address}", "--strategy=ring")
        table_status, table, _ = run(*flags)
    assert (status, errors) == (1, "")
    told = json.loads(output)
    assert told["ok"] is False
    no_task, stranger = told["findings"]
    assert 'has no "task"' in no_task["found"]
    assert (stranger["subject"], stranger["check"]) == ("worker:0", "server")
    assert table_status == 1
    assert "SSH: b'SSH-2.0-[bold]x" in table
    assert "ring needs chief and worker; the cluster has worker" in table
    assert "-> add a chief" in table


def test_dry_run_connects_to_nothing(run, monkeypatch):
    monkeypatch.setattr(doctor, "_probe", None)
    status, output, _ = run("--dry_run", "--worker_hosts=no-such-host.invalid:1")
    assert status == 0
    assert "it is valid" in output
    status, output, _ = run("--dry_run", "--worker_hosts=no-such-host.invalid")
    assert status == 1
    assert "has no port" in output


def test_the_job_that_was_started_from_here(run, monkeypatch, tmp_path):
    monkeypatch.setattr(running, "clusters", list)
    text = changed(worker=["c:1", "b:1"])
    one, other = (Record(name, "ssh", "/", text, {}, 1.0) for name in ("one", "other"))
    with one.held():
        for args in ([], ["--job=one"]):
            status, output, _ = run("--dry_run", *args)
            assert status == 1
            assert "have the same address" in output
        with other.held():
            status, _, errors = run("--dry_run")
        assert "2 clusters are running here: choose one\n  --job=one  since " in errors
    assert "no cluster found" in run("--dry_run")[2]
    assert run("--dry_run", "--job=one")[0] == 1


def test_a_job_that_is_closed_to_other_machines(run, monkeypatch, tmp_path):
    monkeypatch.setattr(running, "clusters", list)
    cluster = {
        "chief": ["127.0.0.1:1"],
        "ps": ["127.0.0.1:2"],
        "worker": ["127.0.0.1:3"],
    }
    text = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    tasks = {
        "chief": ("h1", "", ""),
        "ps:0": ("h0", "", ""),
        "worker:0": ("h1", "", ""),
    }
    with Record("one", "ssh", "/", text, tasks, 1.0).held():
        status, _, errors = run("--dry_run", "--job=one")
        assert status == 2
        assert "can be reached from its hosts only (h1, h0): run python -m" in errors
        # This machine is one of them.
        own = json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})
        here = running.Running(os.getpid(), own)
        monkeypatch.setattr(running, "clusters", lambda: [here])
        monkeypatch.setattr(running, "environ_of", lambda pid: {"TF_CONFIG": own})
        status, output, _ = run("--dry_run", "--job=one")
        assert status == 0
        assert "it is valid" in output


def test_a_job_in_pods_is_looked_at_from_a_pod(run, monkeypatch, tmp_path):
    text = '{"cluster": {"ps": ["mine-ps-0.mine:2222"], "chief": ["c.mine:2222"]}}'
    tasks = {"ps:0": ("mine-ps-0", "", ""), "chief": ("c", "", "")}
    with Record("mine", "kubernetes", "/", text, tasks, 1.0).held():
        status, _, errors = run("--dry_run", "--job=mine")
    assert status == 2
    assert "kubectl exec mine-ps-0 -- python -m launch.doctor" in errors


def test_clusters_that_run_here(run, monkeypatch, tmp_path):
    text = '{"cluster": {"ps": ["a:1", "b:1"], "chief": ["c:1"]}}'
    found = [running.Running(11, text), running.Running(12, "{}")]
    monkeypatch.setattr(running, "clusters", lambda: found)
    status, _, errors = run()
    assert status == 2
    assert "2 clusters are running here: choose one" in errors
    assert "--pid=11  2 ps, 1 chief: " in errors
    assert "--pid=12  a TF_CONFIG that cannot be read: " in errors
    monkeypatch.setattr(running, "clusters", lambda: [])
    status, _, errors = run()
    assert "no cluster found: TF_CONFIG is not set" in errors
    monkeypatch.setattr(running, "clusters", lambda: found[:1])
    environs = {11: {"TF_CONFIG": "{"}, 12: {}}
    monkeypatch.setattr(running, "environ_of", environs.get)
    monkeypatch.setattr(psutil, "pid_exists", environs.__contains__)
    status, output, _ = run()
    assert status == 1
    assert "TF_CONFIG is not JSON" in output
    status, _, errors = run("--pid=12")
    assert status == 2
    assert "process 12 has no TF_CONFIG, or you may not read it" in errors
    status, _, errors = run("--pid=13")
    assert status == 2
    assert "no process 13" in errors


def test_processes_of_one_cluster_are_one():
    cluster = Cluster.from_hosts(worker="a:7,b:7")
    processes = []
    try:
        for index in range(2):
            text = TFConfig(cluster, Task("worker", index)).to_json()
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", SLEEP],
                    env={**os.environ, "TF_CONFIG": text},
                    stdout=subprocess.PIPE,
                )
            )
            processes[-1].stdout.readline()
        pids = [each.pid for each in processes]
        found = [each for each in running.clusters() if each.pid in pids]
        assert [each.pid for each in found] == pids[:1]
        assert TFConfig.from_json(found[0].tf_config).cluster == cluster
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=DEADLINE)


@pytest.mark.namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are for root")
def test_a_job_with_a_network_of_its_own_is_looked_at_from_inside(tmp_path):
    with Launcher(tmp_path) as launcher:
        process = launcher.start("--network=private", launcher.script(SLEEP))
        launcher.wait_for_log("chief")
        pid = next(each for each in marked(launcher.mark) if running.tf_config_of(each))
        command = ("-m", "launch.doctor", f"--pid={pid}", "--timeout=5")
        done = jobs.run(*command, status=1, COLUMNS="200")
        process.terminate()
        process.communicate(timeout=DEADLINE)
    assert done.stderr == ""
    # The stand-ins listen, and are no servers of TensorFlow's.
    assert done.stdout.count("accepts connections but does not respond") == 4
    assert done.stdout.count("nothing listens") == 1
