"""Deliberate defects, each of which the test named beside it must catch.

    python -m tests.mutants                               # all, one after the other
    python -m tests.mutants mean-of-means index-as-text   # some
    python -m tests.mutants --list                        # what they are

Each mutant is a small change to a copy of the working tree. Its test runs on the copy as it
is, where it must pass, and with the defect, where it must fail. The exit status is 1 unless
every defect was caught.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("tf_config", "launch", "tfdist")
NOT_COPIED = (".*", "__pycache__", "*.egg-info", "build", "logs")
LIMIT = 600.0  # seconds of one run of pytest

# By pytest's exit status; None is the limit. With any other, tests could not run.
VERDICTS = {0: "NOT CAUGHT", 1: "caught", None: "caught by time-out"}


@dataclass(frozen=True)
class Mutant:
    """A defect: one text of a file in place of another, and the test that must catch it."""

    name: str
    file: str
    change: tuple[str, str]
    test: str  # a file, or a node id of pytest

    def changed(self, tree: Path) -> str:
        """Returns the file with the defect; a ValueError if it does not fit once."""
        text, (old, new) = (tree / self.file).read_text(), self.change
        if (count := text.count(old)) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has {old!r} {count} times, and not once: "
                "renew the mutant in tests/mutants.py"
            )
        return text.replace(old, new)


MUTANTS = (
    Mutant(
        "others-change-unseen",
        "tfdist/parameter_server/caching/decision.py",
        ("(own + others > bound)", "(own > bound)"),
        "tests/features/test_when_changed.py::test_what_others_add_counts",
    ),
    Mutant(
        "kept-back-for-ever",
        "tfdist/parameter_server/steps/in_flight.py",
        (
            "self.join_functions()\n        self.collect()\n        self.rounds.complete()",
            "self.join_functions()\n        self.rounds.complete()",
        ),
        "tests/features/test_when_changed.py::test_no_change_of_a_worker_is_lost",
    ),
    Mutant(
        "update-lost-on-ps",
        "tfdist/variables/variable.py",
        ("return self.assign_add(added, name", "return self._v.assign(value, name"),
        "tests/features/test_no_lost_updates.py::test_state_of_layers[each-step-0]",
    ),
    Mutant(
        "function-of-a-rehearsal-used",
        "tfdist/keras/own_traces.py",
        ("setting(_current, object())", "setting(_current, None)"),
        "tests/differential/test_fixed.py::test_trains_as_in_one_process[function_in_a_step]",
    ),
    Mutant(
        "ring-to-wrong-neighbour",
        "tfdist/all_reduce/schedule.py",
        ("d, (d + 1) % n, (d - 1 - step)", "d, (d - 1) % n, (d - 1 - step)"),
        "tests/all_reduce/test_all_reduce_schedule.py",
    ),
    Mutant(
        "placement-on-fullest-ps",
        "tfdist/placement/greedy.py",
        ("range(num_ps), key=self", "range(num_ps), reverse=True, key=self"),
        "tests/placement/test_placement.py",
    ),
    Mutant(
        "gradient-not-divided",
        "tfdist/synchronous/replica/whole_batch.py",
        ("step.scaled(tf.ones_like(target) if", "(tf.ones_like(target) if"),
        "tests/synchronous/test_multi_worker.py::test_trains_like_one_process[uneven]",
    ),
    Mutant(
        "mean-of-means",  # Of two workers.
        "tfdist/synchronous/replica/step.py",
        ("return value * tf.cast(self.share, value.dtype)", "return value / 2"),
        "tests/reader/test_whole_batch.py::test_matches_one_process[mean_by_hand-MultiWorkerMirroredStrategy]",
    ),
    Mutant(
        "own-word-for-a-mean-not-weighed",
        "tfdist/synchronous/replica/mean_by_word.py",
        ("return given * tf.cast(step.weight, target.dtype)", "return given"),
        "tests/reader/test_replica_loss.py::test_a_mean_gives_one_process_s_weights[45-plain]",
    ),
    Mutant(
        "rows-of-two-meet-in-pairs",
        "tfdist/synchronous/reader/row_rules.py",
        ("require(len(labels) == 1)", "require(bool(labels))"),
        "tests/reader/test_rows.py::test_what_may_not_be_is_refused[pairs]",
    ),
    Mutant(
        "root-of-a-mean-taken-for-a-mean",
        "tfdist/synchronous/reader/combined.py",
        ("    if op.type in UNARY:", '    if op.type in UNARY | {"Sqrt"}:'),
        "tests/reader/test_reduction_reader.py::test_kind[root_of_a_mean]",
    ),
    Mutant(
        "checkpoint-without-slots",
        "tfdist/checkpoint/fit_state.py",
        ("*model.optimizer.variables]", "model.optimizer.iterations]"),
        "tests/features/test_resuming.py::test_other_shards",
    ),
    Mutant(
        "port-open-to-strangers",
        "launch/network/loopback_only.py",
        ("found[1] in self._ports", "found[1] not in self._ports"),
        "tests/launch/test_launch_security.py::test_only_binds_of_the_jobs_ports_to_every_interface_are_redirected",
    ),
    Mutant(
        "ps-not-restarted",
        "launch/supervise/policy.py",
        ("again |= {chief, *holders}", "again |= {chief}"),
        "tests/launch/test_launch_policy.py",
    ),
    Mutant(
        "message-too-many",
        "tfdist/parameter_server/step_graph/messages.py",
        ("return detour if len(messages(detour)) < len(direct) else", "return"),
        "tests/parameter_server/test_step_messages.py",
    ),
    Mutant(
        "feedback-not-added",
        "tfdist/parameter_server/exchange/narrow.py",
        ("meant = gradient + before", "meant = gradient"),
        "tests/features/test_wire_dtype.py::"
        "test_nothing_is_lost_but_one_rounding_per_worker",
    ),
    Mutant(
        "messages-out-of-turn",
        "tfdist/parameter_server/step_graph/packing.py",
        ("waits = [*message.signals, *before]", "waits = [*message.signals]"),
        "tests/features/test_step_graph.py::"
        "test_gradients_on_slow_links_are_sent_one_after_the_other",
    ),
    Mutant(
        "estimator-on-chief-alone",
        "tfdist/estimator/roles.py",
        ("time.sleep(_delay(config))", "if not config.is_chief: return"),
        "tests/estimator/test_estimator_cluster.py::test_steps_run_on_chief_and_workers_and_reach_max_steps",
    ),
    Mutant(
        "staleness-off-by-one",
        "tfdist/consistency/bounded_staleness.py",
        ("self.max_staleness - state", "self.max_staleness + 1 - state"),
        # The other tests of this file take minutes to make a failure smaller.
        "tests/consistency/test_consistency_policies.py::test_a_fast_worker_waits_at_its_write",
    ),
    Mutant(
        "mixing-without-own-model",
        "tfdist/local_update/mixing/topology.py",
        ("if weight > 0\n", "if weight > 0 and other != participant\n"),
        "tests/local_update/test_mixing.py",
    ),
    Mutant(
        "clients-not-weighted",
        "tfdist/research/federated/aggregation.py",
        ("(shares / shares.sum() @ updates)", "updates.mean(axis=0)"),
        "tests/federated/test_federated_averaging.py",
    ),
    Mutant(
        "rows-not-weighted",
        "tfdist/embedding/differentiable.py",
        ("tf.gather(rows, index) * weights[:, tf.newaxis]", "tf.gather(rows, index)"),
        "tests/embedding/test_embedding_lookup.py::test_eager_lookup_is_tensorflows",
    ),
    Mutant(
        "row-found-before-it-is-written",
        "tfdist/embedding/growing/growing_shard.py",
        (
            "            written = [*self._write(",
            "            self._index.insert(new, rows)\n"
            "            written = [*self._write(",
        ),
        "tests/embedding/test_growing_shard.py::"
        "test_an_id_is_in_the_index_only_once_its_row_is_written",
    ),
    Mutant(
        "no-second-look-under-the-lock",
        "tfdist/embedding/growing/growing_shard.py",
        (
            "ids = tf.boolean_mask(ids, tf.equal(self._index.find(ids), ABSENT))",
            "ids = tf.identity(ids)",
        ),
        "tests/embedding/test_growing_shard.py::"
        "test_of_threads_that_meet_an_id_together_one_creates_it[True]",
    ),
    Mutant(
        "slots-of-the-id-before",
        "tfdist/embedding/growing/slots.py",
        ("for slot, first in there", "for slot, first in ()"),
        "tests/embedding/test_growing_table.py::"
        "test_any_sequence_does_what_a_dictionary_does",
    ),
    Mutant(
        "index-as-text",
        "tf_config/environment.py",
        ('task["type"], task["index"]', 'task["type"], int(task["index"])'),
        "tests/tf_config/test_tf_config_environment.py",
    ),
)


class Run(NamedTuple):
    """One run of pytest: its exit status, None at the limit, and what it says of it."""

    status: int | None
    seconds: float
    says: str


def run(tree: Path, test: str) -> Run:
    """Runs a test on a copy of the tree, up to its first failure."""
    command = [sys.executable, "-m", "pytest", "-qx", f"--basetemp={tree}.tmp", test]
    # In order, and once: a second try is for accidents.
    command += ["-pno:randomly", "-pno:rerunfailures"]
    began, status = time.monotonic(), None
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment(tree),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(LIMIT)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        lines = [each for each in output.read().splitlines() if each]
    failures = [each for each in lines if each.startswith(("FAILED ", "ERROR "))]
    says = (failures or lines[-1:] or [""])[0]
    return Run(status, time.monotonic() - began, says)


def environment(tree: Path) -> dict[str, str]:
    """The environment in which Python imports the packages of a copy of the tree."""
    return {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"}


def copy_to(tree: Path) -> None:
    """Copies the working tree, and checks that its packages are those that are imported."""
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_COPIED))
    code = f"from importlib.util import find_spec\nfor n in {PACKAGES}: print(find_spec(n).origin)"
    # From elsewhere: Python looks first where it is.
    command = [sys.executable, "-c", code]
    found = subprocess.check_output(command, cwd="/", env=environment(tree), text=True)
    print(found)
    assert found.split() == [f"{tree}/{each}/__init__.py" for each in PACKAGES]


def tried(mutant: Mutant, tree: Path, before: Run | None) -> tuple[str, Run]:
    """Returns the verdict on a mutant, and the run that it is from."""
    if before and not (before.status == 0 and " passed" in before.says):
        return "no verdict: fails without it", before
    mutated = tree.with_name(mutant.name)
    shutil.copytree(tree, mutated)
    (mutated / mutant.file).write_text(mutant.changed(tree))
    ran = run(mutated, mutant.test)
    return VERDICTS.get(ran.status, "no verdict"), ran


def main(argv: Sequence[str]) -> int:
    """Tries the mutants that are asked for, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the table")
    parser.add_argument("--no-baseline", action="store_true", help="only with defects")
    options = parser.parse_args(argv)
    if unknown := set(options.names) - {each.name for each in MUTANTS}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}: see --list")
    mutants = [m for m in MUTANTS if not options.names or m.name in options.names]
    if options.list:
        for each in mutants:
            print(each.name, f"{each.file}: {each.change}", each.test, sep="\n    ")
        return 0
    try:
        for each in mutants:
            each.changed(ROOT)  # Fails now, and not after minutes.
    except (OSError, ValueError) as error:
        parser.error(str(error))
    # As by Ctrl-C, pytest is killed and the copies are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    before: dict[str, Run] = {}
    lines, missed = [""], 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        tree = Path(directory, "tree")
        copy_to(tree)
        for each in mutants:
            if each.test not in before and not options.no_baseline:
                before[each.test] = run(tree, each.test)
            verdict, ran = tried(each, tree, before.get(each.test))
            lines.append(
                f"{each.name:24}  {verdict:28}  {ran.seconds:4.0f} s  {ran.says}"
            )
            print(lines[-1], flush=True)
            missed += not verdict.startswith("caught")
    print(*lines, f"{missed} of {len(mutants)} were not caught", sep="\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
