"""Exports that build on each other: which there are, what each needs, which may go.

An export is a folder with a manifest. A full one has all rows; a delta has the rows that
training has touched since its parent, and the ids that have lost theirs. Pure.
"""

import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tfdist._support.errors import Error

MANIFEST = "manifest.json"
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(s|min|h)")
_COPY = "If it was copied, copy it again: the folder is complete before it has its name"
# Whichever a byte that has changed in an archive leads to.
_READ_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
_FOLDER = re.compile(r"export-\d{6}")


@dataclass(frozen=True)
class Export:
    """An export, as its manifest has it.

    Attributes:
        number: From 1.
        parent: The number of the export that a delta builds on; None of a full one.
        tables: The number of rows that each layer has here, and the number of ids that
            were removed, by the path of the layer.
    """

    number: int
    parent: int | None
    tables: Mapping[str, Mapping[str, int]]

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"export-{self.number:06d}"


class ChainError(Error, ValueError):
    """An export is missing, or none is there."""


def period_of(every: str) -> float | None:
    """Returns the seconds between two exports, or None for one at the end of each epoch.

    >>> period_of("10min"), period_of("epoch")
    (600.0, None)

    Raises:
        ValueError: If it is neither.
    """
    if every == "epoch":
        return None
    found = _PERIOD.fullmatch(every) if isinstance(every, str) else None
    if found is None or not float(found[1]):
        raise ValueError(
            "every is 'epoch' or a time such as '90s', '10min' or '1h'; received "
            f"{every!r}"
        )
    return float(found[1]) * _UNITS[found[2]]


def written(directory: Path) -> dict[int, Export]:
    """Returns the exports of a directory, by their numbers."""
    folders = directory.iterdir() if directory.is_dir() else ()
    found = [_manifest(each) for each in folders if _FOLDER.fullmatch(each.name)]
    return {export.number: export for export in found}


def _manifest(folder: Path) -> Export:
    try:
        return Export(**json.loads((folder / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ChainError(f"{folder} has no whole manifest: {error}. {_COPY}") from error


def check_tables(
    directory: Path, exports: Mapping[int, Export], tables: Iterable[str]
) -> None:
    """Raises ChainError if the newest export is of other tables than these."""
    if exports and set(theirs := exports[max(exports)].tables) != set(tables):
        raise ChainError(
            f"{directory} has exports of {sorted(theirs)}, and this model's tables are "
            f"{sorted(tables)}: give each model a directory of its own, or give the "
            "layers the names that they had (name=)"
        )


def check_alone(directory: Path, exports: Mapping[int, Export], newest: int) -> None:
    """Raises ChainError if there is a newer export than a writer knows of, `newest`."""
    found = max(exports, default=0)
    if found > newest:
        raise ChainError(
            f"{directory} has export {found}, which this DeltaExport has not written: the "
            f"newest that it knows of is {newest}. Give each DeltaExport a directory of "
            "its own"
        )


def as_json(export: Export) -> str:
    """Returns the text of a manifest."""
    return json.dumps(asdict(export), indent=1) + "\n"


def chain_to(number: int, exports: Mapping[int, Export]) -> list[Export]:
    """Returns an export with all that it builds on, the full one first.

    Raises:
        ChainError: If one of them is missing.
    """
    chain: list[Export] = []
    needed: int | None = number
    while needed is not None:
        if needed not in exports:
            of = f", on which export {chain[-1].number} builds," if chain else ""
            raise ChainError(
                f"export {needed}{of} is not there; there are "
                f"{sorted(exports) or 'none'}. Take an export whose ancestors are there"
            )
        chain.append(exports[needed])
        needed = exports[needed].parent
    return chain[::-1]


def superfluous(exports: Mapping[int, Export], keep: int) -> list[Export]:
    """Returns the exports that none of the newest `keep` builds on."""
    needed = {
        each.number
        for number in sorted(exports)[-keep:]
        for each in chain_to(number, exports)
    }
    return [each for number, each in sorted(exports.items()) if number not in needed]


def read_export(
    directory: str | os.PathLike[str], number: int | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the ids and rows of an export with all that it builds on, by layer.

    It needs NumPy alone, and the memory of all rows.

    Args:
        directory: The directory of a `DeltaExport`.
        number: The number of the export; None for the newest.

    Raises:
        ValueError: If it is not there, or one that it builds on is not, or a file of one
            of them is missing or cut off.
    """
    there = written(Path(directory))
    if not there:
        raise ChainError(
            f"there is no export in {directory}: name that of a DeltaExport"
        )
    number = max(there) if number is None else number
    found: dict[str, dict[int, np.ndarray]] = {}
    for export in chain_to(number, there):
        folder = Path(directory) / export.folder
        for path, about in export.tables.items():
            rows = found.setdefault(path, {})
            removed, parts = _files(folder, about)
            # Removed first: an id may have lost its row and got another one since.
            for gone in removed.tolist():
                rows.pop(gone, None)
            for ids, values in parts:
                rows.update(zip(ids.tolist(), values, strict=True))
    return {
        path: (np.array(list(rows), np.int64), np.array(list(rows.values())))
        for path, rows in found.items()
    }


def _files(
    folder: Path, about: Mapping[str, int]
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Returns the ids that a table has lost, and its rows, in parts."""
    try:
        with np.load(folder / f"{about['index']}-removed.npz") as file:
            removed = file["ids"]
        parts = []
        for name in sorted(folder.glob(f"{about['index']}-[0-9]*.npz")):
            with np.load(name) as file:
                parts.append((file["ids"], file["rows"]))
    except _READ_ERRORS as error:
        raise ChainError(f"{folder} cannot be read: {error}. {_COPY}") from error
    rows = sum(len(ids) for ids, _ in parts)
    if rows != about["rows"] or len(removed) != about["removed"]:
        raise ChainError(
            f"{folder} has {rows} rows of a table that had {about['rows']}. {_COPY}"
        )
    return removed, parts
