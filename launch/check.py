"""Checks whether a job can run here, before one does.

    python -m launch.check
    python -m launch.check --hosts=h0,h1,h2

It looks at TensorFlow, Keras, GPUs, packages, ports and TF_CONFIG on this machine, or on
hosts that ssh can reach, and compares them. The exit status is 0 if everything is fine,
1 if something is wrong, and 2 if the flags are wrong.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from launch.diagnose import definition, shown
from launch.diagnose.finding import Finding, Level
from launch.engines import hosts, machine, preflight, ssh
from launch.engines.preflight import PACKAGES, HostReport
from launch.flags import cluster_flags, command_line, engine_flags
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.network import ports
from launch.remote import probe
from launch.supervise.processes import check_platform
from tf_config.contract import TF_CONFIG

_PORTS = 20
_HERE = "this machine"


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns its exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, rest = command_line.parse_flags(argv, _define_flags(), __doc__ or "")
    if rest:
        raise UsageError(f"the check takes no script; received {' '.join(rest)!r}")
    cluster_flags.check_seconds("connect_timeout", values.connect_timeout)
    engine_flags.check_ssh(values.ssh)
    needs = importlib.metadata.requires("tfdist") or []
    if values.hosts is None:
        check_platform()
        reports = {_HERE: report_of_this_machine(imports=True)}
    else:
        timeout = values.connect_timeout
        names = [each.name for each in hosts.parse_list(values.hosts)]
        connections = {each: ssh.connect(values.ssh, each, timeout) for each in names}
        asked = dict.fromkeys(names, _asked(values.python))
        reports, _ = preflight.ask(None, connections, asked, timeout)
    found = machine.findings(reports, machine.floors(needs))
    if values.hosts is None:
        found += [*_extras(needs), *_cluster(os.environ)]
    return shown.show(found, values.json)


def report_of_this_machine(imports: bool) -> HostReport:
    """Returns what a job would find here."""
    asked = _asked(sys.executable, imports)
    return HostReport.from_json(json.dumps(probe.look(asked)))


def _asked(python: str, imports: bool = True) -> dict[str, Any]:
    return {
        "python": python,
        "env": {},
        "cwd": os.getcwd(),
        "script": None,
        "packages": PACKAGES,
        "modules": ["tensorflow", "keras", "tfdist"],
        "ours": machine.OURS,
        "ports": ports.at_random(_PORTS),
        "addresses": [],
        "is_closed": True,
        "imports": imports,
    }


def _extras(needs: Sequence[str]) -> list[Finding]:
    def has(name: str) -> bool:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return bool(importlib.metadata.version(name))
        return False

    installed, absent = machine.extras(needs, has)
    words = f"installed: {', '.join(installed) or 'none'}; not: {', '.join(absent)}"
    return [Finding(Level.OK, _HERE, "extras", words)]


def _cluster(environ: Mapping[str, str]) -> list[Finding]:
    if not environ.get(TF_CONFIG, "").strip():
        return [Finding(Level.OK, _HERE, TF_CONFIG, "TF_CONFIG is not set")]
    defined = definition.from_text(environ[TF_CONFIG])
    found = [*defined.findings, *definition.proxy(defined, environ)]
    return found or [Finding(Level.OK, _HERE, TF_CONFIG, "TF_CONFIG is valid")]


def _define_flags() -> Flags:
    values = Flags()
    values.text(
        "hosts", None, "Hosts as ssh knows them, to check instead: h0,h1,user@h2."
    )
    values.text(
        "ssh", "ssh", "The ssh command, with options of yours: --ssh='ssh -p 2200'."
    )
    values.text("python", sys.executable, "The Python interpreter on every host.")
    values.number(
        "connect_timeout",
        60.0,
        "Seconds within which every host must answer; it imports TensorFlow.",
    )
    values.switch("json", False, "Print the findings as JSON.")
    command_line.define_help(values)
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.check")
