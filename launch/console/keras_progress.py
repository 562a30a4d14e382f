"""Recognizes the lines that Keras prints while it trains."""

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


def is_training(line: str) -> bool:
    r"""Returns whether Keras prints such a line during fit, evaluate or predict.

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
