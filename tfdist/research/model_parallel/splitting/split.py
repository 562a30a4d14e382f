"""Into how many parts a layer's matrix is split, and along what."""

from dataclasses import dataclass

from tfdist._support.errors import Error

COLUMNS, ROWS = "columns", "rows"


class SplitError(Error, ValueError):
    """A layer that cannot be split so: the message says what to change."""


@dataclass(frozen=True)
class Split:
    """A way to split a layer.

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


@dataclass(frozen=True)
class LayerMatrix:
    """The matrix of weights of a layer that can be split.

    Attributes:
        rows: Its rows: the numbers that the layer takes, or the rows of a table.
        columns: Its columns: the numbers that it gives.
        is_lookup: Whether rows are looked up, as in an embedding: each part takes the
            whole input.
        is_whole: Whether its output is there as a whole only, as after softmax. The
            parts of any other by columns can continue without being joined.

    Raises:
        SplitError: If it has no row or no column.
    """

    rows: int
    columns: int
    is_lookup: bool = False
    is_whole: bool = False

    def __post_init__(self) -> None:
        if not (self.rows >= 1 and self.columns >= 1):
            raise SplitError(
                "a matrix has at least one row and one column; received "
                f"{self.rows!r} rows and {self.columns!r} columns"
            )


def resolved(split: Split, matrix: LayerMatrix, what: str = "the layer") -> Split:
    """Returns a split that says along what.

    With P parts, of an input and an output of x and y bytes, the parts that are elsewhere
    receive and return, forward and as much again backward:

    - by columns: `(P - 1) x + (P - 1) / P y`
    - by rows: `(P - 1) / P x + (P - 1) y`; of a lookup, all of x

    so that columns are better where there are more of them than rows, and always for a
    lookup.

    >>> resolved(Split(2), LayerMatrix(rows=64, columns=256)).by
    'columns'
    >>> resolved(Split(2), LayerMatrix(rows=256, columns=64)).by
    'rows'

    Raises:
        SplitError: If there are more parts than rows or columns.
    """
    lengths = {COLUMNS: matrix.columns, ROWS: matrix.rows}
    has_columns = matrix.is_lookup or matrix.columns >= matrix.rows
    order = [COLUMNS, ROWS] if has_columns else [ROWS, COLUMNS]
    possible = [by for by in order if lengths[by] >= split.parts]
    if split.by not in ("", *possible) or not possible:
        raise SplitError(
            f"{what} has {matrix.rows} rows and {matrix.columns} columns, and a part "
            f"needs one of them; received {split}. Take at most "
            f"{lengths.get(split.by) or max(lengths.values())} parts"
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
