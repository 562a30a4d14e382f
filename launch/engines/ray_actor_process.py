"""An actor of Ray that runs lines of shell on its node, with their files.

The actor is sent to the node as it is, so this file imports the standard library alone.
"""

import contextlib
import itertools
import os
import select
import subprocess
import sys
from typing import Any

_CHUNK = 256 * 1024

# Ray kills the children of an actor that ends, and would leave theirs behind. So the line
# runs apart from it, and learns by the end of its standard input that the actor is gone.
# A shell gives a command in the background no input but one that is named.
_APART = 'exec 3<&0; (exec setsid sh -c "$0" <&3 3<&-) &'


class Shell:
    """Runs lines of shell; the calls for one line may overlap those for others."""

    def __init__(self) -> None:
        self._keys = itertools.count()
        self._inputs: dict[int, int] = {}
        self._outputs: dict[int, dict[int, int]] = {}

    def where(self) -> dict[str, Any]:
        """Returns where this is: the `node`, its `address`, and the `python` here."""
        import ray

        return {
            "node": ray.get_runtime_context().get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "python": sys.executable,
        }

    def start(self, line: str) -> int:
        """Starts a line, and returns the key of its files."""
        pipes = [os.pipe() for _ in range(3)]
        (stdin, source), (output, stdout), (errors, stderr) = pipes
        try:
            subprocess.run(
                ["sh", "-c", _APART, line],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                check=True,
            )
        finally:
            for each in (stdin, stdout, stderr):
                os.close(each)
        key = next(self._keys)
        self._inputs[key], self._outputs[key] = source, {1: output, 2: errors}
        return key

    def write(self, key: int, data: bytes) -> None:
        """Writes to the standard input of a line, if that is open."""
        with contextlib.suppress(OSError, KeyError):
            while data:
                data = data[os.write(self._inputs[key], data) :]

    def end_input(self, key: int) -> None:
        """Ends the standard input of a line."""
        if key in self._inputs:
            os.close(self._inputs.pop(key))

    def read(self, key: int, timeout: float) -> dict[int, bytes]:
        """Waits for output; not to be called again before it returns.

        Returns:
            The output of the line in its files 1 and 2, which are still open.
        """
        outputs = self._outputs[key]
        ready, _, _ = select.select(list(outputs.values()), [], [], timeout)
        found = {}
        for name, number in [*outputs.items()]:
            data = os.read(number, _CHUNK) if number in ready else b""
            if number in ready and not data:
                os.close(outputs.pop(name))
            else:
                found[name] = data
        return found
