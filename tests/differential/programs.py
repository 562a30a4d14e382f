"""Descriptions of small Keras programs, and a strategy that draws them. No TensorFlow.

A description is plain data, and its `repr` is the expression that makes it: a program that
Hypothesis has made small can be pasted into a test.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hypothesis import strategies as st

VECTOR = (
    "dense",
    "batch_normalization",
    "layer_normalization",
    "dropout",
    "gaussian_noise",
    "counter",
    "in_function",
    "average",
    "regularized",
    "constrained",
    "residual",
    "shared",
    "frozen",
    "own_loss",
)
SEQUENCE = (
    "lstm",
    "gru",
    "rnn",
    "bidirectional",
    "conv1d",
    "attention",
    "time_distributed",
    "max_pooling1d",
    "dense",
    "dense",
    "residual",
    "dropout",
    "layer_normalization",
)
IMAGE = (
    "conv2d",
    "depthwise",
    "separable",
    "max_pooling2d",
    "average_pooling2d",
    "transposed",
    "group_normalization",
    "batch_normalization",
    "spatial_dropout",
    "flip",
)
LOOPS = {"lstm", "gru", "rnn", "bidirectional", "time_distributed"}
LAYERS = {
    "vector": VECTOR,
    "two": VECTOR,
    "sequence": SEQUENCE,
    "ids": SEQUENCE,
    "masked_ids": ("lstm", "gru", "rnn", "attention"),
    "image": IMAGE,
}
"""The layers that may follow each kind of input."""

HEADS = ("regression", "classes", "binary", "two_outputs")

OPTIMIZERS = (
    "sgd",
    "momentum",
    "nesterov",
    "adam",
    "amsgrad",
    "adamw",
    "adamax",
    "nadam",
    "rmsprop",
    "centered_rmsprop",
    "adagrad",
    "adadelta",
    "ftrl",
    "lamb",
    "adafactor",
    "scheduled",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "averaged",
    "decayed",
)

STEPS = (
    "keras",
    "keras",
    "by_hand",
    "in_function",
    "clipped",
    "in_condition",
    "in_loop",
    "twice",
    "two_optimizers",
    "penalty",
    "totals",
    "noise",
    "draws",
    "static_rows",
    "without_call",
)

DATA = (
    "numpy",
    "shuffled_numpy",
    "dataset",
    "full_batches",
    "shuffled",
    "unknown_length",
    "generator",
    "py_dataset",
    "shuffling_py_dataset",
    "py_dataset_of_threads",
)
WHOLE_BATCHES = {"full_batches", "generator"}


@dataclass(frozen=True)
class Program:
    """What a program trains, and how.

    Attributes:
        inputs: A key of `LAYERS`.
        layers: Some of the layers that may follow, in order.
        head: What is predicted: one of `HEADS`.
        optimizer: One of `OPTIMIZERS`.
        step: The `train_step`: one of `STEPS`.
        data: How the rows come: one of `DATA`.
        rows: How many there are.
        batch: The rows of a batch.
        epochs: Of each of the two calls of `fit`.
        execution: `steps_per_execution`.
        stride: The most steps that are sent in one message.
        exchange: The steps between two exchanges, `ExchangeEvery(k)`.
        weighted: Whether each row has a weight.
        validated: Whether each epoch ends with a validation.
        predicted: Whether the outputs are compared, too.
        seed: Of the rows and the first weights.
    """

    inputs: str = "vector"
    layers: tuple[str, ...] = ("dense",)
    head: str = "regression"
    optimizer: str = "sgd"
    step: str = "keras"
    data: str = "numpy"
    rows: int = 44
    batch: int = 8
    epochs: int = 1
    execution: int = 1
    stride: int = 1
    exchange: int = 1
    weighted: bool = False
    validated: bool = False
    predicted: bool = False
    seed: int = 0


class Choose(Protocol):
    """Chooses one of some options, such as `random.Random(seed).choice`."""

    def __call__(self, options: Sequence[Any], /) -> Any: ...


def program_by(choose: Choose) -> Program:
    """Returns a program that tfdist is to train as one process does."""
    # Those with loops take several times as long.
    inputs = choose([*LAYERS, "vector", "vector", "two", "image"])
    # Of ids there is no gradient.
    steps = [each for each in STEPS if each != "penalty" or inputs == "vector"]
    step = choose(steps)
    data = "full_batches" if step == "static_rows" else choose(DATA)
    # Some steps have one loss, of one output.
    is_plain = step in ("keras", "totals", "noise", "draws", "twice")
    batch = choose([1, 4, 8])
    partial = 0 if data in WHOLE_BATCHES else choose(range(batch))
    layers = [choose(LAYERS[inputs]) for _ in range(choose([1, 2, 3]))]
    # A loop takes seconds to trace, and again in each copy of a step.
    loops = [each for each in layers if each in LOOPS]
    layers = [each for each in layers if each not in loops[1:]]
    copies = [1] if loops else [1, 1, 3]
    return Program(
        inputs=inputs,
        layers=tuple(layers),
        head=choose(HEADS) if is_plain else HEADS[0],
        optimizer=choose(OPTIMIZERS),
        step=step,
        data=data,
        rows=choose(range(2, 12)) * batch + partial,
        batch=batch,
        epochs=choose([1, 2]),
        execution=choose(copies),
        stride=choose(copies),
        exchange=choose([1, *copies]),
        weighted=is_plain and choose([False, True]),
        validated=step != "without_call" and choose([False, False, True]),
        predicted=step != "without_call" and choose([False, False, True]),
        seed=choose(range(4)),
    )


def is_possible(program: Program) -> bool:
    """Whether one process can train it."""
    full = program.rows % program.batch == 0
    return (full or program.data not in WHOLE_BATCHES) and (
        program.data == "full_batches" or program.step != "static_rows"
    )


def program_of(seed: int) -> Program:
    """Returns the program of a seed: the same one on every machine."""
    return program_by(random.Random(seed).choice)


@st.composite
def programs(draw: Any) -> Program:
    """Draws a program; Hypothesis makes it small."""
    return program_by(lambda options: draw(st.sampled_from(options)))


def smaller(program: Program) -> Iterator[Program]:
    """Yields programs that are a little simpler: each by one thing."""
    for i in range(len(program.layers) if len(program.layers) > 1 else 0):
        layers = program.layers[:i] + program.layers[i + 1 :]
        yield dataclasses.replace(program, layers=layers)
    for each in dataclasses.fields(program):
        if getattr(program, each.name) == each.default:
            continue
        simple = dataclasses.replace(program, **{each.name: each.default})
        if each.name not in ("layers", "inputs") and is_possible(simple):
            yield simple
    if program.inputs != "vector" and is_possible(
        simple := dataclasses.replace(program, inputs="vector", layers=("dense",))
    ):
        yield simple


def smallest(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Returns a program that fails, and of which every smaller one passes."""
    return next(
        (smallest(each, fails) for each in smaller(program) if fails(each)), program
    )
