"""Looks at a host before a job starts, and prints the findings as a line of JSON.

It is sent to the host as source, as `agent.py` is. Standard input brings what to look for:
`python`, `env` and `cwd` of the tasks, the `script` (None if no task of this host runs it),
`packages` and `modules`, candidates for `ports`, the `addresses` of all hosts, whether to
look for what `--secure` needs: `is_closed` (its ports are to be closed to other hosts), and
whether to import TensorFlow, which takes seconds: `imports`.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from typing import Any

from launch.network import loopback_only
from launch.remote import host, keras_backend

_TIMEOUT = 60  # seconds; the launcher's own deadline is usually earlier.

# Asked of the interpreter of the tasks, in their environment: PYTHONPATH counts.
_VERSIONS = """
import importlib.metadata, importlib.util, json, platform, sys
packages, modules, ours = json.loads(sys.argv[1])
def version(names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
found = {names[0]: version(names) for names in packages}
specs = {name: importlib.util.find_spec(name) for name in [*modules, *ours]}
origins = {name: specs[name] and specs[name].origin for name in ours}
lacks = [name for name in modules if specs[name] is None]
print(json.dumps([platform.python_version(), found, lacks, origins]))
"""
_IMPORT = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
_DRIVER = "/proc/driver/nvidia/gpus"


def look(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns the host's facts, and `problems` that no comparison could show."""
    problems, cwd = [], asked["cwd"]
    names = "python", "versions", "lacks", "origins"
    found: dict[str, Any] = dict(zip(names, ("", {}, [], {}), strict=True))
    if not os.path.isdir(cwd):
        problems.append(f"has no directory {cwd}")
    elif script := asked["script"]:
        path = os.path.join(cwd, script)
        if not os.path.isfile(path):
            problems.append(f"has no script {path}")
        elif not os.access(path, os.R_OK):
            problems.append(f"cannot read {path}")
    if not problems:
        doing = f"run {asked['python']}"
        try:
            wanted = [asked["packages"], asked["modules"], asked.get("ours", [])]
            answer = json.loads(_run(asked, _VERSIONS, json.dumps(wanted)))
            found = dict(zip(names, answer, strict=True))
            doing = "import TensorFlow"
            if asked.get("imports"):
                found["visible_gpus"] = int(_run(asked, _IMPORT).split()[-1])
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(f"cannot {doing}: {error}")
    if why := keras_backend.problem({**os.environ, **asked["env"]}):
        problems.append(f"cannot train: {why}")
    for address in asked["addresses"]:
        try:
            socket.getaddrinfo(address, None)
        except (OSError, UnicodeError):
            problems.append(f"does not know the host {address}")
    return {
        **found,
        "problems": problems,
        "ports": [port for port in asked["ports"] if _is_free(port)],
        "ephemeral": _ephemeral(),
        "proxies": {
            k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")
        },
        "secure": _secure() if asked["is_closed"] else {},
        "gpus": len(os.listdir(_DRIVER)) if os.path.isdir(_DRIVER) else 0,
    }


def _secure() -> dict[str, Any]:
    path = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/bin"]
    )
    stunnel, version = shutil.which("stunnel", path=path) or "", ""
    if stunnel:
        done = subprocess.run([stunnel, "-version"], capture_output=True, text=True)
        found = re.search(r"^(?:\[.\] )?stunnel (\d+\.\d+)", done.stderr, re.MULTILINE)
        version = found[1] if found else ""
    return {
        "stunnel": stunnel,
        "version": version,
        "open": loopback_only.why_not(),
        "has_ipv6": os.path.exists("/proc/net/if_inet6"),
    }


def _run(asked: dict[str, Any], *arguments: str) -> str:
    """Runs Python code as a task would, and returns its output."""
    python = shutil.which(asked["python"]) or asked["python"]
    done = subprocess.run(
        [python, "-c", *arguments],
        env={**os.environ, **asked["env"]},
        cwd=asked["cwd"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ValueError(said[-1] if said else f"status {done.returncode}")
    return done.stdout


def _is_free(port: int) -> bool:
    # Stricter than `host.is_free`: the job can choose among many.
    with socket.socket() as probe:
        return host.can_bind(probe, ("", port))


def _ephemeral() -> list[int]:
    """Returns the ports that the kernel assigns to outgoing connections: first, last."""
    path = "/proc/sys/net/ipv4/ip_local_port_range"
    with contextlib.suppress(OSError), open(path) as file:
        return [*map(int, file.read().split())]
    return [0, 0]


def main() -> None:
    """Reads the request, and prints the findings."""
    signal.alarm(_TIMEOUT)
    with open(0, "rb") as asked:
        print(json.dumps(look(json.loads(asked.readline()))))


if __name__ == "__main__":
    main()
