"""The benchmark of placing layers, and that the page shows its results."""

import importlib
import itertools
from pathlib import Path

import pytest

from tfdist import Device

ROOT = Path(__file__).resolve().parent.parent
MODELS = {
    *("chain", "InceptionV3", "ResNet50", "NASNetMobile", "two towers", "transformer"),
}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("place")


@pytest.fixture
def measured(benchmark):
    return benchmark.pages.measured("place")


def test_the_page_shows_what_was_measured(benchmark, measured):
    page = benchmark.pages.DOCS / "model-parallel.md"
    assert (
        benchmark.pages.publish(page, benchmark.sections(measured), is_check=True) == 0
    )


def test_every_model_is_placed_on_every_kind_of_devices(benchmark, measured):
    rows = [benchmark.Row(**row) for row in measured["rows"]]
    assert {(r.model, r.num_devices, r.kind, r.microbatches) for r in rows} == {
        (model, num_devices, *case)
        for model, num_devices, case in itertools.product(
            MODELS,
            benchmark.NUM_DEVICES,
            [("equal", 1), ("unequal", 1), ("tight", 1), ("equal", 8)],
        )
    }
    for row in rows:
        assert row.bound <= row.placed * (1 + 1e-9)
        others = (row.one, row.stages, row.by_finish_time, row.random)
        least = min(each for each in others if each is not None)
        assert row.placed <= least * (1 + 1e-9), row


def test_small_graphs_and_large_ones_reach_their_targets(benchmark, measured):
    small = [benchmark.Small(**each) for each in measured["small"]]
    assert [each.seed for each in small] == list(benchmark.SEEDS)
    assert max(each.placed for each in small) <= 1.1
    assert measured["scale"]["nodes"] == 10_000
    assert measured["scale"]["seconds"] < 10


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_gives_what_was_measured(benchmark, measured, seed):
    kept = benchmark.Small(**measured["small"][seed])
    now = benchmark.small(seed)
    assert now.placed == pytest.approx(kept.placed)
    assert now.by_finish_time == pytest.approx(kept.by_finish_time)
    assert now.placed <= 1.1


def test_a_large_graph_is_one(benchmark):
    found = benchmark.scale(nodes=200, num_devices=3, effort=2000)
    assert 1 <= found.over_bound <= found.stages_over_bound


def test_little_memory_has_room_for_every_layer(benchmark):
    graph = benchmark.random_graph(1, 5)
    devices = benchmark.devices_of("tight", 4, graph)
    assert [each.memory for each in devices] == [0] * 4
    assert benchmark.devices_of("unequal", 2, graph)[1] == Device("device 1", 0.5)
