"""Who is in the cluster: cluster, tasks and TF_CONFIG. Standard library only."""

from tf_config.cluster import JOBS, Cluster, ClusterError, Task, split_address
from tf_config.environment import TFConfig

__all__ = ["JOBS", "Cluster", "ClusterError", "TFConfig", "Task", "split_address"]
