"""Every private symbol and member of TensorFlow and Keras that tfdist uses.

docs/private-api.md is generated from it (`make docs-private-api`), and
tests/test_private_api.py compares it with the code and with the installed TensorFlow and
Keras.
"""

from typing import NamedTuple

VERSIONS = "TensorFlow 2.16.2 and 2.21.0, and Keras 3.12.0 and 3.15.1"


class Symbol(NamedTuple):
    """A private symbol that `tfdist/_tf/` or `tfdist/estimator/_tf.py` imports."""

    name: str
    why: str
    public: str
    """The nearest public way, and why it does not serve."""


class Member(NamedTuple):
    """A private member of a class of TensorFlow or Keras."""

    owner: str
    """The class that declares it, by the name it can be imported under."""
    name: str
    use: str
    """`overridden`, `called`, `read`, `set` or `patched`."""
    why: str
    public: str
    """The nearest public way, and why it does not serve."""


SYMBOLS: tuple[Symbol, ...] = (
    Symbol(
        "keras.src.backend.common.global_state",
        "Holds the generator that `keras.random` uses without a seed, and the variables "
        "of a stateless scope that Keras creates when the scope is left.",
        "`keras.utils.set_random_seed` replaces the generator, but cannot put the old "
        "one back.",
    ),
    Symbol(
        "keras.src.backend.common.masking.get_keras_mask",
        "The mask of a tensor, which goes with it to another device.",
        "`Layer.compute_mask` computes the mask of one layer's outputs.",
    ),
    Symbol(
        "tensorflow.python.distribute.coordinator.cluster_coordinator."
        "ClosureAbortedError",
        "Tells a function that failed from one whose worker was lost.",
        "None: `RemoteValue.get` raises either.",
    ),
    Symbol(
        "tensorflow.python.ops.handle_data_util.create_handle_data",
        "Says the shape of a variable that a worker keeps, where a step is traced: "
        "operations on its rows need it.",
        "None: only a captured variable brings it along, and each worker has its own.",
    ),
    Symbol(
        "tensorflow.python.ops.handle_data_util.set_handle_data",
        "As for `create_handle_data`.",
        "None.",
    ),
    Symbol(
        "keras.src.backend.common.masking.set_keras_mask",
        "As for `get_keras_mask`.",
        "None.",
    ),
    Symbol(
        "keras.src.backend.tensorflow.trainer.TFEpochIterator",
        "Reads the data of `fit`, `evaluate` and `predict`.",
        "None: `Model.fit` creates it.",
    ),
    Symbol(
        "keras.src.legacy.saving.legacy_h5_format",
        "Writes `.h5` files; every public way to save a model to one ends here.",
        "A program may have imported `keras.saving.save_model` before tfdist can wrap "
        "it.",
    ),
    Symbol(
        "keras.src.losses.loss",
        "Its two functions divide a loss by the number of replicas, also where replicas "
        "have unequal numbers of examples.",
        "The functions belong to no class that could be extended.",
    ),
    Symbol(
        "keras.src.models.functional.Functional",
        "Recognizes a model that calls its graph of layers, which can be in stages.",
        "`keras.Model` makes one of inputs and outputs, and does not export its class.",
    ),
    Symbol(
        "keras.src.models.functional.operation_fn",
        "Calls a layer as the model does that has it, with `training` if it asks for it.",
        "`Layer.__call__` refuses `training` if the layer does not have it.",
    ),
    Symbol(
        "keras.src.saving.saving_lib",
        "Writes `.keras` and `.weights.h5` files; every public way to do so ends here.",
        "As for `legacy_h5_format`.",
    ),
    Symbol(
        "keras.src.trainers.compile_utils.CompileLoss",
        "Calls each loss that a model was compiled with. Those that do not separate over "
        "examples are computed on the whole batch.",
        "A user's loss may be a function, or override `keras.losses.Loss.__call__`.",
    ),
    Symbol(
        "keras.src.trainers.compile_utils.MetricsList",
        "The same for metrics.",
        "`keras.metrics.Metric.update_state` is what users override.",
    ),
    Symbol(
        "tensorflow.python.distribute.collective_all_reduce_strategy."
        "CollectiveAllReduceExtended",
        "Decides which devices of a process are replicas of "
        "`MultiWorkerMirroredStrategy`, and how it waits for its peers.",
        "`tf.distribute.StrategyExtended` is the base class only.",
    ),
    Symbol(
        "tensorflow.python.distribute.coordinator.cluster_coordinator.Worker",
        "Sends functions to one more device of a worker, one at a time.",
        "None: `ClusterCoordinator` sends one function at a time to each task.",
    ),
    Symbol(
        "tensorflow.python.distribute.coordinator.cluster_coordinator."
        "WorkerPreemptionHandler",
        "The base of what takes back each worker by itself, and workers that come while "
        "a program runs.",
        "None: `ClusterCoordinator` waits without a deadline for the first worker that "
        "is gone, and takes no other back meanwhile.",
    ),
    Symbol(
        "tensorflow.python.distribute.cross_device_ops.get_devices_from",
        "Returns the devices of a value, or those of a destination.",
        "A `tf.distribute.CrossDeviceOps` receives destinations of several types, and "
        "has no public function for their devices.",
    ),
    Symbol(
        "tensorflow.python.distribute.mirrored_strategy.MirroredExtended",
        "The base class of `RingStrategy`'s devices and collectives.",
        "`tf.distribute.StrategyExtended` is the base class only.",
    ),
    Symbol(
        "tensorflow.python.distribute.one_device_strategy.OneDeviceExtended",
        "The base class of `PipelineStrategy`'s variables, updates and single replica.",
        "`tf.distribute.StrategyExtended` is the base class only.",
    ),
    Symbol(
        "tensorflow.python.distribute.parameter_server_strategy."
        "ParameterServerStrategyExtended",
        "Decides the device of each variable of an Estimator.",
        "`tf.compat.v1.distribute.experimental.ParameterServerStrategy` takes no "
        "placement.",
    ),
    Symbol(
        "tensorflow.python.distribute.parameter_server_strategy_v2."
        "ParameterServerStrategyV2Extended",
        "Decides the ps of each variable.",
        "A `tf.variable_creator_scope` can place plain variables; it cannot split them "
        "or wrap what the strategy returns.",
    ),
    Symbol(
        "tensorflow.python.distribute.ps_values.CachingVariable",
        "The class of the variables that the strategy returns; tfdist replaces its reads "
        "and writes.",
        "`tf.Variable` cannot wrap a variable of another task.",
    ),
    Symbol(
        "tensorflow.python.distribute.sharded_variable.ShardedVariable",
        "Recognizes a partitioned variable of TensorFlow's own strategy.",
        "Only `tf.__internal__` exports it.",
    ),
    Symbol(
        "tensorflow.python.distribute.values.Mirrored",
        "What a `tf.distribute.CrossDeviceOps` has to return.",
        "`tf.types.experimental.distributed.Mirrored` is abstract.",
    ),
    Symbol(
        "tensorflow.python.eager.cancellation",
        "Ends the wait of an update for gradients that will never come.",
        "None: `tf.function` has no way to be cancelled.",
    ),
    Symbol(
        "tensorflow.python.eager.context",
        "The collectives' health checks and their abort; the executor of a thread; the "
        "global seed, set and put back; the options of idle threads; functions: made from "
        "a definition, and not deleted at the end of a process.",
        "`tf.random.set_seed` empties the kernel cache, and waits for remote tasks that "
        "may be gone while it holds the GIL.",
    ),
    Symbol(
        "tensorflow.python.eager.executor",
        "Gives a thread its own executor, so that it does not wait for operations of "
        "others.",
        "Only `tf.__internal__` exports the current one; nothing exports a new one.",
    ),
    Symbol(
        "tensorflow.python.eager.polymorphic_function.function_context",
        "Tells a `tf.function` when a trace of before does not serve.",
        "Its key has the strategy's device and nothing else that a program can set.",
    ),
    Symbol(
        "tensorflow.python.eager.record.could_possibly_record",
        "Whether a gradient tape is recording, for what TensorFlow cannot differentiate.",
        "None: `tf.GradientTape` does not list the active tapes.",
    ),
    Symbol(
        "tensorflow.python.ops.variables.PartitionedVariable",
        "Recognizes the result of TF1's `get_variable(partitioner=...)`.",
        "None: the class is not exported.",
    ),
    Symbol(
        "tensorflow.python.pywrap_tfe",
        "Sets and restores the executor of a thread without waiting for it.",
        "TensorFlow's own scope waits for everything that the previous executor has "
        "under way, however long a worker takes to answer.",
    ),
    Symbol(
        "tensorflow.python.training.saving.saveable_object.SaveableObject",
        "Saves a shard of a variable as a slice of one tensor.",
        "None: `tf.train.Checkpoint` saves whole variables.",
    ),
    Symbol(
        "tensorflow.python.training.saving.saveable_object.SaveSpec",
        "Describes that slice.",
        "None.",
    ),
    Symbol(
        "tf_keras.api._v1.keras",
        "`tf.keras` as tensorflow-estimator's TF1 modules expect it.",
        "`tf_keras` exports its TF2 API only.",
    ),
)

MEMBERS: tuple[Member, ...] = (
    Member(
        "keras.src.trainers.compile_utils.CompileLoss",
        "_flat_losses",
        "set",
        "The losses as `compile` resolved them. Each asks how it is to be computed.",
        "None: what was passed to `compile` may be a name, a function or nested.",
    ),
    Member(
        "keras.src.losses.losses.LossFunctionWrapper",
        "_fn_kwargs",
        "read",
        "Tells along which axis a loss that was passed as an object is computed.",
        "`get_config` has it for some losses only.",
    ),
    Member(
        "keras.metrics.MeanMetricWrapper",
        "_fn",
        "read",
        "The function that was passed to `compile` as a metric.",
        "`get_config` has its name only.",
    ),
    Member(
        "keras.Sequential",
        "_functional",
        "read",
        "The graph of layers of a Sequential model.",
        "`Sequential.layers` are none before it is built, and say nothing of the inputs.",
    ),
    Member(
        "keras.src.models.functional.Functional",
        "_nodes_by_depth",
        "read",
        "The calls of a model's layers, which are cut into stages.",
        "`Model.operations` has each layer once, without its inputs.",
    ),
    Member(
        "keras.src.models.functional.Functional",
        "_standardize_inputs",
        "called",
        "Matches a batch with the model's inputs, by name or position, and their dtypes.",
        "`Model.__call__` does it, and computes all layers.",
    ),
    Member(
        "keras.optimizers.Optimizer",
        "_trainable_variables_indices",
        "set",
        "Knows weights by the TensorFlow variable that they were; a pipeline moves them.",
        "None.",
    ),
    Member(
        "keras.optimizers.Optimizer",
        "_var_key",
        "called",
        "As for `_trainable_variables_indices`.",
        "None.",
    ),
    Member(
        "keras.Model",
        "_loss_tracker",
        "read",
        "Counts the loss of a step that is no `train_step`.",
        "`Model.metrics` has it under its name, which a user's metric may have too.",
    ),
    Member(
        "tensorflow.python.distribute.one_device_strategy.OneDeviceExtended",
        "_device",
        "set",
        "A step has no device of its own: each operation says where it belongs.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.one_device_strategy.OneDeviceExtended",
        "_experimental_distribute_dataset",
        "overridden",
        "There is one replica, and the dataset stays as it is.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.one_device_strategy.OneDeviceExtended",
        "_container_strategy",
        "called",
        "Enters the scope of the strategy to move a variable.",
        "None.",
    ),
    Member(
        "keras.Model",
        "_flatten_layers",
        "called",
        "Returns every layer of a model, those inside other layers too.",
        "`Model.layers` returns the outermost layers only.",
    ),
    Member(
        "keras.Model",
        "_losses",
        "set",
        "Replicas of one process call the same layers in turns; each keeps its losses.",
        "`Layer.losses` cannot be set.",
    ),
    Member(
        "keras.Model",
        "_loss_ids",
        "set",
        "As for `_losses`, which it goes with.",
        "None.",
    ),
    Member(
        "keras.Model",
        "_symbolic_build",
        "called",
        "Creates the variables of the loss and the metrics without running a step.",
        "`Model.build` creates the weights only.",
    ),
    Member(
        "keras.src.backend.tensorflow.core.Variable",
        "_initialize",
        "patched",
        "The one place where a variable's path is known when its `tf.Variable` is "
        "created.",
        "A `tf.variable_creator_scope` is not told the path.",
    ),
    Member(
        "keras.src.backend.tensorflow.core.Variable",
        "_value",
        "set",
        "What holds the value: a variable on a ps, or a partitioned one. A pipeline moves "
        "it to another device.",
        "`Variable.value` casts to the compute dtype inside a layer's call.",
    ),
    Member(
        "keras.layers.Embedding",
        "_embeddings",
        "read",
        "The table itself.",
        "`Embedding.embeddings` is the sum with the LoRA matrices, a tensor.",
    ),
    Member(
        "tensorflow.python.data.ops.dataset_ops.DatasetV2",
        "_functions",
        "called",
        "Whether the functions of a dataset draw at random, and what they read.",
        "The serialized graph has them, with a copy of every array in the dataset.",
    ),
    Member(
        "tensorflow.python.data.ops.dataset_ops.DatasetV2",
        "_inputs",
        "called",
        "The datasets that a dataset reads; a dataset of leases has one of its own.",
        "As for `_functions`; it is abstract.",
    ),
    Member(
        "tensorflow.python.data.ops.from_tensor_slices_op._TensorSliceDataset",
        "_tensors",
        "read",
        "How large the arrays of a dataset are.",
        "The serialized graph has them; it is a copy of every array.",
    ),
    Member(
        "tensorflow.python.data.ops.from_tensors_op._TensorDataset",
        "_tensors",
        "read",
        "How large the arrays of a dataset are.",
        "The serialized graph has them; it is a copy of every array.",
    ),
    Member(
        "tensorflow.python.data.ops.random_op._RandomDataset",
        "_seed",
        "read",
        "Whether all workers draw the same numbers.",
        "As for `_functions`.",
    ),
    Member(
        "tensorflow.python.data.ops.random_op._RandomDataset",
        "_seed2",
        "read",
        "The second half of the seed.",
        "As for `_functions`.",
    ),
    Member(
        "tensorflow.python.data.ops.shuffle_op._ShuffleDataset",
        "_seed",
        "read",
        "Whether all workers shuffle in one order.",
        "As for `_functions`.",
    ),
    Member(
        "tensorflow.python.data.ops.shuffle_op._ShuffleDataset",
        "_seed2",
        "read",
        "The second half of the seed.",
        "As for `_functions`.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator."
        "ClusterCoordinator",
        "_cluster",
        "read",
        "Has the coordinator's workers, and gets more where a worker has several devices.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator."
        "WorkerPreemptionHandler",
        "_preemption_handler",
        "overridden",
        "Waits for one worker, and connects to it.",
        "See `WorkerPreemptionHandler`.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator."
        "WorkerPreemptionHandler",
        "_cluster_due_for_update_or_finish",
        "read",
        "Set when a worker was lost, or at the end.",
        "As for `_preemption_handler`.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator."
        "WorkerPreemptionHandler",
        "_cluster_update_lock",
        "read",
        "Held while the thread of a worker is told that it is back.",
        "As for `_preemption_handler`.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator."
        "WorkerPreemptionHandler",
        "_worker_up_cond",
        "read",
        "Tells the thread of a worker that it is back.",
        "As for `_preemption_handler`.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator."
        "WorkerPreemptionHandler",
        "_should_preemption_thread_run",
        "read",
        "Whether the coordinator still exists.",
        "As for `_preemption_handler`.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator.Worker",
        "_on_closure_failure",
        "set",
        "Tells that a worker was lost and its function is to run again.",
        "`ClusterCoordinator` reports nothing until a function has ended.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator.Closure",
        "_concrete_function",
        "read",
        "Tells whether a function that a worker is sent is to be optimized.",
        "`ClusterCoordinator.schedule` takes no options, and `tf.config.optimizer` has "
        "those of all functions.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.cluster_coordinator.Worker",
        "_process_closure",
        "set",
        "Tells which function a worker runs and when it ends, and gives the thread an "
        "executor.",
        "As for `_on_closure_failure`.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.values.RemoteValueImpl",
        "_error",
        "read",
        "Tells whether a function has failed, or its worker was lost.",
        "`RemoteValue.get` waits until it has ended.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.values.RemoteValueImpl",
        "_has_fetched_to_local",
        "read",
        "Tells whether a result is on the chief, so that a worker that is lost now "
        "cannot take it away.",
        "`RemoteValue.get` copies it itself, and fails where the coordinator would run "
        "the function again.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.values.RemoteValueImpl",
        "_has_fetched_to_local_lock",
        "call",
        "Waits while a worker's thread copies a result.",
        "As for `_has_fetched_to_local`.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.values.RemoteValueImpl",
        "_status_available_event",
        "read",
        "Waits for a function with a deadline.",
        "`RemoteValue.get` and `ClusterCoordinator.join` have none.",
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib.Strategy",
        "_extended",
        "read",
        "What a strategy delegates to, by its own type.",
        "`Strategy.extended` is the same object as `tf.distribute.StrategyExtended`.",
    ),
    Member(
        "tensorflow.python.distribute.mirrored_strategy.MirroredExtended",
        "_cross_device_ops",
        "set",
        "Makes a mirrored strategy reduce on one device in the session of an Estimator, "
        "where collectives on CPUs wait forever.",
        "None: a strategy takes its `cross_device_ops` only when it is created.",
    ),
    Member(
        "tensorflow.python.distribute.parameter_server_strategy."
        "ParameterServerStrategyExtended",
        "_variable_device",
        "set",
        "Decides the device of each variable of an Estimator.",
        "The strategy applies this device function last, so no device scope around it "
        "has an effect.",
    ),
    Member(
        "tensorflow.python.distribute.ps_values.PerWorkerVariable",
        "_per_worker_vars",
        "read",
        "The value on each worker, so that those of workers that are away are left out.",
        "`PerWorkerVariable.read_all` fails if one worker is away.",
    ),
    Member(
        "tensorflow.python.distribute.coordinator.values.PerWorkerValues",
        "_values",
        "read",
        "The value on one worker.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.ps_values.CachingVariable",
        "_dense_var_to_tensor",
        "overridden",
        "Converts a variable to a tensor by one read per step.",
        "`tf.register_tensor_conversion_function` ranks below the class's own.",
    ),
    Member(
        "tensorflow.python.distribute.ps_values.CachingVariable",
        "_v",
        "read",
        "The variable on the ps.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.ps_values.CachingVariable",
        "_distribute_strategy",
        "read",
        "The strategy of a partitioned variable is that of its shards.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.ps_values.CachingVariable",
        "_unique_id",
        "read",
        "By which TF1 optimizers find the slots of a variable.",
        "None.",
    ),
    Member(
        "tensorflow.python.eager.context.Context",
        "_config",
        "set",
        "Idle threads of the chief sleep, and do not spin.",
        "`tf.compat.v1.enable_eager_execution(config=...)` ignores its argument where "
        "eager execution is the default, and `tf.config` has no such option.",
    ),
    Member(
        "tensorflow.python.eager.context.Context",
        "_handle",
        "read",
        "The context whose thread's executor is set.",
        "None: `pywrap_tfe` takes nothing else.",
    ),
    Member(
        "tensorflow.python.eager.context.Context",
        "_rng",
        "set",
        "The generator that follows from the global seed.",
        "`tf.random.set_seed`; see `tensorflow.python.eager.context`.",
    ),
    Member(
        "tensorflow.python.eager.context.Context",
        "_seed",
        "set",
        "The global seed, put back afterwards.",
        "As for `_rng`.",
    ),
    Member(
        "tensorflow.python.framework.ops.Graph",
        "_get_function",
        "called",
        "The graph of a function that an operation calls, with the lines of the program "
        "that made it.",
        "`Graph.as_graph_def` has it without these lines.",
    ),
    Member(
        "keras.optimizers.Optimizer",
        "_all_reduce_sum_gradients",
        "patched",
        "The tape has added up the gradients already.",
        "None: every optimizer calls it under a strategy.",
    ),
    Member(
        "keras.optimizers.Optimizer",
        "_distribution_strategy",
        "read",
        "Whether an optimizer was created in the scope of the strategy.",
        "None before the optimizer has variables.",
    ),
    Member(
        "keras.Model",
        "_compile_loss",
        "read",
        "Whether a model was compiled again since its step was rehearsed.",
        "`Model.get_compile_config` is equal for two lambdas.",
    ),
    Member(
        "keras.Model",
        "_initial_epoch",
        "set",
        "The epoch in which `fit` continues.",
        "`fit(initial_epoch=...)` is read before callbacks run.",
    ),
    Member(
        "keras.src.backend.tensorflow.core.Variable",
        "_direct_assign",
        "patched",
        "What one replica writes depends on all replicas.",
        "`Variable.assign` casts and checks first, and calls this.",
    ),
    Member(
        "keras.src.backend.tensorflow.core.Variable",
        "_initialize_with_initializer",
        "patched",
        "The initializer of a variable, so that each shard draws its own part.",
        "A variable creator gets a function without the shape.",
    ),
    Member(
        "keras.src.backend.tensorflow.core.Variable",
        "_restore_from_tensors",
        "patched",
        "Restores copies, whose value has no shape in a graph.",
        "None: TensorFlow calls it by name.",
    ),
    Member(
        "keras.src.backend.tensorflow.trainer.TFEpochIterator",
        "_distributed_dataset",
        "set",
        "The data that the strategy's driver supplies.",
        "None: the constructor distributes the dataset by itself.",
    ),
    Member(
        "keras.src.trainers.epoch_iterator.EpochIterator",
        "_current_iterator",
        "read",
        "Whether `fit` ended in the middle of its data.",
        "None.",
    ),
    Member(
        "keras.src.trainers.epoch_iterator.EpochIterator",
        "_steps_seen",
        "set",
        "The steps that were run before a checkpoint.",
        "None.",
    ),
    Member(
        "keras.src.trainers.data_adapters.tf_dataset_adapter.TFDatasetAdapter",
        "_dataset",
        "read",
        "The seeds of the shuffles in the user's dataset.",
        "`get_tf_dataset` draws new seeds for arrays.",
    ),
    Member(
        "keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter",
        "_shuffle",
        "read",
        "Whether arrays are shuffled in every epoch.",
        "None.",
    ),
    Member(
        "tensorflow.python.trackable.base.Trackable",
        "_export_to_saved_model_graph",
        "overridden",
        "A variable in shards is not saved as a variable.",
        "None.",
    ),
    Member(
        "tensorflow.python.trackable.base.Trackable",
        "_gather_saveables_for_checkpoint",
        "overridden",
        "Saves the shards as slices of one tensor.",
        "`_serialize_to_tensors`, its successor, knows no slices.",
    ),
    Member(
        "tensorflow.python.trackable.base.Trackable",
        "_trackable_children",
        "overridden",
        "A SavedModel holds the shards.",
        "None.",
    ),
    Member(
        "keras.src.backend.tensorflow.core.Variable",
        "_write_object_proto",
        "overridden",
        "A SavedModel describes the whole as an object.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib.StrategyExtendedV1",
        "_call_for_each_replica",
        "overridden",
        "Replicas run in threads of their own, and draw from the seed generator of this one.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib.StrategyExtendedV2",
        "_create_variable",
        "overridden",
        "Places variables, and splits them.",
        "A variable creator scope cannot make one Keras variable of several shards.",
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib.StrategyExtendedV2",
        "_update",
        "overridden",
        "Runs an update on each shard, and on the rows of a sparse gradient.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib.StrategyExtendedV2",
        "_replica_ctx_update",
        "overridden",
        "Updates a variable without a merge call, which a condition, a loop or a "
        "`tf.function` cannot hold.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib.StrategyExtendedV2",
        "_replica_ctx_all_reduce",
        "overridden",
        "As for `_replica_ctx_update`: the sum over the one replica of a step.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.distribute_lib.StrategyExtendedV1",
        "_use_merge_call",
        "overridden",
        "A step applies gradients that are equal on all replicas, without a meeting of the replicas.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.parameter_server_strategy_v2.ParameterServerStrategyV2Extended",
        "_assert_being_scheduled_by_cluster_coordinator",
        "overridden",
        "Warns of a step on the chief, but not while the step is traced.",
        "A log filter would hide the warning of user code too.",
    ),
    Member(
        "tensorflow.python.distribute.parameter_server_strategy_v2.ParameterServerStrategyV2Extended",
        "_num_replicas_in_sync",
        "overridden",
        "Is 1: the devices of a worker do not wait for each other.",
        "None: TensorFlow counts the GPUs of a worker.",
    ),
    Member(
        "tensorflow.python.distribute.parameter_server_strategy_v2.ParameterServerStrategyV2Extended",
        "_create_var_creator",
        "overridden",
        "Makes each variable one whose updates are additions on its ps.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.parameter_server_strategy_v2.ParameterServerStrategyV2Extended",
        "_create_variable_round_robin",
        "overridden",
        "Asks the placement for the ps, in place of a round robin.",
        "A custom partitioner decides on shards, not on a ps.",
    ),
    Member(
        "tensorflow.python.distribute.collective_all_reduce_strategy.CollectiveAllReduceExtended",
        "_initialize_local_devices",
        "overridden",
        "A process without GPUs may have several logical CPUs.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.collective_all_reduce_strategy.CollectiveAllReduceExtended",
        "_get_variable_creator_initial_value",
        "overridden",
        "Sends initial values in another dtype where TensorFlow's broadcast lacks theirs.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.collective_all_reduce_strategy.CollectiveAllReduceExtended",
        "_replica_ctx_all_reduce",
        "called",
        "Adds up values without a meeting of the replicas.",
        "`ReplicaContext.all_reduce` has the replicas of a worker meet.",
    ),
    Member(
        "tensorflow.python.distribute.collective_all_reduce_strategy.CollectiveAllReduceExtended",
        "_start_check_health_thread",
        "overridden",
        "Waits for the other tasks by name, and watches them from then on.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.mirrored_strategy.MirroredExtended",
        "_default_device",
        "set",
        "What is computed in the scope is computed on the chief.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.mirrored_strategy.MirroredExtended",
        "_initialize_strategy",
        "called",
        "Accepts devices of several tasks; the constructor does not.",
        "None.",
    ),
    Member(
        "tensorflow.python.distribute.mirrored_strategy.MirroredExtended",
        "_input_workers_devices",
        "set",
        "Batches are split on the chief.",
        "None.",
    ),
    Member(
        "keras.Model",
        "_get_metrics_result_or_logs",
        "patched",
        "The logs of a step in unison are those of the epoch so far.",
        "`Model.get_metrics_result` is called within steps too.",
    ),
    Member(
        "keras.Model",
        "_maybe_symbolic_build",
        "patched",
        "Builds a model without taking a batch from its data.",
        "None: `fit` calls it before every public hook.",
    ),
    Member(
        "keras.src.trainers.epoch_iterator.EpochIterator",
        "_enumerate_iterator",
        "patched",
        "Skips the steps that were run before a checkpoint.",
        "None.",
    ),
    Member(
        "keras.src.trainers.epoch_iterator.EpochIterator",
        "_num_batches",
        "set",
        "The number of steps, where it is not that of the batches; when an epoch ends.",
        "None: it is read in the constructor.",
    ),
    Member(
        "tensorflow.python.distribute.collective_all_reduce_strategy.CollectiveAllReduceStrategy",
        "_collective_key_base",
        "set",
        "The extended takes from its strategy what to number its collectives from.",
        "None.",
    ),
    Member(
        "keras.src.optimizers.base_optimizer.BaseOptimizer",
        "_trainable_variables",
        "read",
        "Which variables gradients belong to that are applied without them.",
        "`Optimizer.variables` has the optimizer's own.",
    ),
    Member(
        "keras.src.optimizers.base_optimizer.BaseOptimizer",
        "_get_variable_index",
        "called",
        "Which of the optimizer's slots belong to a weight.",
        "`Optimizer.variables` has the slots without their weights.",
    ),
    Member(
        "keras.optimizers.Adam",
        "_momentums",
        "read",
        "The slots that a fused kernel updates.",
        "`Optimizer.variables` tells them apart by their names only.",
    ),
    Member(
        "keras.optimizers.Adam",
        "_velocities",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "keras.optimizers.Adam",
        "_velocity_hats",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "keras.optimizers.Adamax",
        "_m",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "keras.optimizers.Adamax",
        "_u",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "keras.optimizers.RMSprop",
        "_average_gradients",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "keras.optimizers.Adadelta",
        "_accumulated_grads",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "keras.optimizers.Adadelta",
        "_accumulated_delta_vars",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "keras.optimizers.Ftrl",
        "_accumulators",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "keras.optimizers.Ftrl",
        "_linears",
        "read",
        "The slots that a fused kernel updates.",
        "As for `_momentums`.",
    ),
    Member(
        "tensorflow.Operation",
        "_add_control_inputs",
        "called",
        "Has what a traced step reads and writes wait for its turn.",
        "`tf.control_dependencies` is for operations that are still to be made.",
    ),
    Member(
        "tensorflow.Operation",
        "_control_outputs",
        "read",
        "What waits for an operation, to find all that depends on a write.",
        "`Operation.control_inputs` leads the other way.",
    ),
)
