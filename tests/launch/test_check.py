"""`launch.check` and `launch.env` of docs/troubleshooting.md: what a job would find."""

import json
import shlex
import sys
from dataclasses import replace

import pytest

from launch import check, env, local
from launch.diagnose.finding import Level
from launch.engines.machine import OURS, findings
from launch.engines.preflight import HostReport
from launch.flags import command_line
from launch.remote import keras_backend
from tf_config import contract

CLOSED = {"stunnel": "/bin/stunnel", "version": "5.74", "open": "", "has_ipv6": True}
WELL = HostReport(
    versions={"Python": "3.11", "tensorflow": "2.21.0", "keras": "3.15.1"},
    ports=(1, 2),
    secure=CLOSED,
    visible_gpus=0,
    origins={name: f"/site/{name}/__init__.py" for name in OURS},
)
LEAST = {"tensorflow": "2.16", "keras": "3.12", "absl-py": "9"}


def with_keras(version):
    return {"versions": {**WELL.versions, "keras": version}}


def wrong(*reports):
    """What is wrong, in words with their advice."""
    named = {f"h{i}": each for i, each in enumerate(reports)}
    found = findings(named, LEAST)
    assert found
    return [f"{e.subject}: {e.found}; {e.advice}" for e in found if e.level != Level.OK]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"problems": ("cannot import it: no",)}, "h0 cannot import it: no"),
        ({"lacks": ("keras",)}, "there is no keras; install tfdist"),
        (with_keras("3.9.2"), "received 3.9.2; pip install 'keras>=3.12'"),
        ({"origins": {**WELL.origins, "launch": "/ros/a.py"}}, "finds /ros/a.py"),
        ({"origins": {**WELL.origins, "tf_config": "/a.py"}}, "called tf_config"),
        ({"gpus": 2}, "uses none of 2 NVIDIA GPUs; install the CUDA"),
        ({"gpus": 2, "visible_gpus": 2}, ""),
        ({"ports": ()}, "none of the ports tried is free"),
        ({"secure": {**CLOSED, "open": "seccomp(2)"}}, "machines (seccomp(2)"),
        ({"secure": {**CLOSED, "stunnel": ""}}, ""),
    ],
)
def test_what_is_wrong_with_one_machine(changes, words):
    found = wrong(replace(WELL, **changes))
    assert len(found) == bool(words)
    assert words in "".join(found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"secure": {**CLOSED, "stunnel": ""}}, "h1 has no stunnel: apt-get install"),
        (with_keras("3.14"), "h1 has keras 3.14, but h0 has"),
        ({"versions": {}, "problems": ("cannot be reached",)}, "h1 cannot be reached"),
    ],
)
def test_what_is_wrong_between_hosts(changes, words):
    found = wrong(WELL, replace(WELL, **changes))
    assert len(found) == bool(words)
    assert words in "".join(found)


def test_a_backend_is_found_as_keras_finds_it(tmp_path, monkeypatch):
    environ = {"KERAS_HOME": str(tmp_path)}
    assert keras_backend.problem(environ) == ""
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert f"received 'torch' from {tmp_path}/keras.json" in keras_backend.problem(
        environ
    )
    assert not keras_backend.problem({**environ, "KERAS_BACKEND": "tensorflow"})
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(
        command_line.UsageError, match="export KERAS_BACKEND=tensorflow"
    ):
        local.main(["local", "--dry_run", str(tmp_path / "train.py")])


@pytest.mark.parametrize("hosts", [[], ["--hosts=h0,h1"]])
def test_machines_are_looked_at(hosts, tmp_path, monkeypatch, capsys):
    ssh = [
        sys.executable,
        "-c",
        "import os,sys; os.execlp('sh','sh','-c',sys.argv[-1])",
    ]
    # It stands in for TensorFlow, whose import takes seconds.
    (tmp_path / "tensorflow.py").write_text("raise ImportError('no CUDA here')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(contract.TF_CONFIG, "{")
    command = ["check", "--json", f"--ssh={shlex.join(ssh)}", *hosts]
    assert check.main(command) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    told = " ".join(each["found"] for each in found)
    names = ["h0", "h1"] if hosts else ["this machine"]
    for name in names:
        assert f"{name} cannot import TensorFlow: ImportError: no CUDA here" in told
    assert ("TF_CONFIG is not JSON" in told) == ("installed: " in told) == (not hosts)


def test_a_report_to_paste_has_no_secrets(monkeypatch, capsys):
    for name, value in {
        "TF_CONFIG": '{"cluster": {}}',
        "TFDIST_API_KEY": "hidden",
        contract.COMMAND: "train.py --key=hidden",
        "https_proxy": "http://me:hidden@proxy:3128",
        "OF_MINE": "hidden",
    }.items():
        monkeypatch.setenv(name, value)
    assert env.main(["env"]) == 0
    told = capsys.readouterr().out
    assert 'TF_CONFIG={"cluster": {}}' in told
    assert "https_proxy=http://...@proxy:3128" in told
    assert "| tensorflow | " in told
    assert "numpy " in told
    assert "hidden" not in told
