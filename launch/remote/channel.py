r"""The channel to a host: a program and its request go there, and reports come back.

Nothing of the user's is on a command line: other users of a host can read those. The
command that a connection runs only reads a program of known length from its standard
input and executes it; the rest of the input is the program's.
"""

import functools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AGENT, PROBE = "agent.py", "probe.py"
"""The programs in this directory that run on a host."""

MODULES = (
    *("launch", "launch.network", "launch.network.seccomp"),
    *("launch.network.loopback_only", "launch.remote", "launch.remote.host"),
    *("launch.remote.identity", "launch.remote.keras_backend", "launch.remote.memory"),
)
"""The modules of ours that these may import. They travel along to the host."""

HEARTBEAT = b"\n"
"""The launcher's sign of life."""

# Registered before it is executed, as Python does: a dataclass looks for its own module.
_PRELUDE = """
import sys, types
for name, text in {texts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    package, _, own = name.rpartition(".")
    if package:
        setattr(sys.modules[package], own, module)
    exec(compile(text, name, "exec"), vars(module))
"""

# One line, in characters that mean the same to sh, csh and fish within single quotes.
_READ = (
    'import os;exec("p=b\\"\\"\\nwhile len(p)<{size}: '
    'p+=os.read(0,{size}-len(p)) or os._exit(1)"); '
    'exec(compile(p,"{name}","exec"))'
)


@functools.cache
def source(program: str) -> bytes:
    """Returns the source of a program, after its imported modules' source."""
    root = Path(__file__).parents[2]
    paths = {name: root.joinpath(*name.split(".")) for name in MODULES}
    texts = {
        name: "" if path.is_dir() else path.with_suffix(".py").read_text()
        for name, path in paths.items()
    }
    prelude = _PRELUDE.format(texts=texts).encode()
    return prelude + Path(__file__).with_name(program).read_bytes()


def command(program: str, python: str) -> str:
    """Returns the shell line that runs on a host what `source` returns."""
    read = _READ.format(size=len(source(program)), name=program)
    # Isolated: the directory where it starts, a home, may have modules of any name.
    return f"exec {shlex.quote(python)} -I -c '{read}'"


def request(program: str, asked: Mapping[str, Any]) -> bytes:
    """Returns the input of `command`: the source, then a line of JSON."""
    return source(program) + json.dumps(asked).encode() + b"\n"


def order(signum: int) -> bytes:
    """Returns the line that makes the agent send a signal to its task."""
    return json.dumps({"signal": signum}).encode() + b"\n"


def certificate(files: Mapping[str, str]) -> bytes:
    """Returns the line that brings a tunnel its certificate, and its authority's."""
    return json.dumps({"certificate": dict(files)}).encode() + b"\n"


def event(line: str) -> dict[str, Any] | None:
    """Reads a line of the agent; None if it is another program's, such as ssh's.

    >>> event('{"event": "exit", "code": 0, "cpu": 1.5}')
    {'event': 'exit', 'code': 0, 'cpu': 1.5}
    >>> event("Connection refused") is None
    True
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and "event" in value else None
