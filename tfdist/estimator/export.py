"""What an exported model takes and returns: `tf.estimator.export`."""

from tfdist.estimator.names import v2

ClassificationOutput = v2.export.ClassificationOutput
EvalOutput = v2.export.EvalOutput
ExportOutput = v2.export.ExportOutput
PredictOutput = v2.export.PredictOutput
RegressionOutput = v2.export.RegressionOutput
ServingInputReceiver = v2.export.ServingInputReceiver
TensorServingInputReceiver = v2.export.TensorServingInputReceiver
build_parsing_serving_input_receiver_fn = (
    v2.export.build_parsing_serving_input_receiver_fn
)
build_raw_serving_input_receiver_fn = v2.export.build_raw_serving_input_receiver_fn

__all__ = [
    "ClassificationOutput",
    "EvalOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "TensorServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]
