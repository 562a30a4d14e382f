"""The end of a job's Ray driver in the launcher, which has started the driver."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.engines import ray_bridge_process
from launch.engines.engine import EngineError
from launch.engines.ray_places import Place
from launch.engines.ray_request import RayRequest
from launch.supervise import handle

_CLOSE_TIMEOUT = 30.0  # seconds
_MARGIN = 60.0  # More than the driver's own.


class DriverHandle:
    """A running driver. It ends when this process and its heirs have closed its socket."""

    def __init__(
        self, request: RayRequest, log_path: str, keep: Sequence[int] = ()
    ) -> None:
        self._timeout = request.timeout
        self._log_path = log_path
        self._control, theirs = socket.socketpair()
        with theirs, open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                handle.command("launch.engines.ray_driver_process", theirs),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno(), *keep],
                start_new_session=True,
            )
        with contextlib.suppress(BrokenPipeError):
            text = json.dumps(request.as_dict())
            self._control.sendall(text.encode() + b"\n")
        self._events = self._control.makefile("rb")

    @property
    def pid(self) -> int:
        """The process id of the driver."""
        return self._process.pid

    def fileno(self) -> int:
        """The socket; a process that inherits it keeps the driver alive."""
        return self._control.fileno()

    def places(self) -> dict[str, Place]:
        """Waits until Ray has reserved everything; returns where each task is.

        Raises:
            EngineError: If Ray cannot, or does not answer.
        """
        self._control.settimeout(self._timeout + _MARGIN)
        try:
            line = self._events.readline()
        except TimeoutError:
            raise EngineError(
                f"Ray has not answered within {self._timeout + _MARGIN:g} s: is the "
                "cluster of --address up?"
            ) from None
        self._control.settimeout(None)
        answer: dict[str, Any] = json.loads(line) if line else {}
        if "places" not in answer:
            raise EngineError(answer.get("error") or self._last_words())
        bridge = (
            sys.executable,
            "-I",
            "-S",
            ray_bridge_process.__file__,
            answer["socket"],
        )
        return {
            task: Place(**place, connect=(*bridge, task))
            for task, place in answer["places"].items()
        }

    def watch(self, happened: Callable[[Mapping[str, Any]], None]) -> None:
        """Calls `happened`, in another thread, for what the driver tells.

        For a task that has to move, that is its name as `moved`, and its addresses as
        `was` and `now`; if Ray has room for more workers, their number as `granted`.
        """

        def listen() -> None:
            with contextlib.suppress(OSError, ValueError):
                for line in self._events:
                    happened(json.loads(line))

        threading.Thread(target=listen, daemon=True).start()

    def _last_words(self) -> str:
        lines = Path(self._log_path).read_text(errors="replace").split("\n")
        text = "; ".join(line.strip() for line in lines[-6:] if line.strip())
        return f"the connection to Ray has ended: {text or 'it said nothing'}"

    def close(self) -> None:
        """Ends the driver, and waits until Ray has everything back."""
        # Closing is not enough: a process that has inherited the socket keeps it open.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def check_installed() -> None:
    """Checks that Ray can be imported."""
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise EngineError(
            "Ray is not installed here: pip install 'ray>=2.60' (the extra `ray`), in the "
            "version that the cluster has"
        )


def log_path(log_dir: str) -> str:
    """Returns the file of what Ray has to say about a job."""
    return os.path.join(log_dir, "ray.log")
