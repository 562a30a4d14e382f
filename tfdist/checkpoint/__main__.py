"""Checks whether the newest checkpoint of each `fit` can be read.

    python -m tfdist.checkpoint DIRECTORY

The exit status is 0 if all of them can be read, 1 if one cannot, 2 if there is none.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tf_config.commands import as_typed
from tfdist.checkpoint.store import CorruptCheckpointError, check, name_of, numbers


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    usage = as_typed(__doc__ or "", argv[0])
    if argv[1:] == ["--help"]:
        print(usage)
        return 0
    if len(argv) != 2 or argv[1].startswith("-"):
        print(f"name one directory; received {argv[1:]}\n{usage}", file=sys.stderr)
        return 2
    directory = Path(argv[1])
    # A directory of checkpoints may be given, or the parent of those of several `fit`s.
    newest = [_newest(each) for each in (directory, *sorted(directory.glob("fit-*")))]
    found = [path for path in newest if path is not None]
    if not found:
        print(f"there is no checkpoint in {directory}", file=sys.stderr)
        return 2
    return max(map(_say, found))


def _newest(directory: Path) -> Path | None:
    if not directory.is_dir():
        return None
    found = numbers(path.name for path in directory.iterdir())
    return directory / name_of(found[0]) if found else None


def _say(path: Path) -> int:
    try:
        check(path)
    except (CorruptCheckpointError, OSError) as error:
        print(f"{path} cannot be read: {error}")
        return 1
    print(f"{path} can be read")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
