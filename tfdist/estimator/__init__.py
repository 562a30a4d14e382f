"""Estimators on TensorFlow 2.16 and newer.

    from tfdist import estimator

replaces `tf.estimator`, which TensorFlow 2.16 removed. It needs the extra
`estimator`: tensorflow-estimator 2.15.0 and tf_keras. `import tfdist` alone does
not import this package.
"""

from typing import Any

from tfdist._support import requires  # noqa: F401  The imports below would fail first.

# isort: split
from tfdist.estimator import experimental, export, v1
from tfdist.estimator.clusters import StrategyError
from tfdist.estimator.environment import ModelDirError
from tfdist.estimator.guards import Keras3Error
from tfdist.estimator.names import model_to_estimator
from tfdist.estimator.names import v2 as _v2
from tfdist.estimator.strategy import (
    MultiWorkerMirroredStrategy,
    ParameterServerStrategy,
)
from tfdist.estimator.versions import EstimatorImportError

__all__ = [
    "EstimatorImportError",
    "Keras3Error",
    "ModelDirError",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "StrategyError",
    "experimental",
    "export",
    "model_to_estimator",
    "v1",
]
# Its own names stay: tensorflow-estimator's are all of those that are not here yet.
_NAMES = {name: each for name, each in vars(_v2).items() if name not in globals()}
globals().update(_NAMES)
__all__ = sorted([*__all__, *_NAMES])

_ABSENT = {
    "tpu": "the TPU estimators need modules that TensorFlow 2.16 removed",
    "TPUEstimator": "the TPU estimators need modules that TensorFlow 2.16 removed",
    "BoostedTreesClassifier": "tensorflow-estimator 2.15 no longer has boosted trees",
    "BoostedTreesRegressor": "tensorflow-estimator 2.15 no longer has boosted trees",
    "BoostedTreesEstimator": "tensorflow-estimator 2.15 no longer has boosted trees",
    "inputs": "it is part of TF1: use tfdist.estimator.v1.inputs, or a tf.data.Dataset",
}


# Any, and not NoReturn: a type checker asks it for the names above, too.
def __getattr__(name: str) -> Any:
    why = _ABSENT.get(name, "tf.estimator of TensorFlow 2.15 has no such name either")
    raise AttributeError(f"tfdist.estimator has no {name!r}: {why}")
