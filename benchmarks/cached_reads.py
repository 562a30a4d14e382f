"""The bytes of a step against the loss: exchanges each step, each k steps, when changed.

    sudo .venv/bin/python benchmarks/cached_reads.py --json=cached_reads.json
    ... benchmarks/cached_reads.py --markdown=cached_reads.md

Two ps, two workers and a chief are processes in network namespaces of their own, and the
interfaces of the ps count all bytes, in and out, of the epochs after the first. For each
seed, the same model is trained under each exchange in turn, from the same weights.
"""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from namespace_cluster import Cluster, cluster, host_names
from netns import NetworkError, network
from results import Spread

CHIEF = Path(__file__).resolve().parent / "cached_reads_chief.py"
NUM_PS = NUM_WORKERS = 2
THRESHOLDS = {"cnn": (0.25, 0.5, 1.0, 2.0), "recommender": (0.1, 0.3, 1.0, 3.0)}
EPOCHS = {"cnn": 8, "recommender": 2}
TODAY = ("every", 1.0)
AGAIN = ("again", 1.0)
"""The same once more: how far its losses are apart is what no comparison can see."""


def define_flags() -> None:
    flags.DEFINE_list("models", list(THRESHOLDS), "Which to train.")
    flags.DEFINE_integer("seeds", 5, "Runs under each exchange.", lower_bound=1)
    flags.DEFINE_bool("falling", True, "Whether learning rates fall to 0.")
    flags.DEFINE_string("rate", None, "Of every link, as tc says it: 200mbit, say.")
    flags.DEFINE_string("json", None, "Write every measurement to this file.")
    flags.DEFINE_string("markdown", None, "Write tables to this file.")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A run under one exchange.

    Attributes:
        model: One of `THRESHOLDS`.
        seed: Of the weights and of the order of the examples.
        kind: "every", "again" for the same, or "changed" for `WhenChanged`.
        number: The steps between two exchanges, or the threshold.
        steps: Those that were counted.
        ps_bytes: Received and sent by all ps, in all of these.
        seconds: That these took.
        loss: Of the validation data, at the end.
    """

    model: str
    seed: int
    kind: str
    number: float
    steps: int
    ps_bytes: int
    seconds: float
    loss: float

    @property
    def exchange(self) -> tuple[str, float]:
        """What is compared."""
        return self.kind, self.number

    @property
    def bytes_per_step(self) -> float:
        """Of all ps, both ways."""
        return self.ps_bytes / self.steps


def exchanges(model: str) -> list[tuple[str, float]]:
    """Returns what to compare."""
    changed = [("changed", each) for each in THRESHOLDS[model]]
    return [TODAY, AGAIN, ("every", 5.0), *changed]


def measure(
    started: Cluster, model: str, seed: int, kind: str, number: float, falling: bool
) -> Measurement:
    """Trains once."""
    started.ask(
        do="prepare",
        model=model,
        seed=seed,
        epochs=EPOCHS[model],
        falling=falling,
        exchange={"kind": kind, "number": number},
    )
    before, _ = started.bytes()
    begin = time.monotonic()
    steps = int(started.ask(do="train", epochs=EPOCHS[model] - 1)["steps"])
    seconds = time.monotonic() - begin
    after, _ = started.bytes()
    loss = started.ask(do="loss")["loss"]
    return Measurement(model, seed, kind, number, steps, after - before, seconds, loss)


def measurements(
    models: Iterable[str], seeds: int, rate: str | None, falling: bool
) -> Iterator[Measurement]:
    """Trains each model under each exchange."""
    with (
        network(host_names(NUM_PS, NUM_WORKERS)) as hosts,
        cluster(hosts, NUM_PS, CHIEF, NUM_WORKERS) as started,
    ):
        hosts.shape(rate)
        for model in models:
            for seed in range(seeds):
                for kind, number in exchanges(model):
                    yield measure(started, model, seed, kind, number, falling)


def table(found: Sequence[Measurement]) -> str:
    """Returns a row for each exchange of one model; pairs of a seed are compared."""
    today = {each.seed: each for each in found if each.exchange == TODAY}
    lines = [
        "| exchange | bytes per step | times fewer | loss | loss / `Every(1)` | rate / "
        "`Every(1)` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for exchange in dict.fromkeys(each.exchange for each in found):
        of_it = [each for each in found if each.exchange == exchange]
        pairs = [(each, today[each.seed]) for each in of_it if each.seed in today]
        fewer = Spread.of(old.bytes_per_step / new.bytes_per_step for new, old in pairs)
        losses = Spread.of(new.loss / old.loss for new, old in pairs)
        rates = Spread.of(
            old.seconds / old.steps * new.steps / new.seconds for new, old in pairs
        )
        size = statistics.median(each.bytes_per_step for each in of_it)
        loss = statistics.median(each.loss for each in of_it)
        lines.append(
            f"| {name_of(*exchange)} | {size:,.0f} | {fewer} | {loss:.4f} | "
            f"{losses.median:.3f} ({losses.least:.3f} to {losses.greatest:.3f}) | {rates} |"
        )
    return "\n".join(lines)


def name_of(kind: str, number: float) -> str:
    """Returns an exchange as a program writes it."""
    if kind == "changed":
        return f"`WhenChanged({number:g})`"
    return f"`Every({number:g})`" + (", once more" if kind == "again" else "")


def main(argv: list[str]) -> int:
    """Runs the benchmark.

    Returns:
        The exit status: 2 if the network cannot be created.
    """
    del argv
    given = flags.FLAGS
    found: list[Measurement] = []
    try:
        for each in measurements(given.models, given.seeds, given.rate, given.falling):
            found.append(each)
            print(each, flush=True)
    except NetworkError as error:
        print(error, file=sys.stderr)
        return 2
    pages = []
    for model in given.models:
        pages.append(f"{model}:\n\n{table([m for m in found if m.model == model])}")
    print("\n\n".join(pages))
    if given.json:
        rows: list[dict[str, Any]] = [dataclasses.asdict(each) for each in found]
        Path(given.json).write_text(json.dumps(rows, indent=1) + "\n")
    if given.markdown:
        Path(given.markdown).write_text("\n\n".join(pages) + "\n")
    return 0


if __name__ == "__main__":
    define_flags()
    app.run(main)
