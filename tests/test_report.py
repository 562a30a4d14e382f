from tfdist import PlacedVariable, PlacementReport, VariableSpec, WorkerReport


def placed(name: str, elements: int, ps: int) -> PlacedVariable:
    return PlacedVariable(VariableSpec(name, (elements,), "float32", 4), ps)


def test_bytes_and_imbalance_count_every_ps():
    report = PlacementReport(3, (placed("a", 100, 0), placed("b", 50, 2)))
    assert report.bytes_per_ps == (400, 0, 200)
    assert report.imbalance == 2.0
    assert [spec.name for spec in report.on(0)] == ["a"]


def test_nothing_placed_is_balanced():
    assert PlacementReport(2, ()).imbalance == 1.0


def test_the_table_shows_every_variable_and_the_total_of_each_ps():
    text = str(PlacementReport(2, (placed("cnn/kernel", 300, 0), placed("b", 1, 1))))
    row = next(line for line in text.splitlines() if "cnn/kernel" in line)
    assert row.split()[1:-1:2] == ["0", "cnn/kernel", "300", "float32", "1,200"]
    assert "1 variables" in text
    assert "fullest ps / mean: 1.993" in text


def test_a_long_name_is_not_cut():
    name = "/".join(["encoder"] * 20)
    assert name in str(PlacementReport(1, (placed(name, 1, 0),)))


def test_workers_steps_add_up():
    text = str(WorkerReport((30, 10)))
    assert "75%" in text
    assert "40" in text
    assert "-" in str(WorkerReport((0, 0)))
