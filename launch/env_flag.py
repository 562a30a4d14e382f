"""The flag --env: variables for tasks that run on other hosts."""

import os
from collections.abc import Sequence

from absl import flags

from launch.command_line import UsageError
from tf_config import contract


def define(values: flags.FlagValues) -> None:
    """Defines the flag."""
    flags.DEFINE_multi_string(
        "env",
        [],
        "A variable for the tasks, in addition to those of their host: NAME=VALUE, or "
        "NAME for the value it has here. Repeat the flag for more.",
        flag_values=values,
    )


def parse(settings: Sequence[str]) -> dict[str, str]:
    """Returns the variables.

    Raises:
        UsageError: If one is malformed, has no value here, or is the launcher's own.
    """
    env = {}
    for each in settings:
        name, has_value, value = each.partition("=")
        if not name or not (name.isidentifier() and name.isascii()):
            raise UsageError(
                f"--env={each!r}: write NAME=VALUE, or NAME for its value here"
            )
        if not has_value and name not in os.environ:
            raise UsageError(f"--env={name}: there is no variable {name} here")
        if name == contract.TF_CONFIG:
            raise UsageError(
                f"--env={each!r}: the launcher tells each task in {name} which cluster "
                "and which task it is; omit it, and describe the cluster with --num_ps "
                "and --num_workers"
            )
        env[name] = value if has_value else os.environ[name]
    return env
