"""Simulates faulty links between the tasks of a local job.

The tasks reach each other at `HOST`, where this process listens in their place and
forwards to their servers, which are confined to 127.0.0.1 (`launch.network.loopback_only`).
So it can delay, slow down or hold back any traffic, without privileges or kernel
modules. The cost is some CPU time per byte.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import psutil

HOST = "127.0.0.2"
_LOOPBACK = "127.0.0.1"
_CHUNK = 64 * 1024
# Bounded, so that a slow or cut link holds its sender back, as TCP would.
_CHUNKS_UNDER_WAY = 64
_MOMENT = 0.02  # seconds


@dataclass(frozen=True)
class Impairment:
    """The impairment of a task's link.

    Attributes:
        delay: Added to each byte, in seconds.
        rate: The bandwidth of each connection, in bytes per second.
        is_cut: Whether nothing passes.
    """

    delay: float = 0.0
    rate: float = float("inf")
    is_cut: bool = False

    def __add__(self, other: "Impairment") -> "Impairment":
        """Combines two links in series."""
        return Impairment(
            self.delay + other.delay,
            min(self.rate, other.rate),
            self.is_cut or other.is_cut,
        )


def through(addresses: str) -> str:
    """Replaces 127.0.0.1 by `HOST` in a text."""
    return addresses.replace(_LOOPBACK, HOST)


class ImpairedLinks:
    """Forwards the traffic between tasks while the context is active.

    Args:
        ports: The port of each task, by its name.
        tasks: Returns the process of each running task, by its name. It identifies
            which task made a connection.
    """

    def __init__(
        self,
        ports: Mapping[str, int],
        tasks: Callable[[], Mapping[str, psutil.Process]],
    ) -> None:
        self._ports = dict(ports)
        self._tasks = tasks
        self._faults: dict[str, list[Impairment]] = {name: [] for name in self._ports}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")

    def impair(self, task: str, link: Impairment) -> Callable[[], None]:
        """Impairs the link of a task; returns a function that repairs it."""
        self._faults[task].append(link)
        return lambda: self._faults[task].remove(link)

    def __enter__(self) -> "ImpairedLinks":
        self._thread.start()
        try:
            for name in self._ports:
                self._run(self._listen(name)).result()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._run(self._end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _listen(self, name: str) -> None:
        async def accept(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(name, reader, writer)

        self._servers.append(
            await asyncio.start_server(accept, HOST, self._ports[name])
        )

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _connect(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        port = writer.get_extra_info("peername")[1]
        # The lookup takes a while, and the caller's connection may time out.
        caller = asyncio.ensure_future(asyncio.to_thread(self._who_has, port))

        def link() -> Impairment:
            if not any(self._faults.values()):
                return Impairment()
            if not caller.done():
                return Impairment(is_cut=True)
            ends = [name, *caller.result()]
            return sum(
                (fault for end in ends for fault in self._faults[end]), Impairment()
            )

        with contextlib.closing(writer):
            await _until_open(link)
            theirs, ours = await asyncio.open_connection(_LOOPBACK, self._ports[name])
            with contextlib.closing(ours):
                await _first_of(
                    _forward(reader, ours, link), _forward(theirs, writer, link)
                )

    def _who_has(self, port: int) -> list[str]:
        inode = _inode_of(port)
        for name, process in self._tasks().items():
            if inode and _has_open(process.pid, f"socket:[{inode}]"):
                return [name]
        return []


def _inode_of(port: int) -> str | None:
    """Returns the inode of the socket with a local port, from the kernel's table.

    psutil would read the whole table once per process.
    """
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as lines:
            for line in lines:
                if f":{port:04X} " not in line:
                    continue
                _, local, _, _, _, _, _, _, _, inode, *_ = line.split()
                if local.endswith(f":{port:04X}") and inode != "0":
                    return inode
    return None


def _has_open(pid: int, target: str) -> bool:
    directory = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(directory):
            with contextlib.suppress(OSError):
                if os.readlink(f"{directory}/{descriptor}") == target:
                    return True
    return False


async def _forward(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    link: Callable[[], Impairment],
) -> None:
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_UNDER_WAY)

    async def read() -> None:
        while data := await reader.read(_CHUNK):
            await under_way.put((loop.time(), data))
        # `_first_of` cancels the writer as soon as this returns.
        await under_way.join()

    async def write() -> None:
        while True:
            came, data = await under_way.get()
            await _until_open(link)
            await asyncio.sleep(max(0.0, came + link().delay - loop.time()))
            # Again: the link may have been cut during the delay.
            await _until_open(link)
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(len(data) / link().rate)
            under_way.task_done()

    await _first_of(read(), write())


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Waits until the first coroutine returns or fails, and cancels the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_open(link: Callable[[], Impairment]) -> None:
    while link().is_cut:
        await asyncio.sleep(_MOMENT)
