import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdist.all_reduce.bucket import sum_in_parts
from tfdist.all_reduce.packing import (
    ALIGNED_ELEMENTS,
    buckets,
    cuts,
    cuts_of_chunks,
    slices_of_parts,
)

SIZES = st.lists(st.integers(0, 300), max_size=30)


@given(sizes=SIZES, bucket_bytes=st.integers(1, 500), data=st.data())
def test_each_tensor_is_in_one_bucket_of_its_key(sizes, bucket_bytes, data):
    keys = [data.draw(st.sampled_from("ab")) for _ in sizes]
    packed = buckets(keys, sizes, bucket_bytes)
    assert sorted(i for bucket in packed for i in bucket) == list(range(len(sizes)))
    for bucket in packed:
        assert bucket == sorted(bucket)
        assert len({keys[i] for i in bucket}) == 1
        # Without its last tensor, no bucket was full.
        assert sum(sizes[i] for i in bucket[:-1]) < bucket_bytes
    unfilled = [b for b in packed if sum(sizes[i] for i in b) < bucket_bytes]
    assert len(unfilled) <= 2, "one a key"


def test_a_bucket_is_closed_as_soon_as_it_is_full():
    assert buckets("aba", [9, 9, 9], 9) == [[0], [1], [2]]
    assert buckets("abaab", [5, 5, 5, 5, 5], 10) == [[0, 2], [1, 4], [3]]
    assert buckets("", [], 10) == []


@given(num_elements=st.integers(0, 10**9), parts=st.integers(1, 64))
def test_cuts_are_even_and_cover_the_whole(num_elements, parts):
    bounds = cuts(num_elements, parts)
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1], len(sizes)) == (0, num_elements, parts)
    assert sizes.min() >= 0
    assert sizes.max() <= max(num_elements / parts * 1.02, sizes.min() + 1)
    if num_elements >= 64 * parts * ALIGNED_ELEMENTS:
        assert not any(bound % ALIGNED_ELEMENTS for bound in bounds[:-1])


@given(st.integers(0, 10**7), st.integers(1, 9), st.integers(1, 9))
def test_where_a_chunk_begins_does_not_depend_on_its_segments(size, chunks, segments):
    bounds = cuts_of_chunks(size, chunks, segments)
    assert bounds[::segments] == cuts(size, chunks)
    assert bounds == sorted(bounds)
    assert len(bounds) == chunks * segments + 1


@given(sizes=SIZES, parts=st.integers(1, 9))
def test_slices_laid_end_to_end_are_the_whole(sizes, parts):
    tensors = [np.random.default_rng(i).normal(size=n) for i, n in enumerate(sizes)]
    whole = np.concatenate([*tensors, []])
    bounds = cuts(len(whole), parts)
    for i, slices in enumerate(slices_of_parts(sizes, bounds)):
        part = np.concatenate([*(tensors[t][a:b] for t, a, b in slices), []])
        np.testing.assert_array_equal(part, whole[bounds[i] : bounds[i + 1]])
        assert all(start < stop for _, start, stop in slices)


def test_large_tensors_are_summed_in_parts():
    sent = []

    def double(parts):
        sent.extend(parts)
        return [part * 2 for part in parts]

    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]), tf.constant([9, 2]))
    tensors = [tf.random.normal(shape) for shape in ((5, 7), (1,), (0,), (41, 10))]
    sums = sum_in_parts(
        [*tensors, slices],
        lambda parts: [*double(parts[:-1]), parts[-1]],
        part_bytes=400,
    )
    assert sums[-1] is slices
    for tensor, total in zip(tensors, sums, strict=False):
        np.testing.assert_array_equal(total, tensor * 2)
    assert [part.shape for part in sent] == [(5, 7), (1,), (0,), *[(82,)] * 5]
