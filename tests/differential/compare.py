"""Says where two trained programs differ. Pure, but for NumPy."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

TOLERANCE = 2e-4
"""Of the largest number of each array."""

NOISE = 1e-6
"""What rounding leaves of a sum that is zero, such as the gradient of a useless bias."""


def differences(ours: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    """Returns a line for each array that differs, or that only one of the two has."""
    return [
        *(f"{name}: tfdist alone has it" for name in ours if name not in plain),
        *(f"{name}: one process alone has it" for name in plain if name not in ours),
        *(
            f"{name}: {what}"
            for name in ours
            if name in plain
            for what in _difference(np.asarray(ours[name]), np.asarray(plain[name]))
        ),
    ]


def _difference(ours: np.ndarray, plain: np.ndarray) -> Iterator[str]:
    if ours.shape != plain.shape:
        yield f"shape {ours.shape}, not {plain.shape}"
    elif ours.dtype != plain.dtype:
        yield f"dtype {ours.dtype}, not {plain.dtype}"
    elif not np.issubdtype(plain.dtype, np.inexact):
        if not np.array_equal(ours, plain):
            yield f"{_short(ours)}, not {_short(plain)}"
    elif (np.isfinite(ours) != np.isfinite(plain)).any():
        yield f"{_short(ours)}, not {_short(plain)}"
    elif plain.size:
        finite = np.isfinite(plain)
        error = np.abs(ours - plain, where=finite, out=np.zeros_like(plain)).max()
        largest = np.abs(plain, where=finite, out=np.zeros_like(plain)).max()
        if error > TOLERANCE * largest + NOISE:
            yield f"differs by {error:.3g}, of at most {largest:.3g}"


def _short(array: np.ndarray) -> str:
    return np.array2string(array.ravel()[:5], precision=4)
