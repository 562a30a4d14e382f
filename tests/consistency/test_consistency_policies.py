"""The policies of consistency, over any schedule of fast, slow and lost workers."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfdist
from tfdist.consistency.asynchronous import Asynchronous
from tfdist.consistency.bounded_staleness import BoundedStaleness
from tfdist.consistency.combinations import (
    check_combination,
    decides_as,
    go_together,
    is_free,
)
from tfdist.consistency.policy import Phase, check_consistency, for_workers
from tfdist.consistency.setting import setting_of
from tfdist.consistency.step_schedule import Released, StepSchedule
from tfdist.consistency.synchronous import Synchronous
from tfdist.parameter_server.exchange.policies import ExchangeEvery

STEPS = 40


class Cluster:
    """Workers that run steps; `choose` decides whose turn it is."""

    def __init__(self, policy: Any, workers: int) -> None:
        self.schedule = StepSchedule(for_workers(policy, workers))
        self.workers = range(workers)
        self.started: set[int] = set()
        self.computed: set[int] = set()
        self.writing: set[int] = set()
        self.idle = {*self.workers}
        self.begun = self.finished = 0
        # Counted here and not by the schedule: per running step, the writes of others
        # that were let through, or not complete, since it started.
        self.seen: dict[int, int] = {}
        self.worst = 0
        self.updates = 0
        self.counted: list[tuple[int, int]] = []

    def moves(self) -> list[tuple[str, int]]:
        moves = [("finish", worker) for worker in self.writing]
        moves += [("compute", worker) for worker in self.started]
        if self.begun < STEPS:
            moves += [("arrive", worker) for worker in self.idle]
        return sorted(moves)

    def move(self, move: str, worker: int) -> None:
        if move == "arrive":
            self.idle.remove(worker)
            self.begun += 1
            self.take(self.schedule.arrive(worker))
        elif move == "compute":
            self.started.remove(worker)
            self.computed.add(worker)
            self.take(self.schedule.computed(worker))
        elif move == "finish":
            self.writing.remove(worker)
            self.finished += 1
            self.idle.add(worker)
            self.take(self.schedule.finished(worker))
        else:
            assert move == "lose"
            for each in (self.started, self.computed, self.writing):
                each.discard(worker)
            self.seen.pop(worker, None)
            if worker not in self.idle:
                self.begun -= 1  # Its step is sent to another.
            self.idle.add(worker)
            self.take(self.schedule.leave(worker))

    def take(self, released: Released) -> None:
        enough = getattr(self.schedule.policy, "replicas_to_aggregate", 1)
        for gradient in released.written:
            worker = gradient.worker
            self.computed.remove(worker)
            seen = self.seen.pop(worker)
            if enough == 1:
                assert seen == gradient.staleness
                self.worst = max(self.worst, seen)
            self.seen = {w: seen + 1 for w, seen in self.seen.items()}
            self.counted.append((gradient.round, worker))
            if enough == 1:
                self.writing.add(worker)
            else:
                self.finished += 1
                self.idle.add(worker)
        for gradient in released.dropped:
            self.computed.remove(gradient.worker)
            self.seen.pop(gradient.worker)
            self.finished += 1
            self.idle.add(gradient.worker)
        self.updates += released.updated
        for worker in released.started:
            self.started.add(worker)
            self.seen[worker] = len(self.writing)


def run(
    policy: Any, workers: int, data: st.DataObject, losses: bool = False
) -> Cluster:
    cluster = Cluster(policy, workers)
    while moves := cluster.moves():
        if losses and data.draw(st.integers(0, 9)) == 0:
            cluster.move("lose", data.draw(st.integers(0, workers - 1)))
        else:
            cluster.move(*data.draw(st.sampled_from(moves)))
    return cluster


@given(st.integers(0, 10), st.integers(1, 6), st.booleans(), st.data())
def test_no_step_is_staler_than_the_bound_and_all_run(bound, workers, losses, data):
    cluster = run(BoundedStaleness(bound), workers, data, losses)
    assert cluster.worst <= bound
    assert cluster.begun == STEPS
    assert not cluster.started | cluster.computed | cluster.writing


@given(st.integers(1, 6), st.data())
def test_zero_is_sequential(workers, data):
    cluster = Cluster(BoundedStaleness(0), workers)
    while moves := cluster.moves():
        cluster.move(*data.draw(st.sampled_from(moves)))
        phases = [step.phase for step in cluster.schedule.state.steps]
        assert sum(phase > Phase.STARTING for phase in phases) <= 1


@pytest.mark.not_in_gate
@pytest.mark.parametrize("policy", [Asynchronous(), BoundedStaleness(math.inf)])
@given(st.integers(1, 6), st.data())
def test_nobody_waits_without_a_bound(policy, workers, data):
    cluster = Cluster(policy, workers)
    while moves := cluster.moves():
        cluster.move(*data.draw(st.sampled_from(moves)))
        phases = {step.phase for step in cluster.schedule.state.steps}
        assert phases <= {Phase.COMPUTING, Phase.WRITING}


def test_a_fast_worker_waits_at_its_write():
    schedule = StepSchedule(BoundedStaleness(2))
    schedule.arrive(0)
    for _ in range(2):
        assert schedule.arrive(1).started == [1]
        assert len(schedule.computed(1).written) == 1
        schedule.finished(1)
    assert schedule.arrive(1).started == [1]
    assert schedule.computed(1).written == []
    # The slow one writes, two steps late, and lets the other go on.
    assert [each.staleness for each in schedule.computed(0).written] == [2, 1]


def test_a_lost_worker_holds_nobody_up():
    schedule = StepSchedule(BoundedStaleness(0))
    schedule.arrive(0)
    assert schedule.arrive(1).started == []
    assert schedule.leave(0).started == [1]


@given(st.integers(1, 6), st.integers(0, 3), st.data())
def test_a_round_counts_one_gradient_of_each_of_enough_workers(workers, backups, data):
    policy = Synchronous(min(backups, workers - 1))
    enough = workers - policy.backup_workers
    cluster = Cluster(policy, workers)
    for _ in range(5 * STEPS):
        moves = [m for m in cluster.moves() if m[0] != "arrive"] + [
            ("arrive", worker) for worker in sorted(cluster.idle)
        ]
        if not moves:
            break
        cluster.move(*data.draw(st.sampled_from(moves)))
    rounds = [number for number, _ in cluster.counted]
    assert rounds == sorted(rounds)
    assert len({*cluster.counted}) == len(cluster.counted)
    full = [number for number in {*rounds} if rounds.count(number) == enough]
    assert len(full) == cluster.updates > 0


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: BoundedStaleness(-1),
            ValueError,
            "whole number from 0, or .*; received -1",
        ),
        (lambda: BoundedStaleness(1.5), TypeError, "received 1.5, of type float"),
        (lambda: BoundedStaleness(True), TypeError, "received True"),
        (lambda: BoundedStaleness("4"), TypeError, "received '4'"),
        (lambda: Synchronous(-1), ValueError, "whole number from 0; received -1"),
        (lambda: Synchronous("auto"), TypeError, "received 'auto', of type str"),
        (lambda: Synchronous(1.0), TypeError, "received 1.0"),
        (lambda: Synchronous(0, 0), ValueError, "whole number from 1; received 0"),
        (lambda: Synchronous(4).for_workers(4), ValueError, "at most 3"),
        (lambda: Synchronous(0, 5).for_workers(4), ValueError, "needs 5 workers"),
        (lambda: Synchronous(2, 3).for_workers(4), ValueError, "the cluster has 4"),
        (
            lambda: together(Synchronous(), ExchangeEvery()),
            ValueError,
            "may drop a gradient",
        ),
        (
            lambda: together(Asynchronous(), ExchangeEvery(5)),
            ValueError,
            "sends no gradients",
        ),
        (
            lambda: together(Dropping(), ExchangeEvery()),
            ValueError,
            "Dropping overrides",
        ),
        (lambda: sent_as("int8"), ValueError, "of 'bfloat16', or None .*ed 'int8'"),
        (lambda: sent_as(16), ValueError, "'bfloat16', .*; received 16"),
        (lambda: check_consistency(object()), TypeError, "no may_start and no counts"),
        (lambda: check_consistency(Asynchronous), TypeError, r"Asynchronous\(\)"),
    ],
)
def test_bad_input_says_what_is_allowed(make, error, said):
    with pytest.raises(error, match=said):
        make()


def sent_as(wire_dtype):
    tfdist.ParameterServerStrategy(wire_dtype=wire_dtype)


def together(policy, exchange):
    check_combination(policy, exchange, None)
    check_combination(policy, exchange, "bfloat16")


def test_what_is_refused_is_not_advised():
    assert go_together(Asynchronous(), ExchangeEvery(5), None)
    assert go_together(BoundedStaleness(3), ExchangeEvery(), "bfloat16")
    assert not go_together(BoundedStaleness(3), ExchangeEvery(5), None)
    assert not go_together(Synchronous(), ExchangeEvery(), "bfloat16")


class Waiting(BoundedStaleness):
    def may_start(self, step, state):
        return False


class Named(BoundedStaleness):
    name = "of a user"


class Free(Asynchronous):
    def may_write(self, step, state):
        return True


class SaidToBeFree(Free):
    is_free = True


class Dropping(Synchronous):
    def counts(self, gradient, state):
        return False


@pytest.mark.parametrize(
    ("policy", "of", "as_it", "free", "setting"),
    [
        (Waiting(3), BoundedStaleness, False, False, "Waiting(max_staleness=3)"),
        (
            Waiting(math.inf),
            BoundedStaleness,
            False,
            False,
            "Waiting(max_staleness=inf)",
        ),
        (Named(3), BoundedStaleness, True, False, "bounded:3"),
        (Named(math.inf), BoundedStaleness, True, True, "asynchronous"),
        (Free(), Asynchronous, False, False, "Free()"),
        (SaidToBeFree(), Asynchronous, False, True, "SaidToBeFree()"),
        (Dropping(), Synchronous, False, False, "synchronous"),
    ],
)
def test_decisions_of_a_subclass_count(policy, of, as_it, free, setting):
    assert decides_as(policy, of) == as_it
    assert is_free(policy) == free
    assert setting_of(policy, 4) == setting


def test_any_integer_is_a_bound():
    assert BoundedStaleness(np.int64(3)) == BoundedStaleness(3)


def test_a_policy_of_a_user_needs_two_methods():
    class Alternating:
        """Worker 0 and worker 1 take turns."""

        def may_start(self, step, state):
            return state.written % 2 == step.worker

        def counts(self, gradient, state):
            return True

    check_consistency(Alternating())
    schedule = StepSchedule(Alternating())
    assert schedule.arrive(1).started == []
    assert schedule.arrive(0).started == [0]
    assert schedule.computed(0).started == [1]
