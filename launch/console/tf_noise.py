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
    # TensorFlow's own use of a private function of its own, as in `_colocate_with`.
    r"|(WARNING:tensorflow:|W[0-9]{4} [^]]*\] )From .*: _\w+ \(from tensorflow\."
    # The last lines of what it could not infer of the types of a graph, after an empty one.
    r"|\t(for Tuple type infer|while inferring type of node )"
    # TensorFlow logs these as errors, but a machine may have no GPU, a function may have
    # been removed already, and what oneDNN cannot compute is computed without it.
    r"|E[0-9]{4} .*(failed call to cuInit|Failed to remove function remotely|"
    r"(?i:onednn|mkl_)\S*\.(cc|h|hpp|cpp):[0-9]+\])"
)

# Continuations of some of these: a protobuf message in text format, advice, details.
_OPENS = re.compile(r"(.*\] .*)?\w+ \{$")
_GOES_ON = re.compile(r"\s+\w+: |\w+: (true|false)$|\s*\w+ \{$|\s*\}$|$")
_ADVISES = re.compile(
    r"Instructions for updating:$|Colocations handled automatically by placer\.$"
    # The operation that failed, and what gRPC adds to an error from another task.
    r"|\t \[\[|Additional GRPC error information from remote target "
    r"|:UNKNOWN:Error received from peer |This could happen if the remote target has been"
    # Tasks that have not connected to the coordination service yet.
    r"|/job:\w+/replica:[0-9]+/task:[0-9]+$"
    # Types that TensorFlow could not infer of a graph that it runs all the same.
    r"|type_id: TFT_| is neither a subtype nor "
)


class Chatter:
    """Recognizes such lines of one task, with the lines that they continue with.

    >>> chatter = Chatter("2")
    >>> first = "I0000 00:00:1795256414.1   28852 server.cc:9] config: device_count {"
    >>> [chatter.hides(each) for each in (first, '  key: "CPU"', "}", "step 1", "}")]
    [True, True, True, False, False]

    Args:
        level: The task's value of `LOG_LEVEL`.
    """

    def __init__(self, level: str | None) -> None:
        self._level = level
        self._before = ""
        self._is_open = False

    def hides(self, line: str) -> bool:
        """Takes the task's next line; returns whether it is to be hidden."""
        is_first = hides(self._level, line)
        goes_on = bool(self._before) and (
            bool(_ADVISES.match(line))
            or bool(_OPENS.match(line))
            or (self._is_open and bool(_GOES_ON.match(line)))
        )
        self._is_open = bool(_OPENS.match(line)) or (self._is_open and goes_on)
        self._before = line if is_first or goes_on else ""
        return is_first or goes_on


def hides(level: str | None, line: str) -> bool:
    """Returns True if a value of `LOG_LEVEL` asks for the line to be hidden.

    TensorFlow ignores the variable in what it logs while it is being imported.

    >>> line = "I0000 00:00:1795256414.158899   28852 port.cc:153] oneDNN ..."
    >>> hides("2", line), hides("0", line), hides("2", "step 1")
    (True, False, False)
    """
    return level in ("2", "3") and _CHATTER.match(line) is not None
