"""The public names of tfdist.low_level, and the module that defines each."""

from tfdist.low_level.ending import report_done as report_done
from tfdist.low_level.ending import serve_until_done as serve_until_done
from tfdist.low_level.startup import session_config as session_config
from tfdist.low_level.startup import wait_until_ready as wait_until_ready
from tfdist.low_level.sync_replicas import (
    SyncReplicasOptimizer as SyncReplicasOptimizer,
)
