"""Clusters, tasks and TF_CONFIG. Uses only the standard library."""

from tf_config.address import split_address
from tf_config.cluster import JOBS, Cluster, Task
from tf_config.environment import TFConfig
from tf_config.errors import ClusterError

__all__ = ["JOBS", "Cluster", "ClusterError", "TFConfig", "Task", "split_address"]
