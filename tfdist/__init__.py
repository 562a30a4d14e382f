"""Distribution strategies for TensorFlow and Keras 3.

Importing this package changes nothing in TensorFlow or Keras.
"""

from tfdist.keras.checks import AsynchronousTrainingError
from tfdist.parameter_server.connect import StartupTimeoutError
from tfdist.parameter_server.increment import NotAdditiveError
from tfdist.parameter_server.placement import (
    GreedyLoadBalancing,
    Placement,
    RoundRobin,
    VariableSpec,
    byte_size_load_fn,
)
from tfdist.parameter_server.report import (
    PlacedVariable,
    PlacementReport,
    WorkerReport,
)
from tfdist.parameter_server.strategy import ParameterServerStrategy

__all__ = [
    "AsynchronousTrainingError",
    "GreedyLoadBalancing",
    "NotAdditiveError",
    "ParameterServerStrategy",
    "PlacedVariable",
    "Placement",
    "PlacementReport",
    "RoundRobin",
    "StartupTimeoutError",
    "VariableSpec",
    "WorkerReport",
    "byte_size_load_fn",
]
