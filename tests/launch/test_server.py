import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from launch.network import ports

from ..support.deadline import DEADLINE, PROGRAM_DEADLINE


def serve(
    tf_config: object, timeout: float = PROGRAM_DEADLINE
) -> subprocess.CompletedProcess:
    text = tf_config if isinstance(tf_config, str) else json.dumps(tf_config)
    return subprocess.run(
        [sys.executable, "-m", "tfdist.server"],
        env={**os.environ, "TF_CONFIG": text, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def config(job: str, ps: str = "127.0.0.1:1") -> dict:
    return {
        "cluster": {
            "chief": ["127.0.0.1:2"],
            "ps": [ps],
            "worker": ["127.0.0.1:3"],
        },
        "task": {"type": job, "index": 0},
    }


@pytest.mark.slow
def test_a_chief_is_not_a_server():
    done = serve(config("chief"))
    assert done.returncode == 2
    assert "a server is a ps or a worker; this task is chief:0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_malformed_tf_config_is_one_message():
    done = serve("{")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "TF_CONFIG" in done.stderr


@pytest.mark.slow
def test_a_module_that_cannot_be_imported_is_one_message(monkeypatch):
    monkeypatch.setenv("TFDIST_IMPORTS", "json, nothing_like_it")
    done = serve(config("ps"))
    assert done.returncode == 2
    assert "TFDIST_IMPORTS names nothing_like_it" in done.stderr
    assert "start the job with --import=" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.cluster
def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = serve(config("ps", ps=address))
    assert done.returncode == 2
    assert f"ps:0 cannot serve on {address}" in done.stderr
    assert "another process" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("is_ignored", [False, True])
def test_ctrl_c_ends_it_unless_that_is_ignored(is_ignored):
    [port] = ports.pick(1)
    handler = signal.SIG_IGN if is_ignored else signal.SIG_DFL
    process = subprocess.Popen(
        [sys.executable, "-m", "tfdist.server"],
        env={
            **os.environ,
            "TF_CONFIG": json.dumps(config("ps", ps=f"127.0.0.1:{port}")),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
    )
    try:
        deadline = time.monotonic() + PROGRAM_DEADLINE
        while not listens(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        if is_ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
        else:
            assert process.wait(timeout=DEADLINE) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
