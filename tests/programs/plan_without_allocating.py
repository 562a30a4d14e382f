"""Print how much memory it takes to plan large models."""

import json
import tracemalloc
from pathlib import Path

import keras

from tfdist.planning.model import plan


def vgg16():
    model = keras.applications.VGG16(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def table():
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Embedding(20_000_000, 16)]
    )
    model.compile(keras.optimizers.Adagrad(), "mse")
    return model


def warm_up():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def resident(field):
    # Not ru_maxrss: a process begins with what its parent had.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(field + ":")[1].split()[0])


plan(warm_up, 2)
tracemalloc.start()
before = resident("VmRSS")
planned = {build.__name__: sum(plan(build, 4).bytes_per_ps) for build in (vgg16, table)}
grown = resident("VmHWM") - before
print(json.dumps([planned, grown, tracemalloc.get_traced_memory()[1]]))
