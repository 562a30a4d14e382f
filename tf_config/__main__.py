r"""Builds a TF_CONFIG from flags, or checks the one in the environment.

Usage::

    export TF_CONFIG=$(python -m tf_config --worker_hosts=a:2222,b:2222 \
        --job_name=worker --task_index=0)
    python -m tf_config --check
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tf_config.cluster import JOBS, Cluster, Task
from tf_config.environment import TFConfig
from tf_config.errors import ClusterError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status.

    The status is 0 on success and 1 if TF_CONFIG is invalid. argparse exits with 2 if
    the flags are.
    """
    parser = _parser()
    flags = vars(parser.parse_args(argv))
    if flags.pop("check", False):
        if flags:
            parser.error(
                "--check reads the environment, and cannot be combined with other flags"
            )
        return _check_environment()
    try:
        print(_from_flags(flags).to_json())
    except ClusterError as error:
        parser.error(str(error))
    return 0


def describe(config: TFConfig) -> str:
    """Lists the tasks of a cluster, one line per task, and marks this task."""
    addresses = {task: config.cluster.address(task) for task in config.cluster.tasks()}
    addresses.setdefault(config.task, "outside the cluster")
    width = max(len(str(task)) for task in addresses)
    rows = [
        f"{'*' if task == config.task else ' '} {str(task):{width}}  {address}"
        for task, address in addresses.items()
    ]
    if config.cluster.evaluator:
        rows.append(
            "note: TensorFlow's own strategies wait forever for an evaluator that is in "
            "the cluster; leave it out."
        )
    return "\n".join([f"TF_CONFIG is valid. This task (*) is {config.task}.", *rows])


def _check_environment() -> int:
    try:
        print(describe(TFConfig.from_environment()))
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _from_flags(flags: dict[str, Any]) -> TFConfig:
    if not {"job_name", "task_index"} <= flags.keys():
        raise ClusterError(
            "--job_name and --task_index are required: they say which task this is. To "
            "check the environment instead, use --check alone"
        )
    hosts = {job: flags.get(f"{job}_hosts", "") for job in JOBS}
    return TFConfig(
        Cluster.from_hosts(**hosts), Task(flags["job_name"], flags["task_index"])
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tf_config",
        usage=(
            "%(prog)s --JOB_hosts=HOST:PORT,... --job_name=JOB --task_index=INDEX\n"
            "       %(prog)s --check"
        ),
        description="Prints a TF_CONFIG, or checks the one in the environment.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for job in JOBS:
        parser.add_argument(
            f"--{job}_hosts",
            metavar="HOST:PORT,...",
            help=f"addresses of the {job} tasks",
        )
    parser.add_argument(
        "--job_name", help=f"job of this task: one of {', '.join(JOBS)}"
    )
    parser.add_argument(
        "--task_index", type=int, help="index of this task within its job"
    )
    parser.add_argument(
        "--check",
        action="store_const",
        const=True,
        help="check the TF_CONFIG in the environment",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
