"""Output of Keras: its progress, and the error of a strategy on which `fit` does not run.

Custom training loops run on these strategies of TensorFlow, and so do Estimators. Only the
error that Keras's own loop meets shows that a script meant the strategy of tfdist, whose name
differs by the module alone.
"""

import re

_ESCAPE = r"\x1b\[[0-9;?]*[A-Za-z]"
_ESCAPES = re.compile(_ESCAPE)
_STEPS = r"\s*\d+/(?:\d+|Unknown) .*\b\d+(?:us|ms|s)/(?:step|epoch)"
_VALUE = r"(?:-?\d+\.\d+(?:e[+-]?\d+)?|nan|-?inf)"
# Keras prints the first at the start of each epoch, the second after each step.
_TRAINING = re.compile(rf"Epoch \d+/\d+$|{_STEPS}")
_PROGRESS = re.compile(
    rf"(?:{_ESCAPE})*\s*(?:{_ESCAPE})*\d+/(?:\d+|Unknown)\S* .*"
    rf"\b\d+(?:us|ms|s)/(?:step|epoch)(?: - \w+: {_VALUE})*\s*"
)
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


def is_training(line: str) -> bool:
    r"""Returns True if Keras prints such a line during fit, evaluate or predict.

    >>> is_training("Epoch 1/5"), is_training("1/5 \x1b[32m━━━\x1b[0m 0s 49ms/step")
    (True, True)
    >>> is_training("epochs: 5")
    False
    """
    return _TRAINING.match(_ESCAPES.sub("", line)) is not None


def split_progress(line: str) -> tuple[str, str]:
    """Splits a progress bar from other output printed on the same line.

    >>> split_progress("1/2 ━━━ 0s 9ms/step - loss: 0.08Traceback (most recent call")
    ('1/2 ━━━ 0s 9ms/step - loss: 0.08', 'Traceback (most recent call')
    >>> split_progress("1/2 ━━━ 0s 9ms/step"), split_progress("hello")
    (('1/2 ━━━ 0s 9ms/step', ''), ('', 'hello'))
    """
    match = _PROGRESS.match(line)
    end = match.end() if match else 0
    return line[:end], line[end:]


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
        """Advice for the user at the end of a failed job, or ''."""
        if not self._strategy:
            return ""
        return (
            "fit, evaluate and predict of Keras 3 do not run on "
            f"tf.distribute.{self._strategy}: let the script use "
            f"tfdist.{self._strategy}() in its place"
        )


def _strategy(error: str) -> str:
    return next((name for name, each in _ERRORS.items() if each.match(error)), "")
