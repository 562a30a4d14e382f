"""Draws who waits for whom, from runs of the linear predictor on threads.

    python benchmarks/consistency_pictures.py    # writes docs/consistency_waits.png
    python benchmarks/consistency_pictures.py --picture=docs/consistency_timeline.png \
        --timelines=bounded_0.json,bounded_4.json,asynchronous.json

The second command draws what `launch.local --timeline=FILE` has written, a panel per file.

Three threads share the weights. A step takes 10 ms, and 30 ms on thread 0. Each panel is
the same stretch of a run under one policy: what was measured, not what should have been.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

import linear_predictor  # noqa: E402

PICTURE = ROOT / "docs" / "consistency_waits.png"
THREADS = 3
PANELS = {
    "sequential": "BoundedStaleness(0): one after the other",
    "synchronous": "Synchronous(): rounds",
    "bounded": "BoundedStaleness(4)",
    "asynchronous": "Asynchronous(): nobody waits",
}
COLOURS = {"compute": "#4c78a8", "wait": "#f2cf8f"}
FIRST, SECONDS = 0.1, 0.25
HALF = (-0.35, 0.35)
PARTS = {
    "wait to start": "#f2cf8f",
    "pull": "#9ecae9",
    "compute": "#4c78a8",
    "push": "#88d27a",
    "wait to write": "#e0a93b",
    "write": "black",
}
MILLISECONDS = 25.0


def define_flags() -> None:
    """Defines the command-line flags."""
    flags.DEFINE_string("picture", str(PICTURE), "The PNG file to write.")
    flags.DEFINE_list("timelines", [], "Files of launch.local --timeline to draw.")


def events_of(how: str) -> list[Any]:
    """Runs a pass under a policy, and returns its events, with times from 0."""
    options = flags.FLAGS
    options.how, options.workers, options.max_staleness = how, THREADS, 4
    options.pause, options.slow = 0.01, 3.0
    options.examples, options.batch_size = 9216, 96
    shared = linear_predictor.SharedWeights(THREADS)
    linear_predictor.run_threads(shared, *linear_predictor.make_data())
    return from_zero(shared.events)


def from_zero(events: Sequence[Any]) -> list[Any]:
    """Returns the events with times that begin with the first."""
    start = min(each.begin for each in events)
    return [e._replace(begin=e.begin - start, end=e.end - start) for e in events]


def summary(events: Sequence[Any]) -> tuple[float, float]:
    """Returns the share of their time that threads waited, and their writes per second."""
    waited = sum(each.end - each.begin for each in events if each.what == "wait")
    in_all = sum(each.end - each.begin for each in events)
    writes = sum(each.what == "write" for each in events)
    return waited / in_all, writes / max(each.end for each in events)


def draw(runs: dict[str, list[Any]], path: str) -> None:
    """Draws a panel per run: a bar per wait and computation, a line per write."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True)
    for panel, (how, events) in zip(panels, runs.items(), strict=True):
        for event in events:
            if event.what == "write":
                panel.plot(
                    2 * [1e3 * event.begin],
                    [event.worker + each for each in HALF],
                    "k",
                    lw=1.5,
                )
                continue
            panel.barh(
                event.worker,
                1e3 * (event.end - event.begin),
                left=1e3 * event.begin,
                height=0.7,
                color=COLOURS[event.what],
                edgecolor="white",
                linewidth=0.4,
            )
        waited, rate = summary(events)
        title = f"{PANELS[how]}: waited {waited:.0%}, {rate:.0f} gradients per second"
        panel.set_title(title, loc="left", fontsize=10)
        panel.set(yticks=range(THREADS), xlim=(1e3 * FIRST, 1e3 * (FIRST + SECONDS)))
        panel.set_yticklabels(["thread 0 (slow)", "thread 1", "thread 2"])
        panel.invert_yaxis()
    panels[-1].set_xlabel("milliseconds")
    handles = [panels[0].barh(0, 0, color=colour) for colour in COLOURS.values()]
    names = ["computes", "waits", "a write"]
    handles.append(panels[0].plot([], [], "k")[0])
    figure.legend(handles, names, loc="outside upper right", ncols=3)
    figure.savefig(path, format="png", dpi=110)


def steps_of(text: str) -> list[Any]:
    """Returns the parts of the steps in a timeline, by their begin in microseconds."""
    # A file of Chrome's format may do without its last bracket.
    events = json.loads(text.rstrip().removesuffix("]").rstrip().rstrip(",") + "]")
    return sorted(
        (each for each in events if each["name"] in PARTS), key=lambda each: each["ts"]
    )


def busiest(steps: Sequence[Any], microseconds: float) -> float:
    """Returns the begin of the stretch of a given length in which most parts begin."""
    begins = [each["ts"] for each in steps]
    count = {b: sum(b <= a < b + microseconds for a in begins) for b in begins[::20]}
    return max(count, key=count.__getitem__)


def draw_timelines(timelines: dict[str, list[Any]], path: str) -> None:
    """Draws a panel per timeline: its busiest stretch, a row per worker."""
    from matplotlib.figure import Figure

    size = (10, 1 + 1.4 * len(timelines))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (name, steps) in zip(panels, timelines.items(), strict=True):
        begin = busiest(steps, 1e3 * MILLISECONDS)
        for each in steps:
            left = (each["ts"] - begin) / 1e3
            if -MILLISECONDS < left < MILLISECONDS:
                panel.barh(
                    each["pid"],
                    each["dur"] / 1e3,
                    left=left,
                    height=0.7,
                    color=PARTS[each["name"]],
                )
        workers = sorted({each["pid"] for each in steps})
        panel.set(yticks=workers, xlim=(0, MILLISECONDS))
        panel.set_yticklabels([f"worker {worker}" for worker in workers])
        panel.set_title(name, loc="left", fontsize=10)
        panel.invert_yaxis()
    panels[-1].set_xlabel("milliseconds")
    handles = [panels[0].barh(0, 0, color=colour) for colour in PARTS.values()]
    figure.legend(handles, PARTS, loc="outside upper right", ncols=len(PARTS))
    figure.savefig(path, format="png", dpi=110)


def main(argv: list[str]) -> None:
    """Runs, and draws."""
    del argv
    if flags.FLAGS.timelines:
        files = map(Path, flags.FLAGS.timelines)
        timelines = {each.stem: steps_of(each.read_text()) for each in files}
        draw_timelines(timelines, flags.FLAGS.picture)
        return
    runs = {how: events_of(how) for how in PANELS}
    draw(runs, flags.FLAGS.picture)
    for how, events in runs.items():
        waited, rate = summary(events)
        print(f"{how}: waited {waited:.1%}, {rate:.1f} gradients per second")


if __name__ == "__main__":
    define_flags()
    app.run(main)
