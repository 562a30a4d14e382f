"""What steps without a loop cost before the first of them, by the size of the model.

    python benchmarks/step_chunks.py                # a table
    python benchmarks/step_chunks.py --markdown     # into docs/throughput.md

Each row is a cluster of its own, of 2 ps and a worker: its first and its second message
of 20 steps, in a loop over one step, in chunks of any size, or in the chunks that tfdist
chooses. `LONGEST_CHUNK` and `LARGEST_CHUNK` of `unrolling.py` follow from it.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from absl import app, flags

PAGE = Path(__file__).resolve().parent.parent / "docs" / "throughput.md"
BEGIN, END = "<!-- step-chunks:begin -->", "<!-- step-chunks:end -->"
STEPS = 20
UNLIMITED = 10**9
WAYS = {"loop": (1, 1), "unrolled": (STEPS, UNLIMITED), "tfdist": None}

FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_list("models", list(MODELS), f"Of {', '.join(MODELS)}.")
    flags.DEFINE_list("ways", list(WAYS), f"Of {', '.join(WAYS)}.")
    flags.DEFINE_integer("repeats", 3, "Clusters per row.", lower_bound=1)
    flags.DEFINE_bool("markdown", False, "Write the table into docs/throughput.md.")
    flags.DEFINE_string("probe", None, "A model and a way: be the chief of such a row.")


def mlp() -> Any:
    import keras

    dense = keras.layers.Dense
    return keras.Sequential([keras.Input((784,)), dense(256, "relu"), dense(10)])


def cnn() -> Any:
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def transformer() -> Any:
    import keras
    from keras import layers

    x = inputs = keras.Input((16, 32))
    for _ in range(6):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x))
        hidden = layers.Dense(64, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(32)(hidden))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def resnet50() -> Any:
    import keras

    return keras.applications.ResNet50(
        weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None
    )


MODELS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (mlp, cnn, transformer, resnet50)
}


def probe(name: str, way: str) -> None:
    """Trains as the chief, and prints what it measured."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tfdist.parameter_server.fit import worker_function
    from tfdist.parameter_server.step_graph import unrolling

    if limits := WAYS[way]:
        unrolling.LONGEST_CHUNK, unrolling.LARGEST_CHUNK = limits
    made: list[Any] = []
    make = worker_function.WorkerFunction.__init__

    def noted(self: Any, *args: Any) -> None:
        make(self, *args)
        made.append(self)

    worker_function.WorkerFunction.__init__ = noted
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = MODELS[name]()
        model.compile(
            keras.optimizers.Adam(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=STEPS,
        )
    images = np.zeros((8, *model.input_shape[1:]), np.float32)
    labels = np.zeros(8, np.int32)
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    seconds = []
    for _ in range(3):
        before = time.perf_counter()
        model.fit(data, steps_per_epoch=STEPS, verbose=0)
        seconds.append(time.perf_counter() - before)
    mib = {job: memory_mib(job) for job in ("chief", "ps", "worker")}
    row = {"operations": made[0].step.size, "seconds": seconds, "mib": mib}
    print(f"ROW {json.dumps(row)}", flush=True)


def memory_mib(job: str) -> int:
    """Returns the largest resident set of the tasks of a job of this cluster."""
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    sizes = []
    for process in psutil.process_iter():
        try:
            other = json.loads(process.environ().get("TF_CONFIG", "{}"))
            if other.get("cluster") == cluster and other["task"]["type"] == job:
                sizes.append(process.memory_info().rss)
        except (psutil.Error, KeyError, ValueError):
            continue
    return max(sizes) >> 20


def run(name: str, way: str) -> dict[str, Any]:
    """Returns what a cluster of its own measured."""
    command = [sys.executable, "-m", "launch.local", "--num_ps=2", "--num_workers=1"]
    command += [__file__, f"--probe={name},{way}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if "ROW {" in line]
    if not rows:
        sys.exit(f"step_chunks.py: {name} {way} failed:\n{done.stdout}{done.stderr}")
    return json.loads(rows[0].partition("ROW ")[2])


def table(models: Sequence[str], ways: Sequence[str], repeats: int) -> str:
    """Returns one row per model and way; repeats of all ways take turns."""
    lines = [
        "| model | operations of a step | 20 steps as | first message, s "
        "| later ones, s | chief, ps, worker, MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in models:
        turns = [{way: run(name, way) for way in ways} for _ in range(repeats)]
        for way in ways:
            rows = [turn[way] for turn in turns]
            first = statistics.median(row["seconds"][0] for row in rows)
            later = statistics.median(row["seconds"][2] for row in rows)
            memory = [
                round(statistics.median(row["mib"][job] for row in rows))
                for job in ("chief", "ps", "worker")
            ]
            lines.append(
                f"| {name} | {rows[0]['operations']:,} | {way} | {first:.1f} "
                f"| {later:.2f} | {', '.join(map(str, memory))} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    del argv
    if FLAGS.probe:
        probe(*FLAGS.probe.split(","))
        return
    measured = table(FLAGS.models, FLAGS.ways, FLAGS.repeats)
    print(measured)
    if FLAGS.markdown:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{measured}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
