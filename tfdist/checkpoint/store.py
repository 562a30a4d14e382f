"""The checkpoints of a directory: writing, checking and pruning.

A checkpoint is a directory. It is written under a temporary name, its files are flushed
to disk, a manifest of them is added, and only then is it renamed, which is atomic. So
every directory with the name of a checkpoint was complete at one time; its manifest
tells whether it still is.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tf_config.contract import CHECKPOINT_PREFIX
from tfdist._support.errors import Error

_log = logging.getLogger("tfdist")

MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"
_LOCK = ".lock"
_NAME = re.compile(CHECKPOINT_PREFIX + r"(\d{8})")
# Larger files hold tensors. TensorFlow writes a checksum for each of them and verifies
# it on reading; to sum them here, the chief would have to read back what every ps wrote.
_LARGEST_SUMMED = 16 << 20
_SECONDS_FOR_THE_LOCK = 10.0


class CorruptCheckpointError(Error, ValueError):
    """A checkpoint that has changed since it was written."""


class CheckpointDirError(Error, ValueError):
    """A directory that checkpoints cannot be written to."""


def name_of(number: int) -> str:
    """Returns the name of a checkpoint.

    >>> name_of(7)
    'checkpoint-00000007'
    """
    return f"{CHECKPOINT_PREFIX}{number:08d}"


def numbers(names: Iterable[str]) -> list[int]:
    """Returns the numbers of the checkpoints among `names`, newest first.

    >>> numbers([".lock", "checkpoint-00000002", "checkpoint-00000010"])
    [10, 2]
    """
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def expired(numbers: Sequence[int], keep: int, corrupt: Iterable[int] = ()) -> set[int]:
    """Returns the checkpoints to remove.

    A corrupt checkpoint does not count towards the number to keep.

    >>> sorted(expired([5, 4, 3, 2], keep=2, corrupt=[4]))
    [2, 4]
    """
    useless = set(corrupt)
    whole = sorted(set(numbers) - useless, reverse=True)
    return set(whole[keep:]) | (set(numbers) & useless)


class CheckpointStore:
    """The checkpoints of one directory, written by one process at a time.

    The directory is created if it does not exist; the ps write to the same path. Raises
    CheckpointDirError if it cannot be written, or another process writes to it.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 3) -> None:
        self.directory = Path(os.path.abspath(directory))
        self._keep = keep
        self._corrupt: set[int] = set()
        was_used = (self.directory / _LOCK).exists()
        self._lock = _locked(self.directory)
        # Left by a process that was killed: under the lock, nobody else is writing.
        for path in self.directory.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path, ignore_errors=True)
        self._next = max(self._numbers(), default=-1) + 1
        if was_used and not self._next:
            # Its user expects a training that continues.
            _log.warning(
                "%s has no checkpoint: the run before ended before its first. fit begins "
                "at its start",
                self.directory,
            )

    def close(self) -> None:
        """Releases the directory to other processes."""
        self._lock.close()

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            error.args = error.args or (self._left(),)
        self.close()

    def _left(self) -> str:
        for number in self._numbers():
            age = time.time() - self.path(number).stat().st_mtime
            return f"the next run continues from {self.path(number)}, {age:.0f} s old"
        return f"{self.directory} has no checkpoint yet"

    def path(self, number: int) -> Path:
        """Returns the directory of a checkpoint."""
        return self.directory / name_of(number)

    def whole(self) -> Iterator[Path]:
        """Yields the intact checkpoints, newest first.

        A corrupt one is skipped with a warning, and removed when the next checkpoint
        has been written.
        """
        for number in self._numbers():
            try:
                check(self.path(number))
            except (CorruptCheckpointError, OSError) as error:
                self.skip(self.path(number), str(error))
            else:
                yield self.path(number)

    def skip(self, path: Path, why: str) -> None:
        """Marks a checkpoint as corrupt, and logs a warning."""
        self._corrupt.update(numbers([path.name]))
        _log.warning("skipping the checkpoint %s: %s", path, why)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """Creates a directory that becomes a checkpoint when the context is left.

        If the context or flushing the files raises an exception, the directory is
        removed, and the other checkpoints remain.
        """
        # Counted up even if the write fails: what may be left of it has this number.
        number, self._next = self._next, self._next + 1
        unfinished = self.directory / f"{_UNFINISHED}{name_of(number)}"
        unfinished.mkdir()
        try:
            yield unfinished
            _seal(unfinished)
            os.rename(unfinished, self.path(number))
            _flush(self.directory)  # The rename survives a power failure only then.
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._prune()

    def check_readable(self, so_far: str = "") -> None:
        """Checks that no checkpoint was found corrupt: call it if none can be read."""
        if self._corrupt:
            raise CorruptCheckpointError(
                f"no checkpoint in {self.directory} can be read to its end{so_far}: remove "
                "that directory to start from scratch"
            )

    def _prune(self) -> None:
        for number in expired(self._numbers(), self._keep, self._corrupt):
            # Renamed first, since a checkpoint that is half removed could be found.
            gone = self.directory / f"{_UNFINISHED}{name_of(number)}"
            with contextlib.suppress(OSError):
                os.rename(self.path(number), gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _numbers(self) -> list[int]:
        return numbers(os.listdir(self.directory))


def check(path: Path) -> None:
    """Checks that a checkpoint has all its files, and that they are unchanged.

    The CorruptCheckpointError says what is wrong.
    """
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        entries = [(name, entry["size"], entry["crc32"]) for name, entry in files]
    except FileNotFoundError:
        raise CorruptCheckpointError("it has no manifest") from None
    except (ValueError, TypeError, KeyError):
        raise CorruptCheckpointError("its manifest cannot be read") from None
    for name, size, checksum in entries:
        try:
            actual = (path / name).stat().st_size
        except FileNotFoundError:
            raise CorruptCheckpointError(f"{name} is missing") from None
        if actual != size:
            raise CorruptCheckpointError(
                f"{name} has {actual} bytes; it had {size} when it was written"
            )
        if checksum is not None and _checksum(path / name) != checksum:
            raise CorruptCheckpointError(f"{name} has changed since it was written")


def _seal(path: Path) -> None:
    files = []
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        _flush(file)
        size = file.stat().st_size
        checksum = _checksum(file) if size <= _LARGEST_SUMMED else None
        entry = {"size": size, "crc32": checksum}
        files.append((file.relative_to(path).as_posix(), entry))
    manifest = path / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1))
    _flush(manifest)
    # To flush a file does not flush its name, which its directory has.
    for directory in [path, *(each for each in path.rglob("*") if each.is_dir())]:
        _flush(directory)


def _checksum(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(directory: Path) -> IO[Any]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / _LOCK, "a")  # noqa: SIM115
    except OSError as error:
        raise CheckpointDirError(
            f"checkpoints cannot be written to {directory} ({error.strerror}): name "
            "another directory, which the chief and every ps can write to"
        ) from None
    # The kernel releases the lock when its process dies. A chief that is restarted may
    # still find the previous one exiting.
    deadline = time.monotonic() + _SECONDS_FOR_THE_LOCK
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                lock.close()
                raise CheckpointDirError(
                    f"another process writes checkpoints to {directory}: stop it, or "
                    "name another directory"
                ) from None
            time.sleep(0.1)
        else:
            return lock
