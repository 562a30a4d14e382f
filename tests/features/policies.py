"""What is particular to the policies of consistency under which features are tested."""

from typing import Any

# What steps write one at a time under each policy. What rounds keep on the ps is no
# variable, and has a number for a name: of its own, or as an input of a loop.
UNDER_KEY = {"bounded": ["turns"], "rounds": [r"^(while/input_)?\d+$"]}

LOGS = {"staleness", "max_staleness", "waiting_share", "dropped"}


def own_logs(history: dict[str, Any]) -> dict[str, Any]:
    """Returns the logs that a model has under every policy."""
    return {name: each for name, each in history.items() if name not in LOGS}
