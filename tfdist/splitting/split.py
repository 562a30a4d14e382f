"""Into how many parts a layer's matrix is split, and along what. Pure."""

from dataclasses import dataclass

COLUMNS, ROWS = "columns", "rows"


class SplitError(ValueError):
    """A layer that cannot be split so: the message says what to change."""


@dataclass(frozen=True)
class Split:
    """How a layer is split.

    Attributes:
        parts: The number of parts, at least 2.
        by: `"columns"` or `"rows"` of its matrix (of an embedding: of the numbers of each
            row, or of the table's rows); empty for what moves fewer bytes.

    Raises:
        SplitError: If it is none of these.
    """

    parts: int
    by: str = ""

    def __post_init__(self) -> None:
        parts = self.parts
        if isinstance(parts, bool) or not isinstance(parts, int) or parts < 2:
            raise SplitError(
                f"a layer is split into 2 parts or more; received {parts!r}. Leave a "
                "layer out to keep it whole"
            )
        if self.by not in ("", COLUMNS, ROWS):
            raise SplitError(
                f"a layer is split by {COLUMNS!r} or {ROWS!r}, or by what moves fewer "
                f"bytes if that is left out; received {self.by!r}"
            )


def resolved(
    split: Split,
    rows: int,
    columns: int,
    is_lookup: bool = False,
    what: str = "the layer",
) -> Split:
    """Returns a split that says along what.

    With P parts, of an input and an output of x and y bytes, the parts that are elsewhere
    receive and return, forward and as much again backward:

    - by columns: `(P - 1) x + (P - 1) / P y`
    - by rows: `(P - 1) / P x + (P - 1) y`; of a lookup, all of x

    so that columns are better where there are more of them than rows, and always for a
    lookup.

    >>> resolved(Split(2), rows=64, columns=256).by, resolved(Split(2), 256, 64).by
    ('columns', 'rows')

    Args:
        split: The split.
        rows: The rows of the matrix: what the layer takes, or the rows of a table.
        columns: Its columns: what the layer gives.
        is_lookup: Whether rows are looked up, as in an embedding.
        what: What is split, for the message of an error.

    Raises:
        SplitError: If there are more parts than rows or columns.
    """
    lengths = {COLUMNS: columns, ROWS: rows}
    order = [COLUMNS, ROWS] if is_lookup or columns >= rows else [ROWS, COLUMNS]
    possible = [by for by in order if lengths[by] >= split.parts]
    if split.by not in ("", *possible) or not possible:
        raise SplitError(
            f"{what} has {rows} rows and {columns} columns, and a part needs one of them; "
            f"received {split}. Take at most "
            f"{lengths.get(split.by) or max(rows, columns)} parts"
        )
    return Split(split.parts, split.by or possible[0])


def ranges(length: int, parts: int) -> list[tuple[int, int]]:
    """Returns the first and the end of each part; the first parts may have one more.

    >>> ranges(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    size, left = divmod(length, parts)
    starts = [each * size + min(each, left) for each in range(parts + 1)]
    return list(zip(starts[:-1], starts[1:], strict=True))
