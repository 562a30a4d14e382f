"""Recognizes TensorFlow's log lines that are not worth showing."""

import re

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""The environment variable that silences TensorFlow, once it is imported."""

_CHATTER = re.compile(
    # Information and warnings from C++ code, such as
    # `I0000 00:00:1795256414.158899   28852 port.cc:153] oneDNN ...`
    r"[IW][0-9]{4} [0-9:.]+ +[0-9]+ [^ ]+\.(cc|h):[0-9]+\] "
    r"|WARNING: All log messages before absl::InitializeLog"
    # From Python code: logged for each exchange of gradients with unknown shapes. It is
    # harmless.
    r"|(WARNING:tensorflow:|W[0-9]{4} [^]]*\] )not packing values due to the unknown "
    # The second line of one of the messages above.
    r"|To enable the following instructions: "
    # TensorFlow logs these as errors, but a machine may have no GPU, and a function may
    # have been removed already.
    r"|E[0-9]{4} .*(failed call to cuInit|Failed to remove function remotely)"
)


def hides(level: str | None, line: str) -> bool:
    """Returns whether a value of `LOG_LEVEL` asks for the line to be hidden.

    TensorFlow ignores the variable in what it logs while it is being imported.

    >>> line = "I0000 00:00:1795256414.158899   28852 port.cc:153] oneDNN ..."
    >>> hides("2", line), hides("0", line), hides("2", "step 1")
    (True, False, False)
    """
    return level in ("2", "3") and _CHATTER.match(line) is not None
