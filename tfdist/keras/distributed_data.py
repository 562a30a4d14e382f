"""Distributed datasets as data for `fit`, which divides batches itself."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf

DatasetFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class DistributesForFit:
    """Mixin for strategies: what they distribute can be passed to `fit`.

    TensorFlow's distributed datasets can only be iterated in a custom loop. Datasets of
    such a strategy have an attribute `for_fit`, which returns the data for Keras.
    """

    @property
    def input_contexts(self) -> Sequence[tf.distribute.InputContext]:
        """The input pipelines that this process makes for `fit` by a function."""
        return [tf.distribute.InputContext()]

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any = None
    ) -> Any:
        """As in TensorFlow, except that `fit` divides the dataset's batches itself."""
        parent: Any = super()
        distributed = parent.experimental_distribute_dataset(dataset, options)
        # With a single device, some strategies return the dataset as it is.
        if distributed is not dataset:
            distributed.for_fit = lambda: dataset
        return distributed

    def distribute_datasets_from_function(
        self, dataset_fn: DatasetFn, options: Any = None
    ) -> Any:
        """As in TensorFlow, except that `fit` calls the function itself."""
        parent: Any = super()
        distributed = parent.distribute_datasets_from_function(dataset_fn, options)
        distributed.for_fit = functools.partial(InputPipelines.of, dataset_fn, self)
        return distributed


class InputPipelines(_tf.SameDataset):
    """Datasets that a function made, as one: it yields a batch of each in turn.

    One that ends is left out from then on.
    """

    def __init__(self, pipelines: Sequence[tf.data.Dataset]) -> None:
        self.pipelines = tuple(pipelines)
        super().__init__(_in_turn(self.pipelines))

    @classmethod
    def of(cls, dataset_fn: DatasetFn, strategy: DistributesForFit) -> "InputPipelines":
        """Returns the datasets that a function makes for a strategy."""
        pipelines = [dataset_fn(context) for context in strategy.input_contexts]
        for each in pipelines:
            if not isinstance(each, tf.data.Dataset):
                raise TypeError(
                    "the function of distribute_datasets_from_function must return a "
                    f"tf.data.Dataset of batches; received {type(each).__name__}"
                )
        return cls(pipelines)

    # Keras adds these two where `class_weight` is given.

    def map(self, *args: object, **kwargs: object) -> "InputPipelines":
        """Maps the elements of each pipeline."""
        return InputPipelines([each.map(*args, **kwargs) for each in self.pipelines])

    def prefetch(self, *args: object, **kwargs: object) -> "InputPipelines":
        """Makes each pipeline prefetch."""
        return InputPipelines([p.prefetch(*args, **kwargs) for p in self.pipelines])


def undistributed(value: Any) -> Any:
    """Returns the data for `fit` of what a strategy has distributed; else the value."""
    return value.for_fit() if hasattr(value, "for_fit") else value


def _in_turn(pipelines: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
    if len(pipelines) == 1:
        return pipelines[0]
    turns = tf.data.Dataset.range(len(pipelines)).repeat()
    batches = tf.data.Dataset.choose_from_datasets(
        pipelines, turns, stop_on_empty_dataset=False
    )
    sizes = [int(each.cardinality()) for each in pipelines]
    if min(sizes) < 0:
        return batches
    # TensorFlow does not add them up, and Keras takes a step more of unknown lengths.
    return batches.apply(tf.data.experimental.assert_cardinality(sum(sizes)))
