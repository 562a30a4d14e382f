"""Losses and metrics of Keras that replicas may compute from parts of the batch.

Whatever is not listed is computed on the whole batch, which is right for any function and
costs the bytes of its outputs.
"""

from typing import Any

import keras

from tfdist import _tf
from tfdist._support.types import Nest

# `Circle` is not here: it compares each example with all others. Nor are `Dice` and
# `Tversky`, which divide sums over the batch.
_LOSSES = """
    BinaryCrossentropy BinaryFocalCrossentropy CTC CategoricalCrossentropy
    CategoricalFocalCrossentropy CategoricalGeneralizedCrossEntropy CategoricalHinge
    CosineSimilarity Hinge Huber KLDivergence LogCosh MeanAbsoluteError
    MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson
    SparseCategoricalCrossentropy SquaredHinge
    binary_crossentropy binary_focal_crossentropy categorical_crossentropy
    categorical_focal_crossentropy categorical_generalized_cross_entropy
    categorical_hinge cosine_similarity ctc hinge huber kl_divergence log_cosh
    mean_absolute_error mean_absolute_percentage_error mean_squared_error
    mean_squared_logarithmic_error poisson sparse_categorical_crossentropy squared_hinge
"""
# Their states are sums over examples.
_METRICS = """
    AUC Accuracy BinaryAccuracy BinaryCrossentropy BinaryIoU CategoricalAccuracy
    CategoricalCrossentropy CategoricalHinge CosineSimilarity F1Score FBetaScore
    FalseNegatives FalsePositives Hinge IoU KLDivergence LogCoshError MeanAbsoluteError
    MeanAbsolutePercentageError MeanIoU MeanSquaredError MeanSquaredLogarithmicError
    OneHotIoU OneHotMeanIoU Poisson Precision PrecisionAtRecall R2Score Recall
    RecallAtPrecision RootMeanSquaredError SensitivityAtSpecificity
    SparseCategoricalAccuracy SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy
    SpecificityAtSensitivity SquaredHinge TopKCategoricalAccuracy TrueNegatives
    TruePositives
    binary_accuracy categorical_accuracy sparse_categorical_accuracy
    sparse_top_k_categorical_accuracy top_k_categorical_accuracy
"""


def is_separable(loss_or_metric: keras.Loss | keras.Metric, y_pred: Nest) -> bool:
    """Returns True if a loss or metric of Keras's own separates over examples.

    Its value, or its state, for a batch then follows from sums over parts of the batch.

    Args:
        loss_or_metric: As resolved by `compile`.
        y_pred: The predictions. Where an example has a single number without an axis of
            its own, Keras's functions combine the last axis, which is the batch's.
    """
    rank = getattr(getattr(y_pred, "shape", None), "rank", None)
    if rank is None or rank < 2:
        return False
    if not _has_own_axis(loss_or_metric, rank) or _divides_by_weights(loss_or_metric):
        return False
    if function := _wrapped(loss_or_metric):
        return any(function is each for each in _OWN_FUNCTIONS)
    return type(loss_or_metric) in _OWN_CLASSES


def _wrapped(loss_or_metric: keras.Loss | keras.Metric) -> Any:
    """Returns the function that was passed to `compile` in place of an object."""
    if type(loss_or_metric) is keras.metrics.MeanMetricWrapper:
        return _tf.metric_function(loss_or_metric)
    return loss_or_metric.fn if type(loss_or_metric) is _WRAPPER else None


def _divides_by_weights(loss_or_metric: keras.Loss | keras.Metric) -> bool:
    """Returns True if a loss divides by the sum of the weights, a ratio of two sums."""
    return getattr(loss_or_metric, "reduction", None) == "mean_with_sample_weight"


def _has_own_axis(loss_or_metric: keras.Loss | keras.Metric, rank: int) -> bool:
    """Returns True if an `axis` of a loss is not that of the examples."""
    axis = _tf.function_options(loss_or_metric).get("axis")
    return not isinstance(axis, int) or axis % rank != 0


# The base of Keras's own losses, which has no public name.
_WRAPPER = keras.losses.MeanSquaredError.__base__


def _of(module: Any, names: str) -> list[Any]:
    return [getattr(module, name) for name in names.split() if hasattr(module, name)]


_OWN = _of(keras.losses, _LOSSES) + _of(keras.metrics, _METRICS)
_OWN_CLASSES = frozenset(each for each in _OWN if isinstance(each, type))
_OWN_FUNCTIONS = [each for each in _OWN if not isinstance(each, type)]
