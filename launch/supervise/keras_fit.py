"""Keras's `fit` under a strategy of TensorFlow on which it does not run: pure decisions.

Custom training loops run on these strategies, and so do Estimators. Only the error that
Keras's own loop meets shows that a script meant the strategy of tfdist, whose name differs
by the module alone.
"""

import re

_TRACEBACK = re.compile(r"[\s+|]*Traceback \(most recent call last\):")
_CALL = re.compile(r"\s.*\.(fit|evaluate|predict)\(")
_KERAS = re.compile(r'\s+File ".*\bkeras/src/utils/traceback_utils\.py"')
_ERRORS = {
    # The batch of all replicas, where Keras expects a tensor.
    "MultiWorkerMirroredStrategy": re.compile(
        r"ValueError: Attempt to convert a value \(PerReplica:"
    ),
    # A dataset that only a ClusterCoordinator can read.
    "ParameterServerStrategy": re.compile(
        r"ValueError: To use this dataset, you need to pass this dataset to "
        r"ClusterCoordinator\.create_per_worker_dataset"
    ),
}


class KerasFit:
    """Finds such an error in the lines of the tasks."""

    def __init__(self) -> None:
        self._seen: dict[str, set[re.Pattern[str]]] = {}
        self._strategy = ""

    def hear(self, name: str, line: str) -> None:
        """Takes a line of the task of this name."""
        if _TRACEBACK.match(line):
            self._seen[name] = set()
        elif (seen := self._seen.get(name)) is not None:
            seen |= {each for each in (_CALL, _KERAS) if each.match(line)}
            if not line[:1].isspace():
                del self._seen[name]
                if seen == {_CALL, _KERAS}:
                    self._strategy = self._strategy or _strategy(line)

    @property
    def advice(self) -> str:
        """What to tell the user at the end of a job that failed, or ''."""
        if not self._strategy:
            return ""
        return (
            "fit, evaluate and predict of Keras 3 do not run on "
            f"tf.distribute.{self._strategy}: let the script use "
            f"tfdist.{self._strategy}() in its place"
        )


def _strategy(error: str) -> str:
    return next((name for name, each in _ERRORS.items() if each.match(error)), "")
