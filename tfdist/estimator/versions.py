"""The versions of tensorflow-estimator and tf_keras that fit TensorFlow.

This module imports none of them, so that it can report what is missing.
"""

from collections.abc import Mapping

from tfdist._support.errors import Error

ESTIMATOR = "2.15.0"
_EXTRA = "pip install 'tensorflow-estimator==2.15.0' tf_keras (the extra `estimator`)"


class EstimatorImportError(Error, ImportError):
    """A package that the Estimator needs is missing, or has the wrong version."""


def check(tensorflow: str, installed: Mapping[str, str | None]) -> None:
    """Checks the versions of the packages that the Estimator needs; None: not installed."""
    for name, version in installed.items():
        if version is None:
            raise EstimatorImportError(
                f"tfdist.estimator needs {name}, which is not installed: {_EXTRA}"
            )
    estimator, keras = installed["tensorflow-estimator"], installed["tf_keras"]
    assert estimator is not None
    assert keras is not None
    if _numbers(estimator) != _numbers(ESTIMATOR):
        raise EstimatorImportError(
            f"tfdist.estimator needs tensorflow-estimator {ESTIMATOR}, the last release; "
            f"version {estimator} is installed: {_EXTRA}"
        )
    # tf_keras has the minor versions of TensorFlow, and each fits only its own.
    if _numbers(keras) != _numbers(tensorflow):
        major, minor = _numbers(tensorflow)
        raise EstimatorImportError(
            f"tfdist.estimator needs the tf_keras of TensorFlow {tensorflow}; version "
            f"{keras} is installed: pip install 'tf_keras~={major}.{minor}.0'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".")[:2])
