"""Early stopping, recurrent networks and other helpers: `tf.estimator.experimental`."""

from tfdist.estimator.names import v2

InMemoryEvaluatorHook = v2.experimental.InMemoryEvaluatorHook
LinearSDCA = v2.experimental.LinearSDCA
RNNClassifier = v2.experimental.RNNClassifier
RNNEstimator = v2.experimental.RNNEstimator
build_raw_supervised_input_receiver_fn = (
    v2.experimental.build_raw_supervised_input_receiver_fn
)
call_logit_fn = v2.experimental.call_logit_fn
make_early_stopping_hook = v2.experimental.make_early_stopping_hook
make_stop_at_checkpoint_step_hook = v2.experimental.make_stop_at_checkpoint_step_hook
stop_if_higher_hook = v2.experimental.stop_if_higher_hook
stop_if_lower_hook = v2.experimental.stop_if_lower_hook
stop_if_no_decrease_hook = v2.experimental.stop_if_no_decrease_hook
stop_if_no_increase_hook = v2.experimental.stop_if_no_increase_hook

__all__ = [
    "InMemoryEvaluatorHook",
    "LinearSDCA",
    "RNNClassifier",
    "RNNEstimator",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
