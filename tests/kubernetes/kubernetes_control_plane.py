"""A real control plane of Kubernetes 1.20 on this machine: etcd and three programs."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from ..launch_programs.launcher import ends_of_logs, wait_for
from ..support.deadline import DEADLINE
from ..support.namespaces import needs_root

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = "k8s-1.20.2.tar.zst"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
BINARIES = Path(os.environ.get("KUBERNETES_TEST_BINARIES") or "not-set")
_TOKEN = "a-token-of-this-test"
_LAUNCHERS_TOKEN = "a-token-of-who-launches"
LAUNCHERS_USER = "ann"
"""The user who types the launcher's command; the role of examples/ names her."""
_CONTROLLERS = (
    *("job", "endpoint", "garbagecollector", "nodelifecycle", "podgc", "namespace"),
    *("resourcequota", "serviceaccount", "serviceaccount-token"),
)


def _has_client():
    try:
        import kubernetes  # noqa: F401
    except ImportError:
        return False
    return True


needs_kubernetes = [
    pytest.mark.engine,
    pytest.mark.namespaces,
    needs_root,
    pytest.mark.skipif(
        not all(map(shutil.which, ("etcd", "kubectl", "openssl", "zstd"))),
        reason="apt-get install etcd-server kubernetes-client openssl zstd",
    ),
    pytest.mark.skipif(
        not (BINARIES / ARCHIVE).exists(),
        reason=f"there is no {ARCHIVE}: set KUBERNETES_TEST_BINARIES to its directory",
    ),
    pytest.mark.skipif(
        not _has_client(), reason="there is no client: pip install '.[kubernetes]'"
    ),
]


def free_ports(count):
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


class Api:
    """The API server, for the tests and their kubelet."""

    def __init__(self, url, token, authority):
        import urllib3

        self._url = url
        self._pool = urllib3.PoolManager(
            maxsize=8,
            ca_certs=authority,
            headers={"Authorization": f"Bearer {token}"},
            retries=False,
        )

    def __call__(self, method, path, body=None, kind="application/json", check=True):
        """Returns the decoded answer, {} if there is none; raises OSError on errors."""
        answer = self._pool.request(
            method,
            self._url + path,
            body=None if body is None else json.dumps(body),
            headers={**self._pool.headers, "Content-Type": kind},
            timeout=DEADLINE,
        )
        if check and answer.status >= 300:
            raise OSError(f"{method} {path}: {answer.status} {answer.data[:500]!r}")
        return json.loads(answer.data) if answer.data[:1] == b"{" else {}


class ControlPlane:
    """A running control plane.

    Attributes:
        api: Its API.
        kubeconfig: The file of its administrator.
        launchers_kubeconfig: The file of a user who has no rights yet.
    """

    def __init__(self, directory):
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.launchers_kubeconfig = directory / "launchers-kubeconfig"
        self.processes = []

    def start(self):
        unpacked = self.directory / "bin"
        unpacked.mkdir()
        subprocess.run(
            ["tar", "--zstd", "-xf", str(BINARIES / ARCHIVE), "-C", str(unpacked)]
            + list(PROGRAMS),
            check=True,
        )
        pki = self.directory / "pki"
        pki.mkdir()
        subprocess.run(
            ["openssl", "genrsa", "-out", str(pki / "sa.key"), "2048"],
            check=True,
            capture_output=True,
        )
        (self.directory / "tokens.csv").write_text(
            f"{_TOKEN},admin,1,system:masters\n{_LAUNCHERS_TOKEN},{LAUNCHERS_USER},2\n"
        )
        client, peer, secure = free_ports(3)
        etcd = f"http://127.0.0.1:{client}"
        self._run(
            "etcd",
            *(f"--data-dir={self.directory}/etcd", f"--listen-client-urls={etcd}"),
            *(f"--advertise-client-urls={etcd}", "--unsafe-no-fsync"),
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
        )
        self._run(
            str(unpacked / "kube-apiserver"),
            *(f"--etcd-servers={etcd}", "--bind-address=127.0.0.1"),
            *(f"--secure-port={secure}", "--insecure-port=0", f"--cert-dir={pki}"),
            "--service-cluster-ip-range=10.96.0.0/24",
            f"--service-account-key-file={pki}/sa.key",
            f"--service-account-signing-key-file={pki}/sa.key",
            *("--service-account-issuer=https://k", "--api-audiences=k"),
            f"--token-auth-file={self.directory}/tokens.csv",
            "--authorization-mode=RBAC",
        )
        server = f"https://127.0.0.1:{secure}"
        self.api = Api(server, _TOKEN, f"{pki}/apiserver.crt")
        for file, token in (
            (self.kubeconfig, _TOKEN),
            (self.launchers_kubeconfig, _LAUNCHERS_TOKEN),
        ):
            self._write_kubeconfig(file, token, server, pki)
        self.wait_for(self._is_ready, "API server")
        common = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--port=0")
        controllers, scheduler = free_ports(2)
        self._run(
            str(unpacked / "kube-controller-manager"),
            *common,
            *("--bind-address=127.0.0.1", f"--secure-port={controllers}"),
            f"--service-account-private-key-file={pki}/sa.key",
            "--use-service-account-credentials=false",
            f"--controllers={','.join(_CONTROLLERS)}",
            "--node-monitor-grace-period=24h",
        )
        self._run(
            str(unpacked / "kube-scheduler"),
            *common,
            *("--bind-address=127.0.0.1", f"--secure-port={scheduler}"),
        )

    def _is_ready(self):
        with contextlib.suppress(Exception):
            return self.api("GET", "/api/v1/namespaces/default")
        return None

    def _write_kubeconfig(self, file, token, server, pki):
        authority = {"certificate-authority": f"{pki}/apiserver.crt"}
        parts = {
            "cluster": {"server": server, **authority},
            "user": {"token": token},
            "context": {"cluster": "test", "user": "test"},
        }
        config = {
            f"{part}s": [{"name": "test", part: of}] for part, of in parts.items()
        }
        config |= {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
        file.write_text(json.dumps(config))

    def _run(self, program, *args):
        with (self.directory / f"{Path(program).name}.log").open("wb") as log:
            process = psutil.Popen(
                ["setpriv", "--pdeathsig", "KILL", program, *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "GOMAXPROCS": "2"},
            )
        self.processes.append(process)

    def wait_for(self, condition, what):
        return wait_for(condition, what, lambda: ends_of_logs(self.directory))

    def stop(self):
        for process in reversed(self.processes):
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(self.processes, DEADLINE)


@contextlib.contextmanager
def control_plane(directory):
    """Starts a control plane, and ends it."""
    plane = ControlPlane(directory)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        # The programs alone are 300 MB.
        for name in ("bin", "etcd"):
            shutil.rmtree(directory / name, ignore_errors=True)
