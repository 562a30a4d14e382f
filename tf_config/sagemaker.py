"""The cluster of a SageMaker training job.

Every host runs one container (docs.aws.amazon.com, SageMaker Training Toolkit,
ENVIRONMENT_VARIABLES.md).
"""

import json
from collections.abc import Mapping

from tf_config.environment import TFConfig
from tf_config.errors import ClusterError, show
from tf_config.roles import assign_roles

HOSTS, CURRENT_HOST = "SM_HOSTS", "SM_CURRENT_HOST"
_FIRST_PORT = 2222


def read(environ: Mapping[str, str], num_ps: int, first_port: int | None) -> TFConfig:
    """Reads SM_HOSTS and SM_CURRENT_HOST; the first hosts are the ps.

    Args:
        environ: The environment.
        num_ps: How many hosts are ps.
        first_port: The port; None for 2222.

    Raises:
        ClusterError: If the variables are malformed, or the hosts are too few.
    """
    text = environ[HOSTS]
    try:
        hosts = json.loads(text)
    except (ValueError, RecursionError):
        hosts = None
    if not (
        isinstance(hosts, list)
        and hosts
        and all(isinstance(each, str) for each in hosts)
    ):
        raise ClusterError(
            f'{HOSTS} is a list of hosts such as ["algo-1", "algo-2"]; received '
            f"{show(text)}"
        )
    host = environ.get(CURRENT_HOST)
    if host not in hosts:
        raise ClusterError(
            f"{CURRENT_HOST} is one of {', '.join(hosts)}; received {show(host)}"
        )
    # In their own order: sorted by name, algo-10 would come before algo-2.
    return assign_roles(hosts, hosts.index(host), num_ps, first_port or _FIRST_PORT)
