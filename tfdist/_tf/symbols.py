"""Symbols that are used as they are; docs/private-api.md has the reason for each."""

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

__all__ = [
    "CachingVariable",
    "CollectiveAllReduceExtended",
    "CompileLoss",
    "MetricsList",
    "MirroredExtended",
    "OneDeviceExtended",
    "ParameterServerStrategyV2Extended",
    "SaveSpec",
    "SaveableObject",
    "ShardedVariable",
    "TFEpochIterator",
    "V1PartitionedVariable",
    "could_be_recorded",
    "keras_loss",
    "legacy_h5_format",
    "saving_lib",
]
