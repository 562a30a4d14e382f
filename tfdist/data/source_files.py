"""The files of a source, their recorded state, and errors about a lease's files."""

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tfdist.data.errors import SourceError


@dataclass(frozen=True)
class Stamp:
    """A file, and its state, which tells whether it has changed.

    Attributes:
        path: The absolute path.
        size: In bytes.
        modified: The time of the last write, in nanoseconds.
    """

    path: str
    size: int
    modified: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> "Stamp":
        """Looks at a file."""
        if "://" in os.fsdecode(path):
            raise SourceError(
                f"{os.fsdecode(path)} is a URL. A source needs a path that the chief and "
                "every worker see, such as one of a directory that all of them mount"
            )
        absolute = os.path.abspath(path)
        try:
            found = os.stat(absolute)
        except OSError as error:
            raise SourceError(
                f"{absolute} cannot be opened ({error.strerror}). A source needs a path "
                "that the chief and every worker see"
            ) from None
        if stat.S_ISDIR(found.st_mode):
            raise SourceError(f"{absolute} is a directory. A source needs its files")
        return cls(absolute, found.st_size, found.st_mtime_ns)

    def check(self) -> None:
        """Checks that the file has not changed."""
        now = Stamp.of(self.path)
        if now.size != self.size:
            changed = f"has {now.size:,} bytes, and had {self.size:,} before"
        elif now.modified != self.modified:
            changed = "was written to meanwhile"
        else:
            return
        raise SourceError(
            f"{self.path} {changed}, so its examples are no longer where its leases say. "
            "Make the dataset again once the file is complete, and leave it alone while "
            "training runs"
        )


_MOST_NAMES = 3


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source.

    Attributes:
        files: As they were when the source was opened.
        describe: Takes the arrays of some leases, and says what they stand for.
    """

    files: tuple[Stamp, ...]
    describe: Callable[..., str]

    @property
    def digest(self) -> str:
        """A digest that changes if a file is written again or changes its size."""
        told = [(each.size, each.modified) for each in self.files]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]

    def check(self) -> None:
        """Checks that the files have not changed."""
        for each in self.files:
            each.check()

    def what_changed(self, reason: str) -> str:
        """Returns the change of the files, or "" if something else failed.

        The reason names a file that a worker alone cannot open.
        """
        try:
            self.check()
        except SourceError as error:
            return str(error)
        named = [each.path for each in self.files if each.path in reason]
        return f"a worker has not the chief's {named[0]}" if named else ""


def of_examples(files: Sequence[Stamp]) -> SourceFiles:
    """Returns the files of arrays, whose leases begin with the numbers of examples.

    >>> of_examples([Stamp("/x.npy", 9, 0)]).describe(np.array([3, 9, 5]))
    '3 examples from 3 to 9 of /x.npy'
    """

    def describe(indices: np.ndarray, *_: object) -> str:
        names = _names([each.path for each in files]) or "arrays in memory"
        return f"{_range(indices, 'example')} of {names}"

    return SourceFiles(tuple(files), describe)


def of_records(files: Sequence[Stamp]) -> SourceFiles:
    """Returns the files of records, whose leases are their files and places.

    >>> names = np.array([b"/a", b"/a"], object)
    >>> of_records([]).describe(names, np.array([16, 96]))
    '2 records from byte 16 to byte 96 of /a'
    """

    def describe(names: np.ndarray, offsets: np.ndarray) -> str:
        paths = sorted({name.decode() for name in names})
        text = _range(offsets, "record", "byte ")
        return f"{text} of {_names(paths)}"

    return SourceFiles(tuple(files), describe)


def _range(numbers: np.ndarray, noun: str, unit: str = "") -> str:
    count, first, last = len(numbers), int(np.min(numbers)), int(np.max(numbers))
    if count == 1:
        return f"{noun} {first}" if not unit else f"the {noun} at {unit}{first}"
    return f"{count} {noun}s from {unit}{first} to {unit}{last}"


def _names(paths: Sequence[str]) -> str:
    shown, more = list(paths[:_MOST_NAMES]), len(paths) - _MOST_NAMES
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
