"""What a file was like when a source opened it."""

import os
import stat
from dataclasses import dataclass

from tfdist.data.errors import SourceError


@dataclass(frozen=True)
class Stamp:
    """A file, and what tells whether it has changed.

    Attributes:
        path: The absolute path.
        size: In bytes.
        modified: When it was last written, in nanoseconds.
    """

    path: str
    size: int
    modified: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> "Stamp":
        """Looks at a file.

        Raises:
            SourceError: If there is none.
        """
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
        """Checks that the file is what it was.

        Raises:
            SourceError: If it has vanished or changed.
        """
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
