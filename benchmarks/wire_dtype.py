"""The effect of half precision on the wire on the accuracy on MNIST.

    python benchmarks/wire_dtype.py              # a table
    python benchmarks/wire_dtype.py --markdown   # into docs/algorithms.md

examples/mnist_cnn.py trains once per seed and wire dtype on a ring of 4 devices, from the
same weights, on the same batches. It trains twice in float32: differences no larger than
those of these two runs are noise.
"""

import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import app, flags

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "algorithms.md"
BEGIN, END = "<!-- wire-dtype:begin -->", "<!-- wire-dtype:end -->"
RUNS = {
    "float32": [],
    "float32, again": [],
    "bfloat16": ["--wire_dtype=bfloat16"],
    "float16": ["--wire_dtype=float16"],
}

FLAGS = flags.FLAGS


def define_flags() -> None:
    flags.DEFINE_integer("seeds", 5, "Trainings of each kind.", lower_bound=2)
    flags.DEFINE_integer("epochs", 5, "Of each training.", lower_bound=1)
    flags.DEFINE_bool("markdown", False, "Write the table into docs/algorithms.md.")


def accuracy(seed: int, epochs: int, options: Sequence[str]) -> float:
    """Trains, and returns the accuracy on the test images.

    Raises:
        subprocess.CalledProcessError: If it failed; its output is on stderr.
    """
    command = [
        *(sys.executable, ROOT / "examples" / "mnist_cnn.py", "--strategy=mirrored"),
        *(f"--seed={seed}", f"--epochs={epochs}", *options),
    ]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(re.search(r"Test accuracy: ([\d.]+)", said)[1])


def table(found: Mapping[str, Sequence[float]]) -> str:
    """Returns one row per kind, with the differences from the first for each seed."""
    first, *_ = found.values()
    lines = [
        "| on the wire | mean accuracy | least, most | mean difference, of the same seed | largest |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, of_seeds in found.items():
        apart = [one - other for one, other in zip(of_seeds, first, strict=True)]
        lines.append(
            f"| {kind} | {statistics.mean(of_seeds):.4f} | {min(of_seeds):.4f}, "
            f"{max(of_seeds):.4f} | {statistics.mean(apart):+.4f} | "
            f"{max(apart, key=abs):+.4f} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"only flags are allowed; received {argv[1:]}")
    found: dict[str, list[float]] = {kind: [] for kind in RUNS}
    for seed in range(FLAGS.seeds):
        for kind, options in RUNS.items():
            found[kind].append(accuracy(seed, FLAGS.epochs, options))
            print(f"seed {seed}, {kind}: {found[kind][-1]:.4f}", flush=True)
    text = (
        f"{table(found)}\n\nMNIST (5,000 images), {FLAGS.epochs} epochs on 4 devices, "
        f"{FLAGS.seeds} seeds, by `python benchmarks/wire_dtype.py`.\n"
    )
    print(f"\n{text}")
    if FLAGS.markdown:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN, 1)
        _, after = rest.split(END, 1)
        PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
