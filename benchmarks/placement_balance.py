"""How evenly placements spread well-known models over parameter servers.

    python benchmarks/placement_balance.py --json=benchmarks/measured/placement_balance.json
    python benchmarks/placement_balance.py --markdown  # into docs/measured-placement.md
    python benchmarks/placement_balance.py --check     # exits with status 1 if it differs

The figures are bytes on the fullest ps over the mean, with Adam's slots: 1 is perfect. No
model is allocated and no cluster is started. `--markdown` writes the results of `--json`
between the marks of the page, so no number there is typed by hand.
"""

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pages
import turns
from absl import app, flags

from tfdist.placement.greedy import GreedyLoadBalancing
from tfdist.placement.placement import Placement, RoundRobin
from tfdist.placement.variable_spec import VariableSpec
from tfdist.planning.arguments import BALANCES
from tfdist.planning.planner import TARGET, plan_variables
from tfdist.planning.weight import Weight

NUM_PS = (2, 4, 8, 16)
SHOWN_PS = (4, 16)
"""Of these, what the page shows."""
MILLION = 1_000_000
SCALE_NUM_PS = 1_000


@dataclass(frozen=True)
class Row:
    """One model on a number of ps: fullest over mean, for each placement."""

    model: str
    num_ps: int
    round_robin: float
    greedy: float
    planned: float
    cuts: int
    split: int
    unsplit_bound: float
    bound: float
    traffic: float


@dataclass(frozen=True)
class Weighed:
    """One model on a number of ps, planned for each `balance`."""

    model: str
    num_ps: int
    balance: str
    memory: float
    traffic: float
    cuts: int


@dataclass(frozen=True)
class Scale:
    """The planning of a very large model. Times are in seconds."""

    variables: int
    num_ps: int
    seconds: float
    planned: float
    cuts: int


def placed(weights: Sequence[Weight], placement: Placement, num_ps: int) -> float:
    """Returns fullest over mean, with slots next to their weights."""
    totals = [0] * num_ps
    for weight in weights:
        totals[placement.place(weight.spec, num_ps)] += weight.memory
    return max(totals) * num_ps / sum(totals)


def compare(model: str, weights: Sequence[Weight], num_ps: int) -> Row:
    plan = plan_variables(weights, num_ps)
    return Row(
        model,
        num_ps,
        placed(weights, RoundRobin(), num_ps),
        placed(weights, GreedyLoadBalancing(), num_ps),
        plan.imbalance,
        plan.cuts,
        len(plan.split),
        plan.unsplit_bound,
        plan.bound,
        plan.traffic_imbalance,
    )


def weigh(model: str, weights: Sequence[Weight], num_ps: int, balance: str) -> Weighed:
    plan = plan_variables(weights, num_ps, balance=balance)
    return Weighed(
        model, num_ps, balance, plan.imbalance, plan.traffic_imbalance, plan.cuts
    )


def scale(count: int = MILLION, num_ps: int = SCALE_NUM_PS) -> Scale:
    """Plans variables of 4 B to 40 MB, and one of 25.6 GB, each with two slots."""
    draw = random.Random(1)
    shapes = [
        (int(10 ** draw.uniform(0, 4)), draw.choice((1, 16, 64, 1024)))
        for _ in range(count - 1)
    ]
    weights = [
        Weight(VariableSpec(f"layer_{i}/kernel", shape, "float32", 4), ("m", "v"))
        for i, shape in enumerate([(100_000_000, 64), *shapes])
    ]
    start = time.perf_counter()
    plan = plan_variables(weights, num_ps)
    seconds = time.perf_counter() - start
    return Scale(count, num_ps, round(seconds, 2), plan.imbalance, plan.cuts)


def measure() -> dict:
    # Imported late: only this needs Keras, and `--check` should be quick.
    import model_zoo

    from tfdist.planning.sizes import weights_of

    rows, weighed = [], []
    for model, build in model_zoo.MODELS.items():
        lookups = model_zoo.LOOKUPS.get(model)
        weights = weights_of(build, lookups=lookups)
        rows += [compare(model, weights, num_ps) for num_ps in NUM_PS]
        if lookups:
            weighed += [
                weigh(model, weights, num_ps, balance)
                for num_ps in NUM_PS
                for balance in BALANCES
            ]
        print(model, *(f"{r.planned:.4f}" for r in rows[-len(NUM_PS) :]), flush=True)
    return {
        "rows": [asdict(row) for row in rows],
        "weighed": [asdict(each) for each in weighed],
        "scale": asdict(scale()),
        "environment": turns.environment("keras", "tensorflow"),
    }


def balance_table(rows: Sequence[Row]) -> str:
    """Returns a Markdown table of every model on some numbers of ps."""
    heads = (
        "model",
        "ps",
        "round robin",
        "greedy",
        "best without splits",
        "**planned**",
        "split (cuts)",
        "at best",
        "traffic",
    )
    cells = [
        (
            row.model,
            row.num_ps,
            f"{row.round_robin:.3f}",
            f"{row.greedy:.3f}",
            f"{row.unsplit_bound:.3f}",
            f"**{row.planned:.3f}**",
            f"{row.split} ({row.cuts})" if row.cuts else "none",
            f"{row.bound:.3f}",
            f"{row.traffic:.3f}",
        )
        for row in rows
        if row.num_ps in SHOWN_PS
    ]
    return pages.table(heads, cells)


def weighed_table(weighed: Sequence[Weighed]) -> str:
    """Returns a table of the cost of balancing traffic."""
    heads = ("model", "ps", "`balance`", "memory", "traffic", "cuts")
    cells = [
        (
            each.model,
            each.num_ps,
            each.balance,
            f"{each.memory:.3f}",
            f"{each.traffic:.3f}",
            each.cuts,
        )
        for each in weighed
        if each.num_ps in SHOWN_PS
    ]
    return pages.table(heads, cells)


def sections(measured: dict) -> dict[str, str]:
    """Returns the text between each pair of marks of the page."""
    rows = [Row(**row) for row in measured["rows"]]
    worst = max(rows, key=lambda row: row.planned)
    size = Scale(**measured["scale"])
    about = measured["environment"]
    return {
        "balance": (
            f"{balance_table(rows)}\n"
            f"The worst of these plans reaches {worst.planned:.4f} ({worst.model} on "
            f"{worst.num_ps} ps); the target is {TARGET}. Computed by `python "
            f"benchmarks/placement_balance.py` with TensorFlow {about['tensorflow']} "
            f"and Keras {about['keras']}.\n"
        ),
        "traffic": weighed_table([Weighed(**each) for each in measured["weighed"]]),
        "scale": (
            f"Planning a model of {size.variables:,} variables for {size.num_ps:,} ps "
            f"takes {size.seconds:.1f} s and reaches {size.planned:.4f} with {size.cuts} "
            f"cuts.\n\n{pages.recorded('placement_balance')}"
        ),
    }


def main(argv: Sequence[str]) -> int:
    """Measures, or writes or checks the page, and returns the exit status."""
    options = flags.FLAGS
    if options.markdown or options.check:
        shown = sections(pages.measured("placement_balance"))
        return pages.publish(pages.DOCS / "measured-placement.md", shown, options.check)
    measured = measure()
    for section in sections(measured).values():
        print(section)
    turns.keep(options.json, measured)
    return 0


if __name__ == "__main__":
    pages.define_flags()
    app.run(lambda argv: sys.exit(main(argv)))
