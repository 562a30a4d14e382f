"""Generated programs of even seeds: each process runs the tests of one file."""

from .trains_alike import ALL, check, of_seeds


@of_seeds(range(0, ALL, 2))
def test_trains_as_in_one_process(alike, seed):
    check(seed, alike)
