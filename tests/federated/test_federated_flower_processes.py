"""The experiment of `examples/federated_flower/` on Flower's own processes: see `make flower`.

It runs the commands of docs/federated.md: SuperLink, SuperNodes and `flwr run`, with TLS.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ..support.processes import still_running

pytest.importorskip("flwr", reason="Flower has an environment of its own: make flower")
pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "federated.md").read_text()
DEADLINE = 400  # seconds: a SuperNode imports TensorFlow anew for every message.
CONFIGURATION = """
[superlink.here]
address = "127.0.0.1:{port}"
insecure = true

[superlink.clients]
address = "localhost:{port}"
root-certificates = "{folder}/ca.crt"
"""


class Flower:
    """Runs Flower's commands in a folder, on ports of its own."""

    def __init__(self, folder):
        self._folder = folder
        self._ports = {each: str(free_port()) for each in ("8000", "9094", "9095")}
        (folder / "config.toml").write_text(
            CONFIGURATION.format(port=self._ports["8000"], folder=folder)
        )
        (folder / "examples").symlink_to(ROOT / "examples")
        self._started = []
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def words(self, command):
        for port, mine in self._ports.items():
            command = command.replace(port, mine)
        return shlex.split(command)

    def start(self, command):
        log = (self._folder / f"{len(self._started)}.log").open("w")
        self._started.append(
            subprocess.Popen(
                self.words(command),
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        )

    def run(self, command):
        done = subprocess.run(
            self.words(command),
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        logs = [each.read_text()[-4000:] for each in self._folder.glob("*.log")]
        assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
        return done.stdout

    def wait_until_it_listens(self):
        port, end = int(self._ports["8000"]), time.monotonic() + DEADLINE
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < end, (self._folder / "0.log").read_text()
            time.sleep(0.2)

    def stop(self):
        found = [psutil.Process(each.pid) for each in self._started]
        found += [child for each in found for child in each.children(recursive=True)]
        for each in reversed(self._started):  # Clients leave before the server ends.
            each.terminate()
            each.wait(DEADLINE)
        for each in still_running(found, 30):
            each.kill()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def running(tmp_path):
    flower = Flower(tmp_path)
    yield flower
    flower.stop()


def commands(title):
    """The commands of the page behind a paragraph that begins so."""
    block = re.search(rf"^\*\*{title}\*\*.*?```sh\n(.*?)```", PAGE, re.M | re.S)[1]
    return block.replace("\\\n", " ").splitlines()


def accuracies(output):
    return [float(each) for each in re.findall(r"'val_accuracy': ([\d.]+),", output)]


def test_the_simulation_of_flower_has_the_rounds_of_ours(running):
    superlink, run = commands("Flower's simulation")
    running.start(superlink)
    running.wait_until_it_listens()
    found = accuracies(running.run(run + " --run-config='num-server-rounds=2'"))
    ours = running.run(f"{sys.executable} examples/federated_flower/experiment.py")
    ours = [float(each) for each in re.findall(r"val_accuracy ([\d.]+)", ours)]
    assert found == pytest.approx(ours[:2], abs=1e-3)


def test_clients_with_certificates_train(running, tmp_path):
    make_certificates(tmp_path)
    superlink, *nodes, run = commands("Clients on devices")
    assert len(nodes) == 2
    running.start(superlink)
    running.wait_until_it_listens()
    for each in nodes:
        running.start(each)
    run = run.replace("start-with=2", "start-with=2 num-server-rounds=1")
    output = running.run(run)
    assert "'clients': 2, 'answered': 2, 'counts': 1" in output
    (accuracy,) = accuracies(output)
    assert accuracy > 0.1


def make_certificates(folder):
    subprocess.run(
        """
        set -e
        new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        $new -x509 -keyout ca.key -out ca.crt -days 1 -subj /CN=ca
        $new -keyout server.key -out server.csr -subj /CN=localhost
        echo subjectAltName=DNS:localhost,IP:127.0.0.1 > names
        openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial \
            -out server.pem -days 1 -extfile names
        """,
        shell=True,
        cwd=folder,
        check=True,
        capture_output=True,
    )
