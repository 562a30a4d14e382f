"""Hosts that are network namespaces of this machine: who may make them, and who is where."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces are for root, with iproute2",
)
needs_stunnel = pytest.mark.skipif(
    shutil.which("stunnel") is None,
    reason="there is no stunnel: apt-get install stunnel4",
)


def host_of(network, names, pid):
    """The name of the host whose network a process is in, of some; None if it is in none."""
    inode = os.readlink(f"/proc/{pid}/ns/net")
    for name in names:
        path = Path("/run/netns", network.namespace(name))
        if f"net:[{path.stat().st_ino}]" == inode:
            return name
    return None


def names_on_this_machine():
    """The links and the network namespaces of this machine, as text."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True)
    netns = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return links.stdout + netns.stdout
