"""Real Keras scripts give the same results under each strategy as in plain Keras."""

import dataclasses

import numpy as np
import pytest

from . import job
from .comparison import Row, Script, all_scripts
from .job import Outcome

SCRIPTS = all_scripts()


@pytest.fixture(scope="module")
def found(request):
    """Run the selected scripts under a strategy once, in as few jobs as possible."""
    runs = {}
    selected = {
        (item.callspec.params["name"], item.callspec.params["strategy"])
        for item in request.session.items
        if item.function is test_trains_as_in_plain_keras
    }

    def run(strategy):
        if strategy not in runs:
            names = {name for name, under in selected if strategy in (under, "plain")}
            runs[strategy] = job.run(job.Way(strategy), sorted(names))
        return runs[strategy]

    return run


# What `make test-all` runs; `make scripts` runs every script under each strategy. The ring
# shares what a step computes with `multi_worker`.
IN_PART = {
    "parameter_server": {"ddim", "lookups_in_model", "transfer_learning"},
    "multi_worker": {"contrastive_views", "custom_loop", "gpt", "wgan_gp"},
}


def marks(name, strategy):
    return [] if name in IN_PART.get(strategy, ()) else [pytest.mark.thorough]


ROWS = [
    pytest.param(name, strategy, id=f"{name}-{strategy}", marks=marks(name, strategy))
    for strategy in job.LAUNCH
    for name in SCRIPTS
]


@pytest.mark.cluster
@pytest.mark.timeout(3600)  # The first one of a strategy runs all scripts.
@pytest.mark.parametrize(("name", "strategy"), ROWS)
def test_trains_as_in_plain_keras(found, name, strategy):
    row = Row(Script.read(name), strategy, found(strategy)[name], found("plain")[name])
    assert not row.why_not, f"{row.why_not}\n{row.outcome.traceback}"


PLAIN = Outcome({"loss": 1.0}, ((np.array([1.0, 2.0]),),))
SCRIPT = Script("script", same_weights=True, within=0.1, refused={})


def outcome(loss, *weights):
    """An outcome with one task per list of weights."""
    return Outcome({"loss": loss}, tuple((np.array(each),) for each in weights))


def why_not(strategy, found, script=SCRIPT):
    return Row(script, strategy, found, PLAIN).why_not


@pytest.mark.parametrize("strategy", ["parameter_server", "multi_worker", "ring"])
def test_what_is_equal_to_rounding_is_right(strategy):
    assert why_not(strategy, outcome(1.0004, [1.0, 2.001])) == ""


def test_workers_in_step_have_the_weights_of_plain_keras():
    assert "differ" in why_not("ring", outcome(1.0, [1.0, 2.01]))
    assert why_not("parameter_server", outcome(1.0, [1.0, 2.01])) == ""
    random = dataclasses.replace(SCRIPT, same_weights=False)
    assert why_not("ring", outcome(1.0, [1.0, 2.01]), random) == ""


def test_workers_end_with_the_same_weights():
    found = outcome(1.0, [1.0, 2.0], [1.0, 2.0000001])
    assert "the workers end with different weights" in why_not("multi_worker", found)


def test_metrics_are_as_near_as_the_script_asks_for():
    assert why_not("parameter_server", outcome(1.05, [1.0, 2.0])) == ""
    assert "loss is 1.2" in why_not("parameter_server", outcome(1.2, [1.0, 2.0]))
    assert "loss is 1.05" in why_not("ring", outcome(1.05, [1.0, 2.0]))
    assert "loss is nan" in why_not("ring", outcome(float("nan"), [1.0, 2.0]))


def test_a_refusal_is_one_that_the_script_says():
    script = dataclasses.replace(SCRIPT, refused={"ring": "on the chief"})
    refusal = Outcome(error="ValueError: it runs on the chief", refused=True)
    assert why_not("ring", refusal, script) == ""
    assert "undue" in why_not("multi_worker", refusal, script)
    failure = dataclasses.replace(refusal, refused=False)
    assert "is to be refused" in why_not("ring", failure, script)
    assert "trains" in why_not("ring", PLAIN, script)


def test_every_script_says_how_it_is_compared():
    assert len(SCRIPTS) > 8
    for name in SCRIPTS:
        assert 0 < Script.read(name).within <= 1
