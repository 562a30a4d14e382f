"""The linear predictor of cookbook.md: each way, on threads and on a cluster."""

import importlib
import re
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from ..support.jobs import ROOT, launch, run

# Other examples define flags of the same names.
pytestmark = pytest.mark.own_process

EXAMPLE = ROOT / "examples" / "linear_predictor.py"
SMALL = ("--examples=1024", "--batch_size=32", "--features=8", "--passes=3")
STEPS, FEATURES, FLOAT = 32, 8, 4
LINE = re.compile(
    r"pass (\d): loss ([\d.]+), ([\d,]+) bytes travelled, waited (not counted|[\d.]+%), "
    r"staleness ([\d.]+) \(at most (\d+)\)"
)


@pytest.fixture(scope="module")
def program() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE.parent)
        yield importlib.import_module("linear_predictor")


@pytest.fixture(autouse=True)
def restored_flags(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with flagsaver.flagsaver():
        yield


def passes(output: str) -> np.ndarray:
    """Returns a row per pass: loss, bytes, percent waited, mean and largest staleness."""
    found = [LINE.search(line) for line in output.splitlines()]
    rows = [each.groups() for each in found if each]
    assert [row[0] for row in rows] == ["1", "2", "3"], output
    return np.array([[number(text) for text in row[1:]] for row in rows])


def number(text: str) -> float:
    return np.nan if text == "not counted" else float(text.strip("%").replace(",", ""))


def on_threads(
    program: ModuleType, capsys: pytest.CaptureFixture[str], *given: str
) -> np.ndarray:
    program.FLAGS(["linear_predictor.py", *SMALL, "--on=threads", *given])
    program.main(["linear_predictor.py"])
    return passes(capsys.readouterr().out)


@pytest.fixture
def one_by_one(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> np.ndarray:
    """The losses of one thread."""
    with flagsaver.flagsaver():
        done = on_threads(program, capsys, "--how=sequential", "--pause=0")
    assert not done[:, 1:].any()
    losses = done[:, 0]
    assert losses[2] < losses[0] < 8
    return losses


def test_rounds_on_threads_compute_what_one_thread_computes(
    program, capsys, one_by_one
):
    flags = ("--how=synchronous", "--workers=4", "--slow=3")
    done = on_threads(program, capsys, *flags)
    np.testing.assert_allclose(done[:, 0], one_by_one, rtol=1e-4)
    # Each of four threads reads and writes in each round.
    assert done[:, 1].tolist() == [2 * 4 * STEPS * FEATURES * FLOAT] * 3
    # The others wait for the slow one, and nobody has changed what they read.
    assert done[:, 2].min() > 10
    assert not done[:, 3:].any()


def test_a_bound_of_zero_is_one_thread_after_the_other(program, capsys, one_by_one):
    flags = ("--how=bounded", "--max_staleness=0")
    done = on_threads(program, capsys, *flags)
    assert not done[:, 3:].any()
    # Batches may change places.
    np.testing.assert_allclose(done[:, 0], one_by_one, rtol=0.2)


@pytest.mark.parametrize("how", ["bounded", "asynchronous"])
def test_others_write_in_between(program, capsys, one_by_one, how):
    bound = ("--max_staleness=2",) if how == "bounded" else ()
    done = on_threads(program, capsys, f"--how={how}", "--workers=3", *bound)
    assert done[:, 1].tolist() == [2 * STEPS * FEATURES * FLOAT] * 3
    assert done[:, 3].min() > 0
    assert how == "asynchronous" or done[:, 4].max() <= 2
    assert done[2, 0] < one_by_one[0]


def test_a_bound_makes_the_fast_wait_for_the_slow(program, capsys):
    flags = ("--how=bounded", "--max_staleness=1", "--slow=10")
    bounded = on_threads(program, capsys, *flags)
    program.FLAGS.unparse_flags()
    free = on_threads(program, capsys, "--how=asynchronous", "--slow=10")
    assert bounded[:, 4].max() <= 1
    assert free[:, 4].max() > 5
    assert bounded[:, 2].min() > free[:, 2].max()


@pytest.mark.slow
def test_map_reduce_on_the_devices_of_one_process(one_by_one):
    # Logical devices are set before TensorFlow starts, so in a process of its own.
    flags = (*SMALL, "--how=map_reduce", "--workers=2")
    done = passes(run(EXAMPLE, *flags, CUDA_VISIBLE_DEVICES="-1").stdout)
    np.testing.assert_allclose(done[:, 0], one_by_one, rtol=1e-4)
    assert done[:, 1].tolist() == [2 * 2 * STEPS * FEATURES * FLOAT] * 3
    assert done[:, 2].min() > 0


@pytest.mark.in_part("synchronous", "asynchronous")
@pytest.mark.cluster
@pytest.mark.parametrize(
    "how", ["sequential", "map_reduce", "synchronous", "bounded", "asynchronous"]
)
def test_on_a_cluster(tmp_path, one_by_one, how):
    bound = ("--max_staleness=1",) if how == "bounded" else ()
    said = launch(
        *("--num_ps=1", "--num_workers=2", f"--log_dir={tmp_path}", EXAMPLE),
        *(*SMALL, "--on=processes", f"--how={how}", *bound),
        CUDA_VISIBLE_DEVICES="-1",
    )
    done = passes(said.stdout)
    np.testing.assert_allclose(
        done[:, 0],
        one_by_one,
        rtol=1e-4 if how in ("map_reduce", "synchronous") else 0.5,
    )
    # At least the data, w and a gradient per step.
    assert done[:, 1].min() > STEPS * FEATURES * FLOAT * (32 + 2)
    most = {"bounded": 1, "asynchronous": np.inf}.get(how, 0)
    assert done[:, 4].max() <= most


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--on=processes"], "needs a cluster: tfdist local"),
        (["--workers=2"], "workers is for several threads, not for --how=sequential"),
        (["--max_staleness=2"], "max_staleness is for --how=bounded, not for"),
        (["--batch_size=100"], "batch_size=100 must divide --examples=8192"),
        (["--how=synchronous", "--workers=3"], "choose a multiple of 3"),
    ],
)
def test_what_makes_no_sense_is_refused(program, given, words):
    program.FLAGS(["linear_predictor.py", *given])
    with pytest.raises(SystemExit, match=words):
        program.main(["linear_predictor.py"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--on=threads"], "would leave the cluster idle.*--on=processes"),
        (["--on=processes", "--slow=2"], "slow is for --on=threads, not for"),
        (["--on=processes", "--pause=2"], "pause is for --on=threads, not for"),
        (
            ["--on=processes", "--workers=2", "--how=bounded"],
            "workers is for several threads",
        ),
    ],
)
def test_what_makes_no_sense_in_a_cluster(program, monkeypatch, given, words):
    monkeypatch.setenv("TF_CONFIG", "{}")
    test_what_makes_no_sense_is_refused(program, given, words)


@pytest.mark.parametrize("flag", ["--how=hogwild", "--slow=0.5", "--max_staleness=-1"])
def test_a_wrong_flag_is_refused(program, flag):
    with pytest.raises(flags.IllegalFlagValueError):
        program.FLAGS(["linear_predictor.py", flag])
