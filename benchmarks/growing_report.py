"""Tables of the results of growing.py: pure functions of its JSON.

    python benchmarks/growing_report.py           # into docs/measured-embeddings.md
    python benchmarks/growing_report.py --check   # exits with status 1 if they differ

No number there is typed by hand.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pages
from peer_programs.clicks import TAGS
from peers_results import Measured, cpu, rate
from peers_workloads import WORKLOADS
from turns import Spread

STATIC, WARM, NEW = "tfdist-x10", "tfdist-growing-x10", "tfdist-growing-new-x10"
PADDLE, PADDLE_NEW = "paddle", "paddle-new"
_NAMES = {
    STATIC: "`tfdist.embedding.Embedding`",
    WARM: "`tfdist.embedding.DynamicEmbedding`",
    NEW: "`tfdist.embedding.DynamicEmbedding`, 10% new ids",
    PADDLE: "Paddle `sparse_embedding`",
    PADDLE_NEW: "Paddle `sparse_embedding`, 10% new ids",
}
_DRIFT_NAMES = {
    "growing": "`tfdist.embedding.DynamicEmbedding`, `ProbabilityFilter`, `EvictRare`",
    "hashing": "`keras.layers.Hashing`, `tfdist.embedding.Embedding`",
    "vocabulary": "the most frequent ids of the first chunk, `tfdist.embedding.Embedding`",
    "known": "none: the qualities themselves",
}
_ALONE = {
    "lookups": "rows/s looked up",
    "sgd": "rows/s updated by SGD",
    "adagrad": "rows/s updated by Adagrad",
}
_OPTIMIZERS = {"sgd": "SGD", "adagrad": "Adagrad"}
_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Target:
    """What was to be reached.

    Attributes:
        part: What has to be measured.
        what: A ratio or a number.
        spread: Returns its spread, given what the part has found.
        bound: What it is to reach.
        is_least: Whether more is better.
    """

    part: str
    what: str
    spread: Callable[[Any], Spread]
    bound: float
    is_least: bool = True

    def row(self, done: dict[str, Any]) -> list[str]:
        """Returns its row of the table."""
        found = self.spread(done[self.part]["found"])
        reached = (
            found.median >= self.bound if self.is_least else found.median <= self.bound
        )
        sign = "at least" if self.is_least else "at most"
        verdict = "reached" if reached else "missed"
        return [self.what, str(found), f"{sign} {self.bound:g}", verdict]


def _of(part: str, what: str, contender: str, other: str, least: float) -> Target:
    """Returns the target for the steps per second of a contender, of another's."""
    return Target(
        part,
        what,
        lambda found: Measured.from_dict(found).ratio(contender, other, rate),
        least,
    )


TARGETS = (
    *(
        _of(
            part,
            f"steps/s with {name}, rows there, of {_NAMES[STATIC]}",
            WARM,
            STATIC,
            0.9,
        )
        for part, name in _OPTIMIZERS.items()
    ),
    *(
        _of(part, f"steps/s with {name}, 10% new ids, of rows there", NEW, WARM, 0.6)
        for part, name in _OPTIMIZERS.items()
    ),
    _of("sgd", "steps/s with SGD, of Paddle's", WARM, PADDLE, 1.3),
    _of("sgd", "steps/s with SGD, 10% new ids, of Paddle's", NEW, PADDLE_NEW, 1.3),
    *(
        _of("alone", f"{name}, of TFRA's", f"tfdist-{what}", f"tfra-{what}", 1)
        for what, name in _ALONE.items()
    ),
    Target(
        "drift",
        "AUC with ids that come and go, of `Hashing`'s",
        lambda found: _of_hashing(found, "growing"),
        1,
    ),
    Target(
        "memory",
        "bytes per row beyond values and slots",
        lambda found: Spread.of(map(_beyond, found)),
        80,
        is_least=False,
    ),
    Target(
        "checkpoints",
        "seconds of a full checkpoint, of `tfdist.embedding.Embedding`'s",
        lambda found: _of_checkpoints(found, "save"),
        1.2,
        is_least=False,
    ),
)


def markdown(done: dict[str, Any]) -> str:
    """Returns the tables of the measured parts, in Markdown."""
    reached = [target.row(done) for target in TARGETS if target.part in done]
    tables = [pages.table(["what", "median (min to max)", "target", ""], reached)]
    found = {part: done[part]["found"] for part in _PARTS if part in done}
    if speeds := {part: found[part] for part in _OPTIMIZERS if part in found}:
        tables.append(_speed_table(speeds))
    tables += [make(found[part]) for part, make in _SECTIONS.items() if part in found]
    about = done["environment"]
    commands = [f"    {done[part]['command']}\n" for part in found]
    tables.append(
        f"Python {about['python']}, TensorFlow {about['tensorflow']}, Keras "
        f"{about['keras']}, {about['cores']} cores.\n\n"
        + "".join(dict.fromkeys(commands))
    )
    return "\n".join(tables)


def _speed_table(by_optimizer: dict[str, Any]) -> str:
    rows = []
    for optimizer, found in by_optimizer.items():
        measured = Measured.from_dict(found)
        rows += [_speed_row(measured, optimizer, name) for name in measured.contenders]
    steps = measured.learnt[0].steps
    rounds = 1 + max(each.index for each in measured.rounds)
    return (
        "The recommender of [peers](peers.md), 2 ps and 2 workers, 10 steps per call, "
        "tables of a million rows: medians of "
        f"{rounds} rounds, and the loss after {steps:,} steps.\n\n"
        + pages.table(
            [
                "optimizer, table",
                "steps/s",
                "of `tfdist.embedding.Embedding`",
                "CPU ms per step",
                "kB per step",
                "loss",
            ],
            rows,
        )
    )


def _speed_row(measured: Measured, optimizer: str, name: str) -> list[str]:
    loss = measured.loss(name)
    return [
        f"{_OPTIMIZERS[optimizer]}, {_NAMES[name]}",
        f"{measured.spread(name, rate):,.0f}",
        str(measured.ratio(name, STATIC, rate)),
        # That of Paddle has also written the files with new ids.
        "" if name == PADDLE_NEW else f"{measured.spread(name, cpu):.1f}",
        f"{measured.spread(name, lambda r: r.kilobytes):,.0f}",
        # New ids are noise: nothing can be learnt from them.
        "" if name in (NEW, PADDLE_NEW) or loss is None else f"{loss:.3f}",
    ]


def _alone_table(found: dict[str, Any]) -> str:
    measured = Measured.from_dict(found)
    ids = TAGS * WORKLOADS[measured.workload].batch_size
    rows = []
    for what, name in _ALONE.items():
        both = [f"{library}-{what}" for library in ("tfra", "tfdist")]
        rates = [measured.spread(each, lambda r: ids * rate(r)) for each in both]
        losses = [f"{measured.loss(each):.3f}" for each in both]
        rows.append([name, *(f"{each:,.0f}" for each in rates), ", ".join(losses)])
    about = measured.environment["tfra"]
    return (
        f"A table of its own in one process and one thread, {ids:,} ids in each step: rows "
        "per second, and the losses of both after "
        f"{measured.learnt[0].steps:,} steps. TFRA is TensorFlow Recommenders Addons "
        f"{about['tensorflow-recommenders-addons']}, under TensorFlow "
        f"{about['tensorflow']} and tf_keras {about['tf_keras']}.\n\n"
        + pages.table(["", "TFRA", _NAMES[WARM], "losses"], rows)
    )


def _aucs(found: Sequence[dict[str, Any]], contender: str) -> list[float]:
    """Returns a contender's mean AUC of each log, once its first quarter is over."""
    every = [each["auc"][contender] for each in found]
    return [statistics.mean(aucs[len(aucs) // 4 :]) for aucs in every]


def _of_hashing(found: Sequence[dict[str, Any]], contender: str) -> Spread:
    return Spread.of_ratios(_aucs(found, contender), _aucs(found, "hashing"))


def _drift_table(found: Sequence[dict[str, Any]]) -> str:
    about = found[0]
    rows = [
        [
            _DRIFT_NAMES[name],
            f"{about['rows'][name]:,}" if name in about["rows"] else "",
            f"{Spread.of(_aucs(found, name)):.4f}",
            f"{_of_hashing(found, name):.3f}",
        ]
        for name in about["auc"]
    ]
    return (
        "Clicks on ids that come and go, each with a quality of its own: of "
        f"{about['live']:,} that live at a time, {about['new']:,} are replaced after each of "
        f"{about['chunks']} chunks of {about['examples']:,} examples. A chunk is predicted "
        f"before it is trained on. Tables take {about['bytes'] / 1e6:.2f} MB, with "
        "Adagrad's slots and what rows take beside values: mean AUC after the first "
        f"quarter of {len(found)} logs.\n\n"
        + pages.table(["table", "rows", "AUC", "of `Hashing`'s"], rows)
    )


def _beyond(found: dict[str, Any]) -> float:
    """Returns the bytes per row beyond its values and slots."""
    last = found["read"][-1]
    return float(last["resident"] / last["rows"] - _values(found))


def _values(found: dict[str, Any]) -> int:
    return int(_FLOAT * found["width"] * (1 + found["slots"]))


def _memory_text(found: Sequence[dict[str, Any]]) -> str:
    last = found[0]["read"][-1]
    each = Spread.of(each["read"][-1]["resident"] / last["rows"] for each in found)
    return (
        f"The ps grew by {each:.0f} bytes for each of {last['rows']:,} rows that training "
        f"created under Adagrad, of which {_values(found[0])} are the {found[0]['width']} "
        f"values and their slots ({len(found)} clusters).\n"
    )


def _of_checkpoints(found: dict[str, Any], what: str) -> Spread:
    ours, theirs = ([turn[what] for turn in found[n]] for n in ("growing", "static"))
    return Spread.of_ratios(ours, theirs)


def _checkpoint_table(found: dict[str, Any]) -> str:
    rows = [
        [
            _NAMES[name],
            str(Spread.of(turn["save"] for turn in found[kind])),
            str(Spread.of(turn["restore"] for turn in found[kind])),
            f"{found[kind][-1]['bytes'] / 1e6:,.0f}",
        ]
        for kind, name in (("static", STATIC), ("growing", WARM))
    ]
    return (
        f"A full checkpoint of {found['rows']:,} rows of 16 and Adagrad's slots, on 2 ps: "
        f"{len(found['static'])} rounds. Restoring takes {_of_checkpoints(found, 'restore')} "
        "times as long.\n\n"
        + pages.table(["table", "save, s", "restore, s", "MB"], rows)
    )


_SECTIONS: dict[str, Callable[[Any], str]] = {
    "alone": _alone_table,
    "drift": _drift_table,
    "memory": _memory_text,
    "checkpoints": _checkpoint_table,
}
_PARTS = (*_OPTIMIZERS, *_SECTIONS)


def main(argv: Sequence[str]) -> int:
    """Writes the document, or checks it; returns the exit status."""
    tables = markdown(pages.measured("growing"))
    page = pages.DOCS / "measured-embeddings.md"
    sections = {"growing": f"\n{tables}\n{pages.recorded('growing')}\n"}
    return pages.publish(page, sections, "--check" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
