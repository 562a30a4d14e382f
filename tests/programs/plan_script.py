"""Functions for `python -m tfdist.plan` to plan, and others."""

import keras
from absl import flags

# Of the same name as a flag of the command.
flags.DEFINE_integer("num_ps", 1, "Of the script.")
flags.DEFINE_integer("units", 100, "Of the script.")


def build_model():
    model = keras.Sequential(
        [
            keras.Input((30,)),
            keras.layers.Embedding(1000, 8, name="words"),
            keras.layers.Dense(flags.FLAGS.units, name="out"),
        ]
    )
    model.compile("adam", "mse")
    return model


def not_compiled():
    return keras.Sequential([keras.Input((30,)), keras.layers.Dense(3)])


def broken():
    raise ZeroDivisionError("of the user's own")


def no_model():
    return 7


a_model = 5
