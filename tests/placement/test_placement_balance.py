"""The placement benchmark, and that the page shows its results."""

import pytest

from tfdist import VariableSpec
from tfdist.planning.weight import Weight


@pytest.fixture
def balance(benchmark):
    return benchmark("placement_balance")


@pytest.fixture
def measured(balance):
    return balance.pages.measured("placement_balance")


def test_the_page_shows_what_was_measured(balance, measured):
    pages, sections = balance.pages, balance.sections(measured)
    page = pages.DOCS / "measured-placement.md"
    assert pages.publish(page, sections, is_check=True) == 0


def test_every_model_reaches_the_target_on_every_number_of_ps(balance, measured):
    rows = [balance.Row(**row) for row in measured["rows"]]
    assert {(row.model, row.num_ps) for row in rows} == {
        (model, num_ps)
        for model in (
            *("VGG16", "ResNet50", "EfficientNetB0", "MobileNetV2", "DenseNet121"),
            *("BERT-base", "DLRM"),
        )
        for num_ps in (2, 4, 8, 16)
    }
    assert max(row.planned for row in rows) <= 1.02
    assert all(row.bound <= row.planned <= row.greedy for row in rows)
    assert all(row.cuts < row.num_ps for row in rows)
    both = [each for each in measured["weighed"] if each["balance"] == "both"]
    assert max(max(each["memory"], each["traffic"]) for each in both) <= 1.02
    assert measured["scale"]["variables"] == 1_000_000
    assert measured["scale"]["seconds"] < 10


def test_slots_follow_their_weight(balance):
    sizes = (100, 100, 200)
    weights = [
        Weight(VariableSpec("v", (size,), "uint8", 1), ("momentum",)) for size in sizes
    ]
    row = balance.compare("model", weights, 2)
    assert (row.round_robin, row.greedy, row.planned) == (1.5, 1.5, 1.0)


@pytest.mark.not_in_gate
def test_the_measured_rows_are_those_of_today(balance, monkeypatch):
    import model_zoo

    from tfdist.planning.sizes import weights_of

    measured = balance.pages.measured("placement_balance")["rows"]
    weights = weights_of(model_zoo.vgg16)
    today = balance.compare("VGG16", weights, 4)
    kept = next(r for r in measured if (r["model"], r["num_ps"]) == ("VGG16", 4))
    assert today == balance.Row(**kept)


def test_scale_plans_what_it_says(balance):
    scale = balance.scale(count=2000, num_ps=10)
    assert scale.variables == 2000
    assert scale.planned <= 1.02
