"""Where examples are in their files, and what is wrong with a file."""

import os
import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdist.data.array_file import array_file
from tfdist.data.errors import SourceError
from tfdist.data.record_index import record_offsets
from tfdist.data.source_files import Stamp

from ..support.raising import raises

DTYPES = ["bool", "uint8", "int64", "float16", "float32", "complex64"]


def write_records(path, lengths):
    """Writes records of zeros; nobody looks at their checksums here."""
    frames = (struct.pack("<Q4x", n) + bytes(n + 4) for n in lengths)
    path.write_bytes(b"".join(frames))
    return path


@given(lengths=st.lists(st.integers(0, 300), max_size=20))
def test_each_record_is_found(tmp_path_factory, lengths):
    path = write_records(tmp_path_factory.mktemp("records") / "r", lengths)
    ends = np.cumsum([n + 16 for n in lengths], dtype=np.int64)
    np.testing.assert_array_equal(
        record_offsets(Stamp.of(path)), ends - np.array(lengths, np.int64) - 16
    )


@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=9), data=st.data())
def test_a_truncated_file_is_not_read(tmp_path_factory, lengths, data):
    path = write_records(tmp_path_factory.mktemp("records") / "r", lengths)
    keep = data.draw(st.integers(1, lengths[-1] + 15)) + sum(lengths[:-1])
    os.truncate(path, keep + 16 * (len(lengths) - 1))
    with pytest.raises(SourceError, match=f"record {len(lengths) - 1} at byte"):
        record_offsets(Stamp.of(path))


def test_a_compressed_file_is_named(tmp_path):
    path = tmp_path / "r.gz"
    path.write_bytes(b"\x1f\x8b" + bytes(30))
    with raises(SourceError, "r.gz", "compressed"):
        record_offsets(Stamp.of(path))


@pytest.mark.parametrize("length", [376, 40_056])
def test_a_length_that_looks_compressed_is_one(tmp_path, length):
    path = tmp_path / "r"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(bytes(length))
    assert record_offsets(Stamp.of(path)).tolist() == [0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_open", [False, True], ids=["path", "memmap"])
def test_rows_are_where_the_file_has_them(tmp_path, dtype, is_open):
    array = np.arange(60).reshape(10, 2, 3).astype(dtype)
    np.save(tmp_path / "x.npy", array)
    path = tmp_path / "x.npy"
    found = array_file(np.load(path, mmap_mode="r") if is_open else path)
    elements = np.fromfile(found.stamp.path, found.dtype)
    rows = elements[found.offset : found.end].reshape(found.shape)
    np.testing.assert_array_equal(rows, array)


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros((4, 3), order="F"), "Fortran order"),
        (np.zeros((0, 3)), "at least one example"),
        (np.float32(3), "at least one example"),
        (np.array(["a", "b"]), "elements of type <U1"),
        (np.zeros(3, ">f4"), "elements of type >f4"),
        (np.array([{}]), "no array whose rows can be read in place"),
    ],
    ids=["columns", "empty", "scalar", "text", "byte_order", "objects"],
)
def test_what_cannot_be_read_in_place(tmp_path, array, why):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(SourceError, match=rf"x\.npy .*{why}"):
        array_file(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("mode", "begin", "why"),
    [("r", 1, "Give the whole array"), ("c", 0, "opened with mmap_mode='c'")],
    ids=["a_part", "changes_stay_in_this_process"],
)
def test_what_a_map_of_a_file_may_not_be(tmp_path, mode, begin, why):
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    array = np.load(tmp_path / "x.npy", mmap_mode=mode)
    with pytest.raises(SourceError, match=why):
        array_file(array[begin:] if begin else array)


@pytest.mark.parametrize(
    ("path", "why"), [("gs://b/x.npy", "is a URL"), ("/tmp", "is a directory")]
)
def test_what_is_no_file(path, why):
    with pytest.raises(SourceError, match=f"{path} {why}"):
        Stamp.of(path)


def test_a_truncated_array(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    os.truncate(tmp_path / "x.npy", 150)
    with raises(SourceError, "x.npy", "no array"):
        array_file(tmp_path / "x.npy")


@pytest.mark.parametrize("name", ["x.npz", "x.csv"])
def test_another_format(tmp_path, name):
    (tmp_path / name).write_bytes(b"1,2")
    with raises(SourceError, ".npy file"):
        array_file(tmp_path / name)


def test_a_file_that_changes_is_named(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    stamp = Stamp.of(path)
    stamp.check()
    os.utime(path, ns=(0, stamp.modified + 1))
    with raises(SourceError, "x was written to"):
        stamp.check()
    path.write_bytes(b"abcd")
    with raises(SourceError, "4 bytes", "3 before"):
        stamp.check()
    path.unlink()
    with raises(SourceError, "opened", "No such file"):
        stamp.check()
