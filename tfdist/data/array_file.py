"""Positions of an array's rows in a file."""

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.data.errors import SourceError
from tfdist.data.source_files import Stamp

_KINDS = "biufc"  # Booleans, integers and floating-point numbers.


@dataclass(frozen=True)
class ArrayFile:
    """An array in a file, row after row.

    Attributes:
        stamp: The file.
        offset: The beginning of the first row, in elements.
        shape: The array's shape; its first axis counts the examples.
        dtype: The array's dtype.
    """

    stamp: Stamp
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def end(self) -> int:
        """The end of the last row, in elements."""
        return self.offset + int(np.prod(self.shape))


def array_file(source: Any) -> ArrayFile:
    """Returns where the array of a `.npy` file, or of a whole `numpy.memmap`, is."""
    if isinstance(source, np.memmap):
        return _of_memmap(source, str(source.filename))
    path = os.fspath(source)
    stamp = Stamp.of(path)
    if not path.endswith(".npy"):
        raise SourceError(
            f"an array to lease must be a .npy file; received {stamp.path}. Write each "
            "array with numpy.save to a path of its own; for TFRecord files there is "
            "tfdist.data.from_files"
        )
    try:
        return _of_memmap(np.load(path, mmap_mode="r"), path)
    except SourceError:
        raise
    except ValueError as error:
        raise SourceError(
            f"{stamp.path} holds no array whose rows can be read in place: {error}. "
            "Write it again with numpy.save"
        ) from None


def _of_memmap(array: np.memmap[Any, Any], path: str) -> ArrayFile:
    stamp = Stamp.of(path)
    # The base of a whole array is the map, and that of a part is another array.
    if not isinstance(array.base, mmap.mmap):
        raise SourceError(
            f"a part of the array in {stamp.path} was given. Give the whole array, and "
            "choose its examples with skip, take or shard"
        )
    if array.mode == "c":
        raise SourceError(
            f"the array in {stamp.path} was opened with mmap_mode='c', so that changes stay "
            "in this process, and workers would read the file. Open it with 'r', or write "
            "the changes with 'r+'"
        )
    dtype, wrong = array.dtype, ""
    if dtype.kind not in _KINDS or not dtype.isnative:
        wrong = f"elements of type {dtype}; numbers in this machine's byte order can be"
    elif not array.flags.c_contiguous:
        wrong = "columns in one piece (Fortran order); rows in one piece can be"
    elif not array.shape or not array.size:
        wrong = f"the shape {array.shape}; at least one example is needed, and can be"
    elif array.offset % dtype.itemsize:
        wrong = (
            f"its rows at byte {array.offset}; a multiple of {dtype.itemsize} can be"
        )
    if wrong:
        raise SourceError(f"{stamp.path} has {wrong} read in place")
    return ArrayFile(stamp, array.offset // dtype.itemsize, array.shape, dtype)
