"""Which lines of a TensorFlow server a user need not see."""

import re

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""The variable that silences TensorFlow, once it is imported."""

_CHATTER = re.compile(
    # The severities info and warning, as in `I0000 00:00:1795256414.158899 28852`.
    r"[IW][0-9]{4} [0-9:.]+ +[0-9]+ "
    r"|WARNING: All log messages before absl::InitializeLog"
)


def is_chatter(line: str) -> bool:
    """Whether the line is TensorFlow's own, and no error.

    `LOG_LEVEL` does not silence what TensorFlow says while it is imported.
    """
    return _CHATTER.match(line) is not None
