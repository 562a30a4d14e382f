"""The nodes of a test cluster: a small kubelet that plays all of them.

It runs the command of each pod as process 1 of a PID namespace, in a network namespace
that has the pod's address, and with the pod's Secrets as files. It reports statuses,
serves logs, and makes the names of headless Services known in /etc/hosts. Images are only
names: every image that it knows is this machine's file system.
"""

import contextlib
import datetime
import http.server
import os
import re
import shlex
import signal
import ssl
import subprocess
import threading
import time
import urllib.parse
from base64 import b64decode

import psutil

from ..support.deadline import DEADLINE

IMAGE = "test.invalid/tfdist:1"
_TURN = 0.1  # seconds
_MERGE = "application/strategic-merge-patch+json"


class Pod:
    """The process of one pod."""

    def __init__(self, value, namespace, process, directory):
        self.name = value["metadata"]["name"]
        self.uid = value["metadata"]["uid"]
        self.value = value
        self.namespace = namespace
        self.process = process
        self.directory = directory
        self.told_at = None
        self.is_reported = False
        self.log = []
        self.grown = threading.Condition()
        self.is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            now = datetime.datetime.now(datetime.timezone.utc)
            with self.grown:
                self.log.append((now, line))
                self.grown.notify_all()
        with self.grown:
            self.is_over = True
            self.grown.notify_all()

    def signal(self, signum):
        """Sends a signal to the pod's first process."""
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            for child in psutil.Process(self.process.pid).children():
                child.send_signal(signum)

    @property
    def grace(self):
        return self.value["metadata"].get("deletionGracePeriodSeconds", 30)


class Kubelet:
    """All nodes of a cluster.

    Args:
        api: The cluster's API.
        names: The names of the nodes.
        network: Network namespaces for the pods, as benchmarks/netns.py makes them.
        addresses: The names of these namespaces.
        directory: Where it keeps files.
        environ: The environment variables of the image.
    """

    def __init__(self, api, names, network, addresses, directory, environ):
        self.api = api
        self.names = names
        self.network = network
        self.free = list(addresses)
        self.directory = directory
        self.environ = environ
        self.pods = {}
        self.refused = set()
        self.known = {}
        self.hosts = directory / "hosts"
        self._hosts_text = ""
        self._is_over = threading.Event()
        self._lock = threading.Lock()

    def start(self):
        self._serve_logs()
        self.hosts.write_text("127.0.0.1 localhost\n")
        for name in self.names:
            self._register(name)
        # Processes die with the thread that has started them, so it is always this one.
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def stop(self):
        self._is_over.set()
        self._thread.join(DEADLINE)
        for pod in self.pods.values():
            pod.process.kill()
            pod.process.wait(DEADLINE)
        self.server.shutdown()
        self.server.server_close()

    def pod_of(self, job, task):
        """The running pod of a task, such as `ps:0`."""
        role, _, index = task.partition(":")
        for pod in list(self.pods.values()):
            labels = pod.value["metadata"]["labels"]
            annotations = pod.value["metadata"].get("annotations", {})
            if (
                labels.get("app.kubernetes.io/instance") == job
                and labels.get("app.kubernetes.io/component") == role
                and annotations.get("tfdist-launch/index", "0") == (index or "0")
                and pod.process.poll() is None
            ):
                return pod
        return None

    # Nodes.

    def _register(self, name):
        port = self.server.server_address[1]
        times = dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), _now())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", **times}
        amount = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        status = {
            "capacity": amount,
            "allocatable": amount,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self.api("POST", "/api/v1/nodes", {"metadata": metadata, "status": status})

    # Pods.

    def _loop(self):
        while not self._is_over.wait(_TURN):
            try:
                self._turn()
            except OSError as error:
                if not self._is_over.is_set():
                    print(f"kubelet: {error}", flush=True)

    def _turn(self):
        self._update_hosts()
        values = {
            each["metadata"]["uid"]: each
            for each in self.api("GET", "/api/v1/pods")["items"]
            if each["spec"].get("nodeName") in self.names
        }
        for uid, value in values.items():
            pod = self.pods.get(uid)
            is_deleted = "deletionTimestamp" in value["metadata"]
            if pod is None:
                if is_deleted:
                    self._delete(value)
                elif value["status"]["phase"] == "Pending" and uid not in self.refused:
                    self._start(value)
                continue
            pod.value = value
            if is_deleted and pod.told_at is None:
                pod.told_at = time.monotonic()
                pod.signal(signal.SIGTERM)
            if pod.told_at and time.monotonic() - pod.told_at > pod.grace:
                pod.process.kill()
            if pod.process.poll() is not None and pod.is_over and not pod.is_reported:
                pod.is_reported = True
                self._report_end(pod)
            if is_deleted and pod.is_reported:
                self._delete(value)
        for uid in self.pods.keys() - values.keys():
            # Deleted by force, or with its node.
            pod = self.pods.pop(uid)
            pod.process.kill()
            pod.process.wait(DEADLINE)
            self._release(pod)

    def _release(self, pod):
        if pod.namespace:
            # The next pod gets another address, as far as there are, and a network in
            # which no port waits for the end of a connection.
            self.network.renew(pod.namespace)
            self.free.append(pod.namespace)
            pod.namespace = None

    def _start(self, value):
        container = value["spec"]["containers"][0]
        if container["image"] != IMAGE:
            self.refused.add(value["metadata"]["uid"])
            waiting = {
                "reason": "ImagePullBackOff",
                "message": f'Back-off pulling image "{container["image"]}"',
            }
            self._report(value, "Pending", {"waiting": waiting}, None)
            return
        directory = self.directory / value["metadata"]["uid"]
        directory.mkdir()
        namespace = self.free.pop(0)
        address = self.network.address(namespace)
        boot = self._boot(value, container, directory)
        process = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{self._netns(namespace)}"),
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", "sh", "-c", boot),
            ],
            env=self._environ(container),
            cwd=container.get("workingDir", "/"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        pod = Pod(value, namespace, process, directory)
        self.pods[pod.uid] = pod
        self._report(value, "Running", {"running": {"startedAt": _now()}}, address)

    def _netns(self, namespace):
        return self.network.command(namespace, [])[3]

    def _environ(self, container):
        env = dict(self.environ)
        for each in container.get("env", ()):
            env[each["name"]] = expand(each.get("value", ""), env)
        return env

    def _boot(self, value, container, directory):
        """The lines of shell that make a container of a process."""
        spec = value["spec"]
        lines = ["set -e", "mount -t tmpfs tmpfs /run"]
        lines.append(f"mount --bind {shlex.quote(str(self.hosts))} /etc/hosts")
        lines.append(f"hostname {spec.get('hostname', value['metadata']['name'])}")
        volumes = {each["name"]: each for each in spec.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            source = directory / mount["name"]
            source.mkdir(exist_ok=True)
            if "secret" in volume:
                secret = self.api(
                    "GET",
                    f"/api/v1/namespaces/{value['metadata']['namespace']}/secrets/"
                    + volume["secret"]["secretName"],
                )
                for name, data in secret["data"].items():
                    (source / name).write_bytes(b64decode(data))
            lines += _bind(source, mount["mountPath"], "mkdir -p")
        end = directory / "end"
        end.touch()
        path = container["terminationMessagePath"]
        lines.append(f"mkdir -p {shlex.quote(os.path.dirname(path))}")
        lines += _bind(end, path, "touch")
        command = [*container.get("command", ()), *container.get("args", ())]
        env = self._environ(container)
        lines.append(f"exec {shlex.join(expand(each, env) for each in command)}")
        return "\n".join(lines)

    def _report_end(self, pod):
        code = pod.process.returncode
        code = code if code >= 0 else 128 - code
        message = (pod.directory / "end").read_text()
        container = pod.value["spec"]["containers"][0]
        if not message and code and container["terminationMessagePolicy"] != "File":
            message = b"".join(line for _, line in pod.log[-20:]).decode(
                errors="replace"
            )
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "message": message[-2000:],
            "startedAt": _now(),
            "finishedAt": _now(),
        }
        phase = "Failed" if code else "Succeeded"
        with contextlib.suppress(OSError):
            self._report(pod.value, phase, {"terminated": ended}, None)
        self._release(pod)

    def _report(self, value, phase, state, address):
        container = value["spec"]["containers"][0]
        is_running = "running" in state
        status = {
            "phase": phase,
            "conditions": [
                {"type": each, "status": str(is_running)}
                for each in ("Initialized", "Ready", "ContainersReady")
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": is_running,
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        if address:
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        self.api("PATCH", f"{_path(value)}/status", {"status": status}, kind=_MERGE)

    def _delete(self, value):
        options = {
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": value["metadata"]["uid"]},
        }
        self.api("DELETE", _path(value), options, check=False)

    # Names.

    def _update_hosts(self):
        lines = ["127.0.0.1 localhost"]
        for each in self.api("GET", "/api/v1/endpoints")["items"]:
            service, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
            for subset in each.get("subsets") or ():
                both = ("addresses", "notReadyAddresses")
                for address in [one for key in both for one in subset.get(key) or ()]:
                    if name := address.get("hostname"):
                        full = f"{name}.{service}.{namespace}.svc.cluster.local"
                        lines.append(f"{address['ip']} {full} {name}.{service}")
        text = "\n".join(lines) + "\n"
        if text != self._hosts_text:
            self._hosts_text = text
            # In place: it is mounted over the file of each pod. Shorter than a line
            # would be torn, so the new text is at no moment half there.
            self.hosts.write_text(text)

    # Logs.

    def _serve_logs(self):
        kubelet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                asked = urllib.parse.parse_qs(query)
                name = path.split("/")[3]
                pod = next(
                    (each for each in list(kubelet.pods.values()) if each.name == name),
                    None,
                )
                if pod is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self._follow(pod, asked)

            def _follow(self, pod, asked):
                begin = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
                if since := asked.get("sinceSeconds"):
                    begin = datetime.datetime.now(datetime.timezone.utc)
                    begin -= datetime.timedelta(seconds=int(since[0]))
                sent = 0
                while True:
                    with pod.grown:
                        if len(pod.log) == sent and not pod.is_over:
                            pod.grown.wait(1)
                        lines, is_over = pod.log[sent:], pod.is_over
                    for when, line in lines:
                        if when >= begin:
                            stamp = when.strftime("%Y-%m-%dT%H:%M:%S.%fZ ").encode()
                            line = stamp + line if "timestamps" in asked else line
                            self.wfile.write(line)
                    sent += len(lines)
                    self.wfile.flush()
                    if is_over and sent == len(pod.log) or "follow" not in asked:
                        return

            def log_message(self, *args):
                pass

        certificate, key = (
            self.directory / "kubelet.crt",
            self.directory / "kubelet.key",
        )
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
            + ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=kubelet"],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def expand(text, env):
    """Replaces $(NAME) as Kubernetes does."""

    def replace(match):
        if match[0] == "$$":
            return "$"
        return env.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


def _bind(source, target, make):
    target = shlex.quote(target)
    return [f"{make} {target}", f"mount --bind {shlex.quote(str(source))} {target}"]


def _path(value):
    metadata = value["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
