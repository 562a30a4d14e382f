"""The fence: every private symbol of TensorFlow and Keras that tfdist imports.

docs/private-api.md says why each is needed, which public way was tried, and with which
versions. Only this package imports from `tensorflow.python` and `keras.src`, with one
exception: `estimator/_tf.py`, for what needs tensorflow-estimator.
"""

from tfdist._support import requires  # noqa: F401  The imports below would fail first.

# isort: split
# Some are used as they are; docs/private-api.md has the reason for each.
from keras.src.backend.common.masking import get_keras_mask as mask_of
from keras.src.backend.common.masking import set_keras_mask as set_mask
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss as keras_loss
from keras.src.saving import saving_lib
from keras.src.trainers.compile_utils import CompileLoss, MetricsList
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    CollectiveAllReduceExtended,
)
from tensorflow.python.distribute.mirrored_strategy import MirroredExtended
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
    ParameterServerStrategyV2Extended,
)
from tensorflow.python.distribute.ps_values import CachingVariable
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.eager.record import could_possibly_record as could_be_recorded
from tensorflow.python.ops.variables import PartitionedVariable as V1PartitionedVariable
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

from tfdist._tf.datasets import (
    SameDataset,
    batch_size_of,
    bytes_of_arrays,
    captured_by,
    dataset_from_graph,
    dataset_graph,
    definitions_of,
    draws_at_random,
    inputs_of,
    iterator_state,
    of_this_cluster,
    parts_before_draws,
    random_seeds,
    restore_iterator,
    shard_files,
)
from tfdist._tf.execution import (
    abort_collectives,
    cancelable,
    check_peer,
    devices_of,
    disable_thread_spinning,
    executor_scope,
    give_workers_own_executors,
    leave_out_constant_folding,
    leave_out_graph_optimizers,
    mirrored,
    new_cancellation,
    new_executor,
    resource_type,
    set_handle_spec,
    use_own_peer_watch,
    wait_for_result,
)
from tfdist._tf.graphs import (
    add_control_inputs,
    add_functions,
    arguments_of,
    clone_of,
    function,
    function_graph,
    graphs_being_traced,
    graphs_called,
    has_custom_gradient,
    is_compiled,
    keep_functions,
    look_up_within_branches,
    retrace_where_differs,
    scratch_graph,
    waiting_for,
)
from tfdist._tf.keras_objects import (
    call_node,
    compiled_loss,
    count_loss,
    creating_now,
    flat_inputs,
    flatten_layers,
    function_options,
    functional_of,
    global_seed_generator,
    global_seed_generator_kept,
    keeping_losses,
    losses_of_call,
    metric_function,
    nodes_of,
    renew_index,
    seeded,
    seeding,
    set_global_seed_generator,
    set_value,
    trainable_variables_of,
    value_of,
    variables_to_initialize,
)
from tfdist._tf.workers import (
    NOT_HERE_YET,
    check_scheduled,
    connect_to_workers,
    has_run,
    observe_workers,
    of_this_worker,
    recover_workers_one_by_one,
    run_on_devices,
    run_on_workers,
    values_per_worker,
    was_lost,
)
