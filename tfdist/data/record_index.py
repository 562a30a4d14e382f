"""Offsets of the records in a TFRecord file.

A record is its length in 8 bytes, a checksum of 4, that many bytes, and a checksum of 4:
https://www.tensorflow.org/tutorials/load_data/tfrecord. Only the lengths are read.
"""

import os
import struct

import numpy as np

from tfdist.data.errors import SourceError
from tfdist.data.source_files import Stamp

_HEADER = struct.Struct("<Q4x")
_FRAME = _HEADER.size + 4
# CRC-32C, bits reversed, and the number that TensorFlow adds to a rotated checksum.
_CASTAGNOLI, _MASK = 0x82F63B78, 0xA282EAD8
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def record_offsets(stamp: Stamp) -> np.ndarray:
    """Returns where each record of a file begins, in bytes: a vector of int64.

    Cost: a read of 12 bytes per record.

    Raises:
        SourceError: If the file is compressed, or does not end where a record does.
    """
    offsets, problem = records_before_a_problem(stamp)
    if problem:
        raise SourceError(problem)
    return offsets


def records_before_a_problem(stamp: Stamp) -> tuple[np.ndarray, str]:
    """Returns where each record of a file begins, and what is wrong behind the last one.

    A reader of the file from its beginning meets a problem only where it is. Costs as
    much as `record_offsets`.
    """
    offsets: list[int] = []
    problem, at = "", 0
    with open(stamp.path, "rb") as file:
        while at < stamp.size:
            file.seek(at)
            header = file.read(_HEADER.size)
            if not offsets and header[:2] in _COMPRESSED and not _is_record(header):
                problem = (
                    f"{stamp.path} is compressed, and must be read from its beginning. "
                    "Write it without compression, or use tf.data.TFRecordDataset"
                )
                break
            length = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else None
            if length is None or at + _FRAME + length > stamp.size:
                problem = (
                    f"{stamp.path} is truncated or no TFRecord file: record "
                    f"{len(offsets)} at byte {at:,} goes beyond its end at "
                    f"{stamp.size:,}. Write the file again, or leave it out"
                )
                break
            offsets.append(at)
            at += _FRAME + length
    return np.array(offsets, np.int64), problem


def _is_record(header: bytes) -> bool:
    """Returns True if the checksum is right; a length may look like compressed data."""
    crc = 0xFFFFFFFF
    for byte in header[:8]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
    return masked == int.from_bytes(header[8:12], "little")


def mean_length(path: str | os.PathLike[str], records: int = 32) -> float:
    """Returns the mean length of the first records of a file, in bytes; 0.0 without any."""
    lengths: list[int] = []
    with open(path, "rb") as file:
        while len(lengths) < records:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                break
            lengths.append(_HEADER.unpack(header)[0])
            file.seek(lengths[-1] + _FRAME - _HEADER.size, os.SEEK_CUR)
    return float(np.mean(lengths)) if lengths else 0.0
