import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from launch.network import ports

from ..support import jobs
from ..support.deadline import DEADLINE, PROGRAM_DEADLINE


def refusal(tf_config: object, **environ: str) -> str:
    """What a server that ends with status 2 says."""
    text = tf_config if isinstance(tf_config, str) else json.dumps(tf_config)
    done = jobs.run("-m", "tfdist.server", status=2, TF_CONFIG=text, **environ)
    assert "Traceback" not in done.stderr
    return done.stderr


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
@pytest.mark.parametrize(
    ("tf_config", "imports", "words"),
    [
        (config("chief"), "", "a server is a ps or a worker; this task is chief:0"),
        ("{", "", "TF_CONFIG"),
        (config("ps"), "json, nothing", "nothing...start the job with --import="),
    ],
)
def test_a_mistake_is_one_message(tf_config, imports, words):
    said = refusal(tf_config, TFDIST_IMPORTS=imports)
    assert re.search(words.replace("...", ".*"), said), said


@pytest.mark.cluster
def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        said = refusal(config("ps", ps=address))
    assert f"ps:0 cannot serve on {address}" in said
    assert "another process" in said


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
