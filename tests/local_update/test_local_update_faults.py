"""The others finish when a worker dies, stops or fails in mid-training."""

import json
from pathlib import Path

import keras
import pytest

import tf_config
import tfdist
from tfdist.local_update import arguments, mixing

from ..support.jobs import launch
from ..support.raising import raises
from ..support.worker_processes import run_workers

PROGRAM = Path(__file__).parents[1] / "programs" / "local_update_fault.py"


def launched(fault, victim, directory, workers=3):
    """The same under the launcher, which goes on without the victim."""
    least = workers - 1
    done = launch(
        *("--num_ps=0", f"--num_workers={workers}", f"--min_workers={least}"),
        *("--max_restarts=0", f"--log_dir={directory / 'logs'}"),
        *(PROGRAM, fault, str(victim), directory),
    )
    assert f"goes on with {least} of {workers} workers (--min_wor" in done.stderr
    logs = {i: directory / "logs" / f"worker-{i}.log" for i in range(workers)}
    return {index: path.read_text() for index, path in logs.items()}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("fault", "victim", "words"),
    [
        ("launched", 0, "worker:0 has ended: training goes on with 2 of 3 workers"),
        ("SIGSTOP", 1, "worker:1 has not answered for 20 s (peer_timeout): training"),
        ("error", 2, "worker:2 has left: training goes on with 2 of 3 workers"),
    ],
)
def test_the_others_finish_with_one_line_about_it(tmp_path, fault, victim, words):
    if fault == "launched":
        errors = launched("SIGKILL", victim, tmp_path)
    else:
        stopped = victim if fault == "SIGSTOP" else None
        command = PROGRAM, fault, victim, tmp_path
        _, errors = run_workers(3, *command, stopped=stopped)
    rest = [index for index in range(3) if index != victim]
    found = [json.loads((tmp_path / f"{i}.json").read_text()) for i in rest]
    for index, each in zip(rest, found, strict=True):
        lines = [
            line for line in errors[index].splitlines() if "training goes on" in line
        ]
        assert len(lines) == 1
        assert words in lines[0]
        assert each["present"] == 2
        assert each["loss"][1] < each["loss"][0]
    assert found[0]["kernel"] == found[1]["kernel"]
    assert not (tmp_path / f"{victim}.json").exists()


class NoWeights:
    def on(self, participants):
        return self


@pytest.mark.parametrize(
    ("check", "values", "error", "words"),
    [
        (arguments.checked_local_steps, (0,), ValueError, "1 or more; received 0"),
        (arguments.checked_local_steps, (1.5,), TypeError, "received 1.5"),
        (arguments.checked_local_steps, (True,), TypeError, "received True"),
        (arguments.checked_mixing, (NoWeights(), 2), TypeError, "`on` and `weights`"),
        (arguments.checked_mixing, (mixing.Mean, 2), TypeError, "received <class"),
        (
            arguments.checked_mixing,
            (mixing.Gossip(mixing.ring(3)), 2),
            ValueError,
            "needs 3 participants",
        ),
        (
            arguments.checked_outer_optimizer,
            ("sgd", mixing.Mean()),
            TypeError,
            "is a Keras optimizer.*received 'sgd'",
        ),
        (
            arguments.checked_outer_optimizer,
            (keras.optimizers.SGD(), mixing.Gossip(mixing.ring)),
            ValueError,
            "needs mixing=tfdist.mixing.Mean",
        ),
    ],
)
def test_bad_arguments_are_told_what_is_allowed(check, values, error, words):
    with pytest.raises(error, match=words):
        check(*values)


def test_the_outer_optimizer_cannot_be_the_inner_one():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(), "mse")
    arguments.check_not_inner(keras.optimizers.SGD(), model)
    with raises(ValueError, "make two"):
        arguments.check_not_inner(model.optimizer, model)


def test_a_moving_average_of_one_workers_own_weights_is_refused():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(use_ema=True), "mse")
    with raises(ValueError, "use_ema=False"):
        arguments.check_no_own_average(model)
    model.compile(keras.optimizers.SGD(), "mse")
    arguments.check_no_own_average(model)


@pytest.mark.parametrize(
    ("cluster", "task", "words"),
    [
        (
            {"chief": ("a:1",), "ps": ("b:1",), "worker": ("c:1",)},
            ("worker", 0),
            "keeps no variables on",
        ),
        ({"worker": ("a:1",), "evaluator": ("b:1",)}, ("evaluator", 0), "evaluator:0"),
    ],
)
def test_a_cluster_that_does_not_fit_is_refused(cluster, task, words):
    config = tf_config.TFConfig(tf_config.Cluster(**cluster), tf_config.Task(*task))
    with pytest.raises(tf_config.ClusterError, match=words):
        tfdist.LocalUpdateStrategy(2, cluster_resolver=config)
