"""The process that a job on Ray is for Ray: it holds the places of the tasks.

`launch.engines.ray_launcher_process` starts it and sends it the request over a socket. It
reserves what the job needs, starts an actor per task, and serves the bridges of the
supervisor (`launch.engines.ray_bridge_process`). When the socket closes, or this process
dies, Ray ends the actors, gives back what was reserved, and each task ends with its actor.
"""

import contextlib
import json
import logging
import os
import select
import socket
import threading
import time
import uuid
from typing import Any

from launch.engines import ray_actor_process, ray_bridge_process
from launch.engines.engine import EngineError
from launch.engines.ray_driver_line import Line, is_closed
from launch.engines.ray_request import RayRequest
from launch.engines.ray_reservation import Reservation, answers, one_line
from launch.supervise import handle

_CHUNK = 256 * 1024
_TURN = 0.5  # seconds
_REPLACE_TIMEOUT = 40.0
_CLOSE_TIMEOUT = 20.0
_REACH_TIMEOUT = 10.0
# One that is not there by then is started later, or not at all.
_LATER_PATIENCE = 5.0


class Driver:
    """One job."""

    def __init__(self, request: RayRequest, control: socket.socket) -> None:
        self._request = request
        self._control = control
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._actors: dict[str, Any] = {}
        self._addresses: dict[str, str] = {}
        self._reservation: Reservation | None = None

    def run(self) -> None:
        """Serves the job until the launcher and the supervisor are gone."""
        threading.Thread(target=self._watch, daemon=True).start()
        name = f"tfdist ray {uuid.uuid4().hex}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{name}")
            listener.listen(128)
            try:
                places = self._connect()
            except EngineError as error:
                self._tell(error=str(error))
                return
            self._tell(places=places, socket=name)
            if self._request.may_grow:
                threading.Thread(target=self._await_more, daemon=True).start()
            while not self._is_over.is_set():
                ready, _, _ = select.select([listener], [], [], _TURN)
                if ready:
                    link, _ = listener.accept()
                    threading.Thread(
                        target=self._serve, args=[link], daemon=True
                    ).start()

    def close(self) -> None:
        """Ends the actors, and releases the reservations."""
        import ray

        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                ray.kill(actor)
        if self._reservation:
            with contextlib.suppress(Exception):
                self._reservation.release()
        ray.shutdown()

    def _watch(self) -> None:
        while self._control.recv(_CHUNK):
            pass
        self._is_over.set()
        # Ray may wait for a cluster that is gone.
        time.sleep(_CLOSE_TIMEOUT)
        os._exit(1)

    def _tell(self, **event: Any) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(event).encode() + b"\n")

    # Starting.

    def _connect(self) -> dict[str, Any]:
        """Connects to Ray, reserves everything, and returns where each task is."""
        import ray

        deadline = time.monotonic() + self._request.timeout
        _check_reachable(self._request.address)
        try:
            # The nodes need not have this package.
            ray.cloudpickle.register_pickle_by_value(ray_actor_process)
            ray.init(
                self._request.address,
                runtime_env=dict(self._request.runtime_env),
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            raise EngineError(
                f"cannot connect to Ray at --address={self._request.address}: "
                f"{one_line(error)}"
            ) from None
        self._reservation = Reservation(
            self._request.groups, self._request.timeout, self._is_over.is_set
        )
        self._ask_later(self._reservation)
        tasks = self._reservation.tasks
        actors = {task: self._actor(task) for task in tasks}
        asked = [actor.where.remote() for actor in actors.values()]
        # Preparing the runtime_env may take longer than finding the nodes.
        left = max(_REPLACE_TIMEOUT, deadline - time.monotonic())
        found = dict(zip(tasks, answers(asked, left, "--timeout"), strict=True))
        self._addresses = {task: place["address"] for task, place in found.items()}
        return found

    def _ask_later(self, reservation: Reservation) -> None:
        """Asks for the other workers, and takes those that Ray has room for now."""
        later = self._request.later
        reservation.ask_later(later)
        deadline = time.monotonic() + _LATER_PATIENCE
        while reservation.num_granted < len(later) and time.monotonic() < deadline:
            time.sleep(_TURN)
        reservation.take()
        if not self._request.may_grow:
            # Whatever Ray reserved of it, nobody could use.
            reservation.give_up_later()

    def _await_more(self) -> None:
        """Tells once that Ray has room for more workers, a while after the first."""
        assert self._reservation
        granted, since = 0, 0.0
        while not self._is_over.wait(_TURN):
            with contextlib.suppress(Exception):  # Ray may be ending.
                now = self._reservation.num_granted
                if now != granted:
                    granted, since = now, time.monotonic()
                if granted and time.monotonic() - since > _LATER_PATIENCE:
                    self._tell(granted=granted)
                    return

    def _actor(self, task: str) -> Any:
        import ray

        with self._lock:
            if task not in self._actors:
                assert self._reservation
                self._actors[task] = (
                    ray.remote(ray_actor_process.Shell)
                    .options(
                        # A `read` waits in the actor for output, and must not keep
                        # other calls waiting.
                        max_concurrency=16,
                        **self._reservation.options(task),
                    )
                    .remote()
                )
            return self._actors[task]

    # Serving.

    def _serve(self, link: socket.socket) -> None:
        """Runs a line for a bridge, to its end or that of the bridge."""
        with link, contextlib.ExitStack() as files:
            # An abstract socket has no permissions: anyone on this machine can connect.
            if not ray_bridge_process.peer_is_same_user(link):
                return
            message, fds, _, _ = socket.recv_fds(link, ray_bridge_process.MOST, 3)
            for each in fds:
                files.callback(os.close, each)
            if not message or len(fds) != 3:
                return
            request = json.loads(message)
            status = ray_bridge_process.LOST
            try:
                if actor := self._actor_at_its_place(request["task"], link):
                    status = Line(actor, request["line"], link, fds).run()
            except Exception as error:  # Any error of Ray loses the line.
                text = f"launch: lost on Ray: {one_line(error)}\n"
                with contextlib.suppress(OSError):
                    os.write(fds[2], text.encode())
            with contextlib.suppress(OSError):
                link.send(str(status).encode())

    def _actor_at_its_place(self, task: str, link: socket.socket) -> Any:
        """Returns a living actor of a task; None if it cannot be where it was.

        Ray finds another node for what was reserved on a node that died, if one has room.
        """
        import ray

        deadline = time.monotonic() + min(_REPLACE_TIMEOUT, self._request.timeout)
        address = ""
        while time.monotonic() < deadline:
            if is_closed(link) or self._is_over.is_set():
                return None
            actor = self._actor(task)
            asked = actor.where.remote()
            try:
                if not ray.wait([asked], timeout=_TURN)[0]:
                    continue
                address = ray.get(asked)["address"]
            except ray.exceptions.RayActorError:
                with self._lock:
                    if self._actors.get(task) is actor:
                        del self._actors[task]
                time.sleep(_TURN)
                continue
            if address == self._addresses[task]:
                return actor
            break
        self._tell(moved=task, was=self._addresses[task], now=address)
        return None


def _check_reachable(address: str) -> None:
    """Checks that somebody listens there; Ray itself would try for minutes."""
    host, has_port, port = address.removeprefix("ray://").rpartition(":")
    if not (has_port and port.isdigit()):
        return  # Such as auto.
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_TIMEOUT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise EngineError(
            f"there is no Ray cluster at --address={address} ({error}): give the address "
            "of its head, host:port"
        ) from None


def main() -> None:
    """Runs a job."""
    control, request = handle.received()
    driver = Driver(request, control)
    try:
        driver.run()
    finally:
        driver.close()
    # Threads may still wait for Ray.
    os._exit(0)


if __name__ == "__main__":
    main()
