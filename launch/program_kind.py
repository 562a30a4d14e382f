"""Which kind of program a script is, if the script itself shows it."""

from launch.plan import AUTO, EVERY_TASK, Program
from launch.script_source import imports_any
from tf_config.contract import ESTIMATOR_MODULE


def kind_of_script(program: Program, asked: str = AUTO) -> str:
    """Returns the kind that was asked for, or else the kind that the script shows.

    Every task runs an Estimator program, even with parameter servers. It is recognized
    by an import of `tfdist.estimator` in the script, or in a module next to it that it
    imports. The script is parsed, not run.

    Args:
        program: A script or a module, which need not exist.
        asked: One of `launch.plan.PROGRAM_KINDS`.

    Returns:
        The kind; `auto` if neither shows it. Then the cluster decides.
    """
    if asked == AUTO and imports_any(program, [ESTIMATOR_MODULE]):
        return EVERY_TASK
    return asked
