"""Logs of a round for the user: as a line of text, and for Keras callbacks."""

from collections.abc import Sequence

import keras

from tfdist._support.types import Nest

Logs = dict[str, float]


def callback_list(
    model: keras.Model, callbacks: Sequence[keras.callbacks.Callback], rounds: int
) -> keras.callbacks.CallbackList:
    """Returns callbacks that take a round for an epoch without batches."""
    return keras.callbacks.CallbackList(
        list(callbacks), model=model, epochs=rounds, steps=0, verbose=0
    )


def evaluated(model: keras.Model, data: Nest) -> Logs:
    """Returns the loss and the metrics on `(x, y)` or a dataset, as `fit` names them."""
    arguments = data if isinstance(data, tuple | list) else (data,)
    found = model.evaluate(*arguments, verbose=0, return_dict=True)
    return {f"val_{name}": float(value) for name, value in found.items()}


def line(logs: Logs, rounds: int, round_index: int) -> str:
    """Returns a round as a line of text."""
    text = f"round {round_index + 1}/{rounds}: {logs['answered']:.0f} of "
    text += f"{logs['clients']:.0f} clients answered"
    text += "" if logs["counts"] else " (too few: the model stays as it was)"
    text += f", {(logs['bytes_down'] + logs['bytes_up']) / 1e6:.2f} MB"
    found = [
        f"{name} {value:.4f}" for name, value in logs.items() if name.startswith("val_")
    ]
    return " - ".join([text, *found])
