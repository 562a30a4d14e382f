"""The cost model of a sparse lookup: plain arithmetic."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfdist.embedding import cost

COUNTS = st.integers(1, 10**6)


def test_bytes_of_256_bags_of_100_different_ids_on_4_shards():
    ids, segments = 256 * 100 // 4, 256
    row_bytes = 1024 * 4
    plain = 4 * cost.plain_bytes(ids, row_bytes=row_bytes, id_bytes=4)
    aggregated = 4 * cost.aggregated_bytes(
        ids, segments, row_bytes=row_bytes, id_bytes=4
    )
    assert plain == 25600 * (4 + 2 * 4096)
    assert aggregated == 25600 * 4 + 1024 * (4 + 2 * 4096)


@given(COUNTS, COUNTS, st.integers(1, 4096), st.sampled_from([4, 8]))
def test_more_ids_move_more(ids, segments, row_bytes, id_bytes):
    sizes = {"row_bytes": row_bytes, "id_bytes": id_bytes}
    assert cost.plain_bytes(ids + 1, **sizes) > cost.plain_bytes(ids, **sizes)
    least = cost.aggregated_bytes(ids, segments, **sizes)
    assert cost.aggregated_bytes(ids + 1, segments, **sizes) > least
    assert cost.aggregated_bytes(ids, segments + 1, **sizes) > least
    assert cost.aggregated_bytes(ids, segments, **sizes, weight_bytes=4) > least


@given(COUNTS, st.integers(1, 4096))
def test_bags_of_one_id_have_nothing_to_sum(ids, row_bytes):
    """A tie, or less: the route is then the plain one."""
    sizes = {"row_bytes": row_bytes, "id_bytes": 4}
    plain = cost.plain_bytes(ids, **sizes)
    assert plain < cost.aggregated_bytes(ids, ids, **sizes)


def test_costs_are_of_whole_sweeps_too():
    ids = np.array([1, 2, 3])
    assert cost.plain_bytes(ids, row_bytes=8, id_bytes=4).tolist() == [20, 40, 60]


def test_what_is_saved_is_what_the_plain_lookup_moves_on_top():
    assert cost.LookupBytes(moved=10, plain=30, aggregated=10).saved == 20
