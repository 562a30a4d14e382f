"""What docs/data.md says of formats that TensorFlow does not read."""

import collections.abc

import numpy as np
import pytest
from documents import blocks

from tfdist.data import SourceError, from_source

ROWS = 23


class Examples:
    """Random access to examples, without an end that `iter` would find."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return np.float32(index)


class Listed(Examples, collections.abc.Sequence):
    """As `tfds.data_source` is."""


@pytest.mark.parametrize("kind", [Examples, Listed])
@pytest.mark.parametrize(
    "inside", [lambda x: x, lambda x: (x, np.arange(ROWS)), lambda x: {"a": [x]}]
)
def test_examples_that_only_python_can_read_are_refused(kind, inside):
    with pytest.raises(SourceError, match=rf"received {kind.__name__}, .*PyDataset"):
        from_source(inside(kind()))


def run(word):
    """Runs the block of the page that has a word, and returns its names."""
    (code,) = (
        block.code
        for block in blocks("python")
        if block.page.name == "data.md"
        and "test_data_formats" in block.mark
        and word in block.code
    )
    names: dict[str, object] = {}
    exec(code, names)
    return names


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    table = arrow.table({"x": np.arange(ROWS) / 2, "y": np.arange(ROWS)})
    arrow.parquet = pytest.importorskip("pyarrow.parquet")
    arrow.parquet.write_table(table, "train.parquet", row_group_size=5)


def test_parquet_as_arrays(parquet):
    data = run("open_memmap")["data"]
    seen = np.concatenate([np.stack(batch, 1) for batch in data])
    np.testing.assert_array_equal(np.sort(seen[:, 1]), range(ROWS))
    np.testing.assert_array_equal(seen[:, 0], seen[:, 1] / 2)


def test_parquet_by_row_groups(parquet):
    data = run("PyDataset")["RowGroups"]("train.parquet")
    assert [len(y) for _, y in (data[i] for i in range(len(data)))] == [5, 5, 5, 5, 3]
    np.testing.assert_array_equal(np.concatenate([y for _, y in data]), range(ROWS))


def test_the_records_of_tfds(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Tensor(shape=(4,), dtype=np.float32), "label": np.int64}
    )
    rows = [{"image": np.full(4, i, np.float32), "label": i} for i in range(ROWS)]
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        name="numbers",
        version="1.0.0",
        data_dir=tmp_path,
        split_datasets={"train": list(enumerate(rows))},
        features=features,
    )
    monkeypatch.setattr(tfds, "builder", {"mnist": builder}.__getitem__)
    data = run("deserialize_example")["data"]
    labels = np.concatenate([label for _, label in data])
    np.testing.assert_array_equal(np.sort(labels), range(ROWS))
