import json
import os
import socket
import subprocess
import sys

import pytest


def serve(tf_config: object, timeout: float = 60) -> subprocess.CompletedProcess:
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


def test_a_chief_is_no_server():
    done = serve(config("chief"))
    assert done.returncode == 2
    assert "a server is a ps or a worker; this task is chief:0" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_malformed_tf_config_is_one_message():
    done = serve("{")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "TF_CONFIG" in done.stderr


@pytest.mark.cluster
def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = serve(config("ps", ps=address))
    assert done.returncode == 2
    assert f"ps:0 cannot serve on {address}" in done.stderr
    assert "another process" in done.stderr
    assert "Traceback" not in done.stderr
