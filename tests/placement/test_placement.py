import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist import (
    BestFit,
    GreedyLoadBalancing,
    RoundRobin,
    VariableSpec,
    byte_size_load_fn,
)
from tfdist.placement.placement import check_placement, ps_for, ps_of_shards


def variable(size: int, name: str = "v") -> VariableSpec:
    return VariableSpec(name, (size,), "uint8", 1)


def loads(placement, sizes, num_ps):
    bytes_on = [0] * num_ps
    for size in sizes:
        bytes_on[placement.place(variable(size), num_ps)] += size
    return bytes_on


def test_size_is_elements_times_itemsize():
    assert VariableSpec("k", (3, 4), "float32", 4).size_bytes == 48
    assert VariableSpec("scalar", (), "int64", 8).size_bytes == 8
    assert byte_size_load_fn(VariableSpec("k", (3, 4), "float32", 4)) == 48.0


def test_round_robin_deals_in_turn():
    placement = RoundRobin()
    assert [placement.place(variable(1), 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_greedy_takes_the_least_loaded_and_the_first_on_a_tie():
    placement = GreedyLoadBalancing()
    sizes = [5, 0, 3, 2, 1, 1]
    placed = [placement.place(variable(size), 3) for size in sizes]
    # Loads:        5 0 0 | 5 0 0 | 5 3 0 | 5 3 2 | 5 3 3 | 5 4 3
    assert placed == [0, 1, 1, 2, 2, 1]


def test_greedy_balances_the_load_that_it_is_given():
    by_count = GreedyLoadBalancing(load_fn=lambda _: 1.0)
    assert [by_count.place(variable(s), 2) for s in (900, 1, 1, 900)] == [0, 1, 0, 1]


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=60),
    num_ps=st.integers(1, 9),
    greedy=st.sampled_from([GreedyLoadBalancing, BestFit]),
)
def test_greedy_keeps_grahams_bound(sizes, num_ps, greedy):
    fullest = max(loads(greedy(), sizes, num_ps))
    lower_bound = max(math.ceil(sum(sizes) / num_ps), max(sizes))
    assert fullest <= (2 - 1 / num_ps) * lower_bound


def test_best_fit_gathers_what_is_small():
    sizes = [803, 1, 10, 0]
    assert loads(GreedyLoadBalancing(), sizes, 4) == [803, 1, 10, 0]
    assert loads(BestFit(), sizes, 4) == [803, 11, 0, 0]


def test_best_fit_prefers_the_fullest_ps_with_room():
    placement = BestFit()
    placed = [placement.place(variable(size), 3) for size in (10, 7, 4, 3, 5, 2, 9)]
    # Loads: 10 0 0 | 10 7 0 | 10 7 4 (no room on 1) | 10 10 4 | 10 10 9 | 10 10 11 | full
    assert placed == [0, 1, 2, 1, 2, 2, 0]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60))
def test_on_two_ps_best_fit_is_greedy(sizes):
    assert loads(BestFit(), sizes, 2) == loads(GreedyLoadBalancing(), sizes, 2)


def test_greedy_evens_out_what_round_robin_does_not():
    kernels_and_biases = [4_000, 4] * 8
    assert loads(RoundRobin(), kernels_and_biases, 2) == [32_000, 32]
    greedy = loads(GreedyLoadBalancing(), kernels_and_biases, 2)
    assert max(greedy) / (sum(greedy) / 2) < 1.01


@pytest.mark.parametrize("load", [-1.0, math.nan, math.inf])
def test_a_load_that_is_no_load_is_refused(load):
    placement = GreedyLoadBalancing(load_fn=lambda _: load)
    with pytest.raises(ValueError, match="a load is a finite number, at least 0"):
        placement.place(variable(1), 2)


def test_a_load_fn_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="load_fn must be a function"):
        GreedyLoadBalancing(load_fn=3)


def test_greedy_refuses_another_number_of_ps():
    placement = GreedyLoadBalancing()
    placement.place(variable(1), 2)
    with pytest.raises(ValueError, match="balances 2 ps and was now called for 3"):
        placement.place(variable(1), 3)


class Fixed:
    def __init__(self, answer):
        self.answer = answer

    def place(self, variable, num_ps):
        return self.answer


def test_a_placement_of_the_users_own_is_asked():
    check_placement(Fixed(1))
    assert ps_for(Fixed(1), variable(1), 2) == 1


@pytest.mark.parametrize("answer", [-1, 2, 1.0, "0", None, True])
def test_an_answer_that_names_no_ps_is_refused(answer):
    with pytest.raises(ValueError, match=r"Fixed.place\(\) returned .* 0 to 1"):
        ps_for(Fixed(answer), variable(1), 2)


def test_a_class_and_an_object_without_place_are_refused():
    with pytest.raises(TypeError, match=r"write RoundRobin\(\) for RoundRobin"):
        check_placement(RoundRobin)
    with pytest.raises(TypeError, match=r"a method place\(variable, num_ps\)"):
        check_placement("round_robin")


def shards(*sizes: int) -> list[VariableSpec]:
    return [variable(size, f"v/part_{i}") for i, size in enumerate(sizes)]


@pytest.mark.parametrize("kind", [GreedyLoadBalancing, BestFit])
def test_shards_of_a_small_table_are_spread_after_a_large_variable(kind):
    greedy = kind()
    assert greedy.place(variable(1_000), 3) == 0
    assert greedy.place_shards(shards(4, 4, 3), 3) == [1, 2, 0]


def test_shards_of_a_placement_without_a_view_are_asked_for_in_turn():
    assert ps_of_shards(RoundRobin(), shards(1, 1, 1), 2) == [0, 1, 0]


def test_a_shard_on_no_ps_is_refused():
    class Elsewhere(RoundRobin):
        def place_shards(self, shards, num_ps):
            return [num_ps for _ in shards]

    with pytest.raises(ValueError, match="v/part_0: it returns the index of a ps"):
        ps_of_shards(Elsewhere(), shards(1, 1), 2)


@given(
    variables=st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 50)), min_size=1, max_size=20
    ),
    num_ps=st.integers(1, 5),
)
def test_spread_shards_keep_the_bound_of_the_largest_piece(variables, num_ps):
    greedy, bytes_on = GreedyLoadBalancing(), [0] * num_ps
    for count, size in variables:
        placed = greedy.place_shards(shards(*[size] * count), num_ps)
        for start in range(0, count, num_ps):
            once = placed[start : start + num_ps]
            assert len(set(once)) == len(once)
        for ps in placed:
            bytes_on[ps] += size
    assert max(bytes_on) - min(bytes_on) <= max(size for _, size in variables)
