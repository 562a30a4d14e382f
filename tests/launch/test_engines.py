"""The pure parts of the engines: hosts, who goes where, what a host lacks, names."""

import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import jobs
from launch.engines import engine, hosts, preflight, record, ssh
from launch.engines.hosts import Host, HostError
from launch.engines.layout import Layout, assign
from launch.engines.preflight import HostReport
from launch.engines.record import Record, RecordError
from launch.engines.ssh import SshJob
from launch.flags import command_line
from launch.job.job import Job
from launch.job.plan import Program, Remote, plan
from launch.remote import channel
from launch.secure import mode
from tf_config import Cluster, Task

from ..support.deadline import DEADLINE


def parse_file(text):
    return hosts.parse_file(text, "h.txt")


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (hosts.parse_list, "", "--hosts has '': write a host"),
        (hosts.parse_list, "h0,,h1", "--hosts has ''"),
        (hosts.parse_list, "-oProxyCommand=evil", "--hosts has '-oProxyCommand=evil'"),
        (hosts.parse_list, "h0,a b", "--hosts has 'a b'"),
        (hosts.parse_list, "h0,h1,h0", "names the host 'h0' twice"),
        (hosts.parse_list, "$(id)", "--hosts has '$(id)'"),
        (parse_file, "# none\n\n", "h.txt names no host"),
        (parse_file, "h0\nh1 slots=2", "h.txt, line 2 has 'slots=2': after the host"),
        (parse_file, "h0 link=fast", "line 1 has 'link=fast': it is a number"),
        (parse_file, "h0 link=0", "link=0"),
        (parse_file, "h0 link=nan", "link=nan"),
        (parse_file, "h0 address=", "line 1 has 'address='"),
        (parse_file, "h0 address=a address=b", "line 1 has 'address=b'"),
        (parse_file, "h0 address=-x", "h.txt has '-x'"),
        (parse_file, "h0\nh0", "twice"),
    ],
)
def test_malformed_hosts(parse, text, message):
    with pytest.raises(HostError, match=re.escape(message)):
        parse(text)


def tasks(**counts):
    return [Task(job, i) for job, count in counts.items() for i in range(count)]


many = st.integers(0, 9)


@given(many, many, st.integers(0, 1), st.lists(st.integers(0, 3), min_size=1))
def test_ps_share_no_host_as_long_as_there_are_enough(num_ps, workers, chief, links):
    everyone = tasks(ps=num_ps, worker=workers, chief=chief)
    where = assign(everyone, links)
    assert {*where} == {*everyone}
    on = [where[task] for task in tasks(ps=num_ps)]
    assert len({*on}) == min(num_ps, len(links))
    # No host without a ps has a better link than one with a ps.
    if rest := {*range(len(links))} - {*on}:
        assert not on or max(links[each] for each in rest) <= min(
            links[each] for each in on
        )
    busy = [[*where.values()].count(host) for host in range(len(links))]
    assert max(busy) - min(busy) <= 1


@given(many)
def test_equal_hosts_are_taken_in_their_order(num_ps):
    where = assign(tasks(ps=num_ps), [0.0] * 3)
    assert [where[task] for task in tasks(ps=num_ps)] == [i % 3 for i in range(num_ps)]


def test_a_layout_makes_a_cluster_of_the_ports_of_each_host():
    there = [Host("a"), Host("b"), Host("c")]
    counts = {"chief": 1, "worker": 1}
    layout = Layout.of(there, ["10.0.0.1", "10.0.0.2", "10.0.0.3"], counts)
    assert layout.used == [0, 1]
    cluster = layout.cluster({0: [7, 8], 1: [9]}, mode.PRIVATE)
    assert cluster.as_dict() == {"chief": ["10.0.0.2:9"], "worker": ["10.0.0.1:7"]}


GOOD = HostReport(versions={"Python": "3.11", "tensorflow": "2.21.0"}, ports=(1, 2))


@pytest.mark.parametrize(
    ("versions", "about", "problem"),
    [
        ({}, {"problems": ("has no script /a",)}, "h2 has no script /a"),
        ({"Python": "3.12"}, {}, "h2 has Python 3.12, but h0 has Python 3.11: install"),
        ({"tensorflow": "2.20.0"}, {}, "h2 has tensorflow 2.20.0, but h0 has tensorf"),
        ({"tensorflow": ""}, {}, "h2 has no tensorflow, but h0 has tensorflow 2.21.0"),
        ({}, {"lacks": ("tfdist",)}, "h2 has no tfdist for its Python"),
    ],
)
def test_what_a_host_lacks(versions, about, problem):
    found = {name: v for name, v in {**GOOD.versions, **versions}.items() if v}
    report = HostReport(versions=found, ports=(1,), **about)
    reports = {"h0": GOOD, "h1": GOOD, "h2": report}
    (found,) = preflight.problems(reports, ["h2"])
    assert found.startswith(problem)
    assert preflight.problems({"h0": GOOD, "h1": GOOD}, ["h0"]) == []
    assert preflight.problems({"h0": GOOD}, ["h0"], ["h0 is busy"]) == ["h0 is busy"]


def test_a_host_without_a_server_needs_no_tfdist():
    report = HostReport(versions=GOOD.versions, ports=(1,), lacks=("tfdist",))
    assert preflight.problems({"h0": report}, []) == []


SILENT = HostReport(("cannot be reached: no route",))


def job_on(min_workers, **where):
    """A job whose tasks are on the named hosts."""
    cluster = Cluster.from_hosts(chief="a:1", ps="a:2", worker="a:3,a:4,a:5")
    plans = [
        replace(
            each, remote=Remote(where[each.task.job + str(each.task.index)], (), "/")
        )
        for each in plan(cluster, Program("train.py"))
    ]
    return Job("coordinator", tuple(plans), "logs", min_workers=min_workers)


@pytest.mark.parametrize(
    ("min_workers", "silent", "is_supposed"),
    [
        (2, ["h2"], True),
        (1, ["h2"], True),
        # Both workers that are left would be needed, all three by default.
        (3, ["h2"], False),
        (None, ["h2"], False),
        # The ps and the chief cannot be done without.
        (1, ["h0"], False),
        (1, ["h0", "h2"], False),
        (1, ["h1", "h2"], True),
        (2, ["h1", "h2"], False),
    ],
)
def test_a_host_that_can_be_spared_is_supposed_to_be_like_the_others(
    min_workers, silent, is_supposed
):
    where = {"chief0": "h0", "ps0": "h0", "worker0": "h0", "worker1": "h1"}
    job = job_on(min_workers, **where, worker2="h2")
    reports = {host: SILENT if host in silent else GOOD for host in ("h0", "h1", "h2")}
    ports = dict.fromkeys(reports, [7, 8, 9])
    found, absent = preflight.without_absent(reports, ports, job)
    if not is_supposed:
        assert (found, absent) == (reports, {})
        return
    assert absent == dict.fromkeys(silent, "cannot be reached: no route")
    assert preflight.problems(found, list(reports)) == []
    assert {found[host].ports for host in silent} == {(7, 8, 9)}
    assert found["h0"] is GOOD


def test_hosts_that_the_job_can_do_without_are_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(preflight, "_PATIENCE", 0.5)
    asked = {
        **{"python": sys.executable, "cwd": os.getcwd(), "script": None, "env": {}},
        **{"packages": [], "modules": [], "ports": [], "addresses": []},
        "is_closed": False,
    }
    silent = ("sh", "-c", "exec sleep 600")
    where = dict.fromkeys(["chief0", "ps0", "worker0", "worker1"], "h0")
    found, absent = preflight.ask(
        job_on(1, **where, worker2="h1"),
        {"h0": ("sh", "-c"), "h1": silent},
        dict.fromkeys(["h0", "h1"], asked),
        600.0,
    )
    assert found["h0"].versions
    assert found["h1"].versions == found["h0"].versions
    ((host, problem),) = absent.items()
    assert host == "h1"
    assert re.fullmatch(r"did not answer within \S+ s after enough others .*", problem)


def test_a_host_that_answers_is_never_spared():
    where = dict.fromkeys(["chief0", "ps0", "worker0", "worker1"], "h0")
    job = job_on(1, **where, worker2="h1")
    wrong = HostReport(("has no script /a",), versions=GOOD.versions)
    reports = {"h0": GOOD, "h1": wrong}
    assert preflight.without_absent(reports, {"h1": [1]}, job) == (reports, {})


@given(st.text())
def test_whatever_a_host_answers_is_read_or_rejected(text):
    with pytest.raises(ValueError, match=r".*"):
        HostReport.from_json(text)


def test_ports_that_a_host_gives_to_connections_are_left_out():
    answer = {
        **{"python": "3.11.2", "versions": {"keras": None}, "lacks": []},
        **{"problems": [], "ports": [10, 20, 30], "ephemeral": [15, 25]},
        **{"proxies": {}, "secure": {}, "gpus": 0, "origins": {}},
    }
    report = HostReport.from_json(f"Welcome!\n{json.dumps(answer)}\n")
    assert report.ports == (10, 30)
    assert report.versions == {"Python": "3.11"}


@given(st.text() | st.text("!'\"\\$` ()", max_size=6))
def test_the_command_on_a_host_survives_its_shell(python):
    if "\0" in python or python != python.encode(errors="replace").decode():
        return
    line = channel.command(channel.AGENT, python)
    shown = subprocess.run(
        ["sh", "-c", line.replace("exec", "printf '%s\\0'", 1)],
        capture_output=True,
        timeout=DEADLINE,
    )
    name, *flags, program = shown.stdout.decode().split("\0")[:-1]
    assert (name, flags) == (python, ["-I", "-c"])
    compile(program, "boot", "exec")


def a_record(name="job"):
    tasks = {"chief": ("h0", "10.0.0.1:7", "/logs/chief.log")}
    return Record(name, "ssh", "/logs", "{}", tasks, 10.0)


def test_a_record_is_alive_as_long_as_it_is_held():
    job = a_record()
    assert not job.is_alive
    with job.held():
        assert job.is_alive
        found = record.load("job")
        assert (found.pid, found.tasks["chief"][0]) == (os.getpid(), "h0")
        with (
            pytest.raises(RecordError),
            a_record().held(),
        ):
            pass
    assert not job.is_alive
    assert job.end == {}
    with job.held():
        job.write_end(3)
    assert job.end == {"code": 3}
    with job.held():
        assert job.end == {}  # That of the job before it.


def test_a_record_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with (
        pytest.raises(RecordError, match="cannot write .* set XDG_STATE_HOME to a"),
        a_record().held(),
    ):
        pass
    assert not a_record().is_alive


def test_an_heir_holds_a_record():
    with a_record().held() as lock:
        heir = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]
        )
    assert a_record().is_alive
    heir.communicate(b"\n", timeout=DEADLINE)
    assert not a_record().is_alive


def test_a_signal_goes_to_the_very_process():
    with a_record().held():
        job = record.load("job")
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        job.signal(signal.SIGUSR1)
        assert heard == [1]
        # Another process has got the number in the meantime.
        Record(**{**vars(job), "pid_since": job.pid_since - 1}).signal(signal.SIGUSR1)
        assert heard == [1]
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a/b", "..", "a b", "a" * 53, "a\n", "é"]
)
def test_a_name_that_no_job_can_have(name):
    with pytest.raises(RecordError):
        record.check_name(name)


@given(st.text())
def test_every_script_gives_a_name(script):
    assert record.check_name(record.new_name(script))


def test_a_name_that_is_given_is_taken():
    assert record.name_of("mine", "train.py") == "mine"
    assert record.name_of(None, "train.py").startswith("train-")
    with pytest.raises(RecordError):
        record.name_of("", "train.py")


def test_a_damaged_record_is_not_an_unknown_job():
    with a_record("mine").held():
        pass
    (record.directory() / "mine" / "job.json").write_bytes(b"\xff{")
    with pytest.raises(
        RecordError, match="the record of job mine is damaged: .*/mine;"
    ):
        record.load("mine")


def test_an_unknown_job_is_told_of_the_last_ones():
    with pytest.raises(RecordError):
        record.load("x")
    for index in range(12):
        with a_record(f"job-{index:02}").held():
            pass
    with pytest.raises(RecordError, match="no job named 'x'") as error:
        record.load("x")
    assert str(error.value).count("job-") == 10
    assert "jobs list shows all" in str(error.value)


def test_a_job_is_not_announced_while_another_has_its_name(capsys, tmp_path):
    job = SshJob(mock.Mock(log_dir=str(tmp_path)), mock.Mock())
    with a_record("mine").held(), pytest.raises(RecordError):
        ssh.run(job, a_record("mine"))
    assert capsys.readouterr().err == ""


def test_ctrl_c_before_there_is_a_job_is_no_stack(capsys):
    with pytest.raises(SystemExit, match="130"):
        command_line.run(mock.Mock(side_effect=KeyboardInterrupt), "launch.ssh")
    assert capsys.readouterr().err == "launch.ssh: interrupted\n"


def test_a_job_of_another_machine():
    with a_record().held():
        path = a_record().path / "job.json"
        value = json.loads(path.read_text())
        path.write_text(json.dumps({**value, "machine": "elsewhere"}))
        with pytest.raises(RecordError, match="was started on elsewhere, and this is"):
            record.load("job")


def test_old_records_are_forgotten():
    for index in range(60):
        with a_record(f"job-{index}").held():
            pass
    record.tidy()
    assert len(record.everything()) == 50


@pytest.mark.parametrize("name", engine.ENGINES)
def test_an_engine_has_every_verb(name):
    loaded = engine.load(name)
    verbs = [each for each in vars(engine.Engine) if not each.startswith("_")]
    assert len(verbs) == 7
    assert all(callable(getattr(loaded, verb)) for verb in verbs)


def test_a_job_in_the_foreground_is_followed_by_all_its_logs(tmp_path):
    logs = {"chief": tmp_path / "chief.log", "ps:0": tmp_path / "ps-0.log"}
    logs["chief"].write_text("one\ntwo\nend")
    logs["ps:0"].write_text("ready\n")
    tasks = {name: ("h0", "10.0.0.1:7", str(log)) for name, log in logs.items()}
    record = replace(a_record(), tasks=tasks)
    assert list(engine.load("ssh").follow(record)) == [
        "[chief] one",
        "[chief] two",
        "[ps:0]  ready",
        "[chief] end",
    ]
    # What the launcher has shown is all in its file.
    (tmp_path / "launch.log").write_text("[ps:0] ready\n")
    record = replace(record, output=str(tmp_path / "launch.log"))
    assert list(engine.load("ssh").follow(record)) == ["[ps:0] ready"]


def test_a_long_output_is_followed_a_line_at_a_time(tmp_path):
    lines = [f"{number:1000}" for number in range(2000)]
    output = tmp_path / "launch.log"
    output.write_text("\n".join(lines))
    tracemalloc.start()
    try:
        followed = engine.load("ssh").follow(replace(a_record(), output=str(output)))
        assert all(a == b for a, b in zip(followed, lines, strict=True))
        assert tracemalloc.get_traced_memory()[1] < 2**19
    finally:
        tracemalloc.stop()


def test_an_unknown_engine():
    with pytest.raises(engine.EngineError, match="no engine 'mpi'; choose one of ssh"):
        engine.load("mpi")


def test_the_commands_of_jobs(capsys, tmp_path):
    assert jobs.main(["jobs", "list"]) == 0
    with a_record().held():
        assert jobs.main(["jobs", "status", "job"]) == 0
        assert jobs.main(["jobs", "list"]) == 0
    a_record().write_end(3)
    assert jobs.main(["jobs", "status", "job"]) == 0
    assert jobs.main(["jobs", "follow", "job"]) == 3
    assert jobs.main(["jobs", "cancel", "job"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^job on ssh since \S+: starting$", output, re.M)
    assert "  chief  on h0  10.0.0.1:7  no log yet" in output
    assert output.endswith("job: ended with 3\n")
    log = tmp_path / "chief.log"
    log.write_text("begun\n")
    tasks = {"chief": ("h0", "10.0.0.1:7", str(log))}
    with replace(a_record(), tasks=tasks).held():
        jobs.main(["jobs", "status", "job"])
    assert f"10.0.0.1:7  {log}" in capsys.readouterr().out
    with pytest.raises(engine.EngineError, match="has no task 'ps:0'; it has chief"):
        jobs.main(["jobs", "logs", "job", "ps:0"])
