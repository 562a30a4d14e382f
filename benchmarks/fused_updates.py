"""CPU time of an optimizer's update on a ps: Keras's operations, and the fused kernel.

    python benchmarks/fused_updates.py              # a table
    python benchmarks/fused_updates.py --markdown   # into docs/throughput.md

Both update the weights of an MLP (784-256-10: 203,530 numbers in four variables) that
this process holds. They take turns, and each ratio compares repeats in succession.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from absl import app, flags
from results import Spread

from tfdist.variables import fused_update
from tfdist.variables.variable import ParameterServerVariable

PAGE = Path(__file__).resolve().parent.parent / "docs" / "throughput.md"
BEGIN, END = "<!-- fused-updates:begin -->", "<!-- fused-updates:end -->"
SHAPES = ((784, 256), (256,), (256, 10), (10,))
# One call from Python per so many updates, so that the call does not count.
UPDATES_PER_CALL = 10
OPTIMIZERS = {
    "`SGD`": lambda: keras.optimizers.SGD(0.01),
    "`SGD(momentum=0.9)`": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "`Adam`": lambda: keras.optimizers.Adam(0.001),
    "`Adam(amsgrad=True)`": lambda: keras.optimizers.Adam(0.001, amsgrad=True),
    "`RMSprop(momentum=0.9)`": lambda: keras.optimizers.RMSprop(0.001, momentum=0.9),
    "`Adamax`": lambda: keras.optimizers.Adamax(0.001),
    "`Adadelta`": lambda: keras.optimizers.Adadelta(1.0),
    "`Ftrl`": lambda: keras.optimizers.Ftrl(0.01),
}

FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_integer("repeats", 9, "Measured repeats of each.", lower_bound=5)
    flags.DEFINE_integer("calls", 20, "Calls per repeat.", lower_bound=1)
    flags.DEFINE_integer("threads", 1, "Threads that compute.", lower_bound=1)
    flags.DEFINE_bool("markdown", False, "Write the table into docs/throughput.md.")


def updates(make: Callable[[], Any], is_fused: bool) -> Callable[[], None]:
    """Returns a function that updates all weights `UPDATES_PER_CALL` times."""

    def on_ps(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return ParameterServerVariable(next_creator(**kwargs), num_workers=2)

    with tf.variable_creator_scope(on_ps):
        optimizer = make()
        weights = [tf.Variable(tf.random.normal(shape)) for shape in SHAPES]
        optimizer.build(weights)
    # Of each update its own: what updates have in common, TensorFlow computes once.
    gradients = [
        [tf.random.normal(shape) for shape in SHAPES] for _ in range(UPDATES_PER_CALL)
    ]

    @tf.function
    def call(gradients: Sequence[Sequence[tf.Tensor]]) -> None:
        for of_weights in gradients:
            for gradient, weight in zip(of_weights, weights, strict=True):
                given = (gradient, weight, optimizer.learning_rate)
                if not is_fused:
                    optimizer.update_step(*given)
                elif not fused_update.update(optimizer, *given):
                    raise ValueError(f"{optimizer.name} has no fused kernel")
            optimizer.iterations.assign_add(1)

    return lambda: call(gradients)


def cpu_ms(call: Callable[[], None], calls: int) -> float:
    """Returns the CPU time per update, in milliseconds."""
    before = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - before) / (calls * UPDATES_PER_CALL) * 1e3


def row(name: str, repeats: int, calls: int) -> str:
    make = OPTIMIZERS[name]
    both = [updates(make, is_fused) for is_fused in (False, True)]
    for call in both:
        cpu_ms(call, calls)  # traces
    times = [[cpu_ms(call, calls) for call in both] for _ in range(repeats)]
    ratio = Spread.of(fused / keras for keras, fused in times)
    keras_ms, fused_ms = (statistics.median(each) for each in zip(*times, strict=True))
    return f"| {name} | {keras_ms:.2f} | {fused_ms:.2f} | {ratio} |"


def table(repeats: int, calls: int) -> str:
    """Returns one row per optimizer."""
    lines = [
        "| optimizer | Keras's operations, ms | fused kernel, ms | ratio |",
        "| --- | --- | --- | --- |",
        *(row(name, repeats, calls) for name in OPTIMIZERS),
    ]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    del argv
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    measured = table(FLAGS.repeats, FLAGS.calls)
    print(measured)
    if FLAGS.markdown:
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{measured}\n{END}{after}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
