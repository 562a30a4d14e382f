"""Which lines of TensorFlow's own a user need not see."""

import re

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""The variable that silences TensorFlow, once it is imported."""

_CHATTER = re.compile(
    # Information and warnings of C++ code, as in
    # `I0000 00:00:1795256414.158899   28852 port.cc:153] oneDNN ...`
    r"[IW][0-9]{4} [0-9:.]+ +[0-9]+ [^ ]+\.(cc|h):[0-9]+\] "
    r"|WARNING: All log messages before absl::InitializeLog"
    # Of Python code: each exchange of gradients of unknown shapes, where nothing is wrong.
    r"|(WARNING:tensorflow:|W[0-9]{4} [^]]*\] )not packing values due to the unknown "
    # The second line of one of these.
    r"|To enable the following instructions: "
    # A machine without a GPU is no error, and neither is forgetting a function twice.
    r"|E[0-9]{4} .*(failed call to cuInit|Failed to remove function remotely)"
)


def hides(level: str | None, line: str) -> bool:
    """Whether a `LOG_LEVEL` means to hide the line.

    TensorFlow does not respect it in what it says while it is imported.

    >>> line = "I0000 00:00:1795256414.158899   28852 port.cc:153] oneDNN ..."
    >>> hides("2", line), hides("0", line), hides("2", "step 1")
    (True, False, False)
    """
    return level in ("2", "3") and _CHATTER.match(line) is not None
