"""Records of jobs by name, for any shell of the machine that started them.

A record is a directory: `job.json` says what the job is, `end.json` how it ended, and
`lock` is locked for as long as a process that takes part in it here is alive.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import psutil

from tf_config.errors import Mistake
from tf_config.whole_file import write_whole

_NAME = r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?"
_KEPT = 50
_SHOWN = 10
_PLACE = "place.json"
_TRIES, _MOMENT = 5, 0.05  # seconds


class RecordError(Mistake):
    """A name that no job has, or that a new job cannot have."""


@dataclass(frozen=True)
class Record:
    """One job.

    Attributes:
        name: Its name.
        engine: The name of an engine, as `launch.engines.engine.load` takes it.
        machine: The name of the machine that started it.
        pid: The process that started it, or keeps it if that one has gone.
        pid_since: The start of that process, in seconds since the epoch.
        started: The time of the start, as ISO 8601.
        log_dir: The directory of its log files, as an absolute path.
        output: The file of the launcher's output; '' if it is on a terminal.
        tf_config: The TF_CONFIG of its first task.
        tasks: The host, the address and the log file of each task, by its name.
        grace_period: Seconds that a task may take to end before it is killed.
        job_id: The engine's name of the job; '' if it has none.
        where: The place where the engine finds the job again, in its own words.
        min_workers: How many workers are enough; None if it needs all.
    """

    name: str
    engine: str
    log_dir: str
    tf_config: str = ""
    tasks: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    grace_period: float = 10.0
    machine: str = ""
    pid: int = 0
    pid_since: float = 0.0
    started: str = ""
    output: str = ""
    job_id: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    min_workers: int | None = None

    @property
    def path(self) -> Path:
        """The directory of the record."""
        return directory() / self.name

    @property
    def announcement(self) -> str:
        """The message to the user when the job exists."""
        return (
            f"this is job {self.name}; from another shell: "
            f"python -m launch.jobs status {self.name}"
        )

    @property
    def is_alive(self) -> bool:
        """True if a process of the job is alive on this machine."""
        with contextlib.suppress(OSError), open(self.path / "lock") as lock:
            try:
                # Shared, so that two who ask at once do not take each other for the
                # job.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @property
    def placed(self) -> "Record":
        """The record with what only the job itself could know: where its tasks are."""
        with contextlib.suppress(OSError, ValueError):
            place = json.loads(Path(self.log_dir, _PLACE).read_text())
            return replace(self, tasks=place["tasks"], tf_config=place["tf_config"])
        return self

    def write_place(self) -> None:
        """Tells where the tasks are, for a record that was written before it was known."""
        place = {"tasks": self.tasks, "tf_config": self.tf_config}
        write_whole(Path(self.log_dir, _PLACE), json.dumps(place).encode())

    @property
    def end(self) -> dict[str, Any]:
        """The end of the job: its exit `code`; {} if nobody lived to record it."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.path / "end.json").read_text()))
        return {}

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Makes the record the job's, as long as this process or an heir holds a file.

        Yields:
            The file, which a child may inherit.

        Raises:
            RecordError: If a running job has the name, or the record cannot be written.
        """
        with self._open_lock() as lock:
            if not _lock(lock):
                raise RecordError(
                    f"a job named {self.name!r} is running: choose another --name, or "
                    f"end it with python -m launch.jobs cancel {self.name}"
                )
            # An earlier job of this name may have left its end.
            (self.path / "end.json").unlink(missing_ok=True)
            self.write()
            yield lock.fileno()

    def write(self) -> None:
        """Writes the record, as one that this process has started."""
        here = replace(
            self,
            machine=socket.gethostname(),
            pid=os.getpid(),
            pid_since=psutil.Process().create_time(),
            started=datetime.now().isoformat(timespec="seconds"),
        )
        self._write("job.json", asdict(here))

    def signal(self, signum: int) -> None:
        """Sends a signal to the process that started the job, if it is alive."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            # The kernel gives the number of a process that has ended to another.
            if process.create_time() == self.pid_since:
                process.send_signal(signum)

    def write_end(self, code: int) -> None:
        """Records how the job ended."""
        self._write("end.json", {"code": code})

    def _open_lock(self) -> IO[str]:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            return open(self.path / "lock", "w")
        except OSError as error:
            raise RecordError(
                f"cannot write {self.path} ({error.strerror}): set XDG_STATE_HOME to a "
                "directory of yours"
            ) from None

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        write_whole(self.path / name, json.dumps(value).encode())


def _lock(file: IO[str]) -> bool:
    """Locks a file; returns whether it could."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A command that asks whether the job is alive locks it for a moment.
            time.sleep(_MOMENT)
        else:
            return True
    return False


def directory() -> Path:
    """Returns the directory of all records, which need not exist."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tfdist" / "jobs"


def check_name(name: str) -> str:
    """Returns a name that a job can have on every engine."""
    if not re.fullmatch(_NAME, name):
        raise RecordError(
            f"a job cannot be named {name!r}: choose 1 to 52 lower-case letters, digits "
            "and hyphens, with a letter or digit at both ends"
        )
    return name


def name_of(given: str | None, script: str) -> str:
    """Returns the name that a job is given, or a new one."""
    return new_name(script) if given is None else check_name(given)


def new_name(script: str) -> str:
    """Returns a name for a job that runs a script: `train-1122-154501-123`."""
    stem = re.sub("[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:24]
    return f"{stem.strip('-') or 'job'}-{datetime.now():%m%d-%H%M%S}-{os.getpid()}"


def load(name: str) -> Record:
    """Returns the record of a job.

    Raises:
        RecordError: If no job has the name, or another machine has started it.
    """
    try:
        text = (directory() / check_name(name) / "job.json").read_bytes()
    except OSError:
        known = [each.name for each in everything()]
        last = ", ".join(known[: -_SHOWN - 1 : -1])
        there = f"the last that were started here are {last}"
        more = "; python -m launch.jobs list shows all" if len(known) > _SHOWN else ""
        raise RecordError(
            f"there is no job named {name!r}; "
            f"{there if last else 'no job of this machine is known'}{more}"
        ) from None
    try:
        record = Record(**json.loads(text))
    except (ValueError, TypeError):
        raise RecordError(
            f"the record of job {name} is damaged: {directory() / name}; end what is left "
            "of the job by the engine's own commands, then remove that directory"
        ) from None
    if record.machine != socket.gethostname():
        raise RecordError(
            f"job {name} was started on {record.machine}, and this is "
            f"{socket.gethostname()}: run the command there"
        )
    return record.placed


def everything() -> list[Record]:
    """Returns the records of all jobs, the oldest first."""
    found = []
    for path in directory().glob("*/job.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Record(**json.loads(path.read_text())))
    return sorted(found, key=lambda record: record.started)


def tidy() -> None:
    """Forgets the oldest of many jobs that have ended."""
    for record in everything()[:-_KEPT]:
        # Only the engine knows whether a job that it keeps has ended.
        if not record.is_alive and (record.end or not record.job_id):
            shutil.rmtree(record.path, ignore_errors=True)
