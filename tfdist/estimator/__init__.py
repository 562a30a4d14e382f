"""Estimators on TensorFlow 2.16 and newer.

    from tfdist import estimator

replaces `tf.estimator`, which TensorFlow 2.16 removed. It needs the extra
`tfdist[estimator]`: tensorflow-estimator 2.15.0 and tf_keras. `import tfdist` alone does
not import this package.
"""

from typing import NoReturn

from tfdist import _requires  # noqa: F401  The imports below would fail first.

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

BaselineClassifier = _v2.BaselineClassifier
BaselineEstimator = _v2.BaselineEstimator
BaselineRegressor = _v2.BaselineRegressor
BestExporter = _v2.BestExporter
BinaryClassHead = _v2.BinaryClassHead
CheckpointSaverHook = _v2.CheckpointSaverHook
CheckpointSaverListener = _v2.CheckpointSaverListener
DNNClassifier = _v2.DNNClassifier
DNNEstimator = _v2.DNNEstimator
DNNLinearCombinedClassifier = _v2.DNNLinearCombinedClassifier
DNNLinearCombinedEstimator = _v2.DNNLinearCombinedEstimator
DNNLinearCombinedRegressor = _v2.DNNLinearCombinedRegressor
DNNRegressor = _v2.DNNRegressor
Estimator = _v2.Estimator
EstimatorSpec = _v2.EstimatorSpec
EvalSpec = _v2.EvalSpec
Exporter = _v2.Exporter
FeedFnHook = _v2.FeedFnHook
FinalExporter = _v2.FinalExporter
FinalOpsHook = _v2.FinalOpsHook
GlobalStepWaiterHook = _v2.GlobalStepWaiterHook
Head = _v2.Head
LatestExporter = _v2.LatestExporter
LinearClassifier = _v2.LinearClassifier
LinearEstimator = _v2.LinearEstimator
LinearRegressor = _v2.LinearRegressor
LoggingTensorHook = _v2.LoggingTensorHook
LogisticRegressionHead = _v2.LogisticRegressionHead
ModeKeys = _v2.ModeKeys
MultiClassHead = _v2.MultiClassHead
MultiHead = _v2.MultiHead
MultiLabelHead = _v2.MultiLabelHead
NanLossDuringTrainingError = _v2.NanLossDuringTrainingError
NanTensorHook = _v2.NanTensorHook
PoissonRegressionHead = _v2.PoissonRegressionHead
ProfilerHook = _v2.ProfilerHook
RegressionHead = _v2.RegressionHead
RunConfig = _v2.RunConfig
SecondOrStepTimer = _v2.SecondOrStepTimer
SessionRunArgs = _v2.SessionRunArgs
SessionRunContext = _v2.SessionRunContext
SessionRunHook = _v2.SessionRunHook
SessionRunValues = _v2.SessionRunValues
StepCounterHook = _v2.StepCounterHook
StopAtStepHook = _v2.StopAtStepHook
SummarySaverHook = _v2.SummarySaverHook
TrainSpec = _v2.TrainSpec
VocabInfo = _v2.VocabInfo
WarmStartSettings = _v2.WarmStartSettings
add_metrics = _v2.add_metrics
classifier_parse_example_spec = _v2.classifier_parse_example_spec
regressor_parse_example_spec = _v2.regressor_parse_example_spec
train_and_evaluate = _v2.train_and_evaluate

__all__ = [
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "BestExporter",
    "BinaryClassHead",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "DNNClassifier",
    "DNNEstimator",
    "DNNLinearCombinedClassifier",
    "DNNLinearCombinedEstimator",
    "DNNLinearCombinedRegressor",
    "DNNRegressor",
    "Estimator",
    "EstimatorImportError",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FeedFnHook",
    "FinalExporter",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "Head",
    "Keras3Error",
    "LatestExporter",
    "LinearClassifier",
    "LinearEstimator",
    "LinearRegressor",
    "LoggingTensorHook",
    "LogisticRegressionHead",
    "ModeKeys",
    "ModelDirError",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "MultiWorkerMirroredStrategy",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ParameterServerStrategy",
    "PoissonRegressionHead",
    "ProfilerHook",
    "RegressionHead",
    "RunConfig",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "StrategyError",
    "SummarySaverHook",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "add_metrics",
    "classifier_parse_example_spec",
    "experimental",
    "export",
    "model_to_estimator",
    "regressor_parse_example_spec",
    "train_and_evaluate",
    "v1",
]

_ABSENT = {
    "tpu": "the TPU estimators need modules that TensorFlow 2.16 removed",
    "TPUEstimator": "the TPU estimators need modules that TensorFlow 2.16 removed",
    "BoostedTreesClassifier": "tensorflow-estimator 2.15 no longer has boosted trees",
    "BoostedTreesRegressor": "tensorflow-estimator 2.15 no longer has boosted trees",
    "BoostedTreesEstimator": "tensorflow-estimator 2.15 no longer has boosted trees",
    "inputs": "it is part of TF1: use tfdist.estimator.v1.inputs, or a tf.data.Dataset",
}


def __getattr__(name: str) -> NoReturn:
    why = _ABSENT.get(name, "tf.estimator of TensorFlow 2.15 has no such name either")
    raise AttributeError(f"tfdist.estimator has no {name!r}: {why}")
