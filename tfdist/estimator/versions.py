"""Which tensorflow-estimator goes with which TensorFlow. Nothing is imported here."""

from collections.abc import Mapping

ESTIMATOR = "2.15.0"
_EXTRA = "pip install 'tfdist[estimator]'"


class EstimatorImportError(ImportError):
    """What the Estimator needs is not installed, or not in the version it needs."""


def check(tensorflow: str, installed: Mapping[str, str | None]) -> None:
    """Checks that what the Estimator needs is installed.

    Args:
        tensorflow: The version of TensorFlow.
        installed: The versions of `tensorflow-estimator` and `tf_keras`; None for one
            that is not installed.

    Raises:
        EstimatorImportError: If one is missing, or has another version.
    """
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
            f"tfdist.estimator needs tensorflow-estimator {ESTIMATOR}, the last one; "
            f"version {estimator} is installed: {_EXTRA}"
        )
    if _numbers(keras) != _numbers(tensorflow):
        major, minor = _numbers(tensorflow)
        raise EstimatorImportError(
            f"tfdist.estimator needs the tf_keras of TensorFlow {tensorflow}; version "
            f"{keras} is installed: pip install 'tf_keras~={major}.{minor}.0'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".")[:2])
