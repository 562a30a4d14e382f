"""The fence: every private symbol of TensorFlow and Keras that tfdist imports.

`_private_api.py` says why each is needed, which public way was tried, and with which
versions. Only this package imports from `tensorflow.python` and `keras.src`, with one
exception: `estimator/_tf.py`, for what needs tensorflow-estimator.
"""

from tfdist import _requires  # noqa: F401  The imports below would fail first.

# isort: split
from tfdist._tf.datasets import (
    batch_size_of,
    dataset_from_graph,
    dataset_graph,
    draws_at_random,
    is_of_this_cluster,
    iterator_state,
    random_seeds,
    restore_iterator,
    shard_files,
)
from tfdist._tf.devices import (
    devices_of,
    mirrored,
    resource_type,
)
from tfdist._tf.execution import (
    cancelable,
    executor_scope,
    give_workers_own_executors,
    leave_out_graph_optimizers,
    new_cancellation,
    new_executor,
    wait_for_result,
)
from tfdist._tf.graphs import (
    add_control_inputs,
    add_functions,
    function,
    function_graph,
    inputs_of_functions,
    keep_functions,
    retrace_where_differs,
    scratch_graph,
    waiting_for,
)
from tfdist._tf.keras_objects import (
    flatten_layers,
    function_options,
    metric_function,
    trainable_variables_of,
    value_of,
    variables_to_initialize,
)
from tfdist._tf.runtime import (
    abort_collectives,
    check_peer,
    disable_thread_spinning,
    use_own_peer_watch,
)
from tfdist._tf.seeds import (
    global_seed_generator,
    global_seed_generator_kept,
    seeded,
    set_global_seed_generator,
)
from tfdist._tf.symbols import (
    CachingVariable,
    CollectiveAllReduceExtended,
    CompileLoss,
    MetricsList,
    MirroredExtended,
    ParameterServerStrategyV2Extended,
    SaveableObject,
    SaveSpec,
    ShardedVariable,
    TFEpochIterator,
    V1PartitionedVariable,
    could_be_recorded,
    keras_loss,
    legacy_h5_format,
    saving_lib,
    watch,
)
from tfdist._tf.workers import (
    NOT_HERE_YET,
    connect_to_workers,
    observe_workers,
    of_this_worker,
    recover_workers_one_by_one,
    values_per_worker,
)

__all__ = [
    "CachingVariable",
    "CollectiveAllReduceExtended",
    "CompileLoss",
    "MetricsList",
    "MirroredExtended",
    "NOT_HERE_YET",
    "ParameterServerStrategyV2Extended",
    "SaveSpec",
    "SaveableObject",
    "ShardedVariable",
    "TFEpochIterator",
    "V1PartitionedVariable",
    "abort_collectives",
    "add_control_inputs",
    "add_functions",
    "batch_size_of",
    "cancelable",
    "check_peer",
    "connect_to_workers",
    "could_be_recorded",
    "dataset_from_graph",
    "dataset_graph",
    "devices_of",
    "disable_thread_spinning",
    "draws_at_random",
    "executor_scope",
    "flatten_layers",
    "function",
    "function_graph",
    "function_options",
    "give_workers_own_executors",
    "leave_out_graph_optimizers",
    "global_seed_generator",
    "global_seed_generator_kept",
    "inputs_of_functions",
    "is_of_this_cluster",
    "iterator_state",
    "keep_functions",
    "keras_loss",
    "legacy_h5_format",
    "metric_function",
    "mirrored",
    "new_cancellation",
    "new_executor",
    "observe_workers",
    "of_this_worker",
    "random_seeds",
    "recover_workers_one_by_one",
    "resource_type",
    "restore_iterator",
    "retrace_where_differs",
    "saving_lib",
    "scratch_graph",
    "seeded",
    "set_global_seed_generator",
    "shard_files",
    "trainable_variables_of",
    "use_own_peer_watch",
    "value_of",
    "values_per_worker",
    "variables_to_initialize",
    "wait_for_result",
    "waiting_for",
    "watch",
]
