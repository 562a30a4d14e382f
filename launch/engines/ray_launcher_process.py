"""The end of a job's Ray driver in the launcher, which has started the driver."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.engines import ray_bridge_process
from launch.engines.engine import EngineError
from launch.engines.ray_places import Place
from launch.engines.ray_request import RayRequest
from launch.supervise.handle import Child

_CLOSE_TIMEOUT = 30.0  # seconds
_MARGIN = 60.0  # More than the driver's own.


class DriverHandle(Child):
    """A running driver. It ends when this process and its heirs have closed its socket.

    For a task that has to move, an event has its name as `moved`, and its addresses as `was`
    and `now`; if Ray has room for more workers, their number as `granted`.
    """

    def __init__(
        self, request: RayRequest, log_path: str, keep: Sequence[int] = ()
    ) -> None:
        self._timeout = request.timeout
        self._log_path = log_path
        with open(log_path, "ab") as log:
            super().__init__(
                "launch.engines.ray_driver_process",
                request,
                keep,
                _CLOSE_TIMEOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

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
            answer = self.next_event()
        except TimeoutError:
            raise EngineError(
                f"Ray has not answered within {self._timeout + _MARGIN:g} s: is the "
                "cluster of --address up?"
            ) from None
        self._control.settimeout(None)
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

    def _last_words(self) -> str:
        lines = Path(self._log_path).read_text(errors="replace").split("\n")
        text = "; ".join(line.strip() for line in lines[-6:] if line.strip())
        return f"the connection to Ray has ended: {text or 'it said nothing'}"


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
