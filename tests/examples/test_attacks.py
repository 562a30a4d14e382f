"""The attacks of the example: they find what there is to find, and defences hold."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver

from ..support.raising import raises

# Other examples define flags of the same names.
pytestmark = pytest.mark.own_process

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("mlxtend")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (ROOT / "examples" / "attacks.py").read_text()
COMMANDS = re.findall(r"^    python examples/attacks.py (.*)$", EXAMPLE, re.M)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def attacks() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        yield importlib.import_module("attacks")


@pytest.fixture
def output(attacks: ModuleType, capsys: pytest.CaptureFixture[str]):
    def run(*flags: str) -> str:
        attacks.FLAGS(["attacks.py", *flags])
        attacks.main(["attacks.py"])
        return capsys.readouterr().out

    with flagsaver.flagsaver():
        yield run


def decibels(text: str) -> tuple[list[float], float]:
    """Returns the quality of what was found, and that of a picture that tells nothing."""
    images = re.findall(r"PSNR of an image: (.*) dB", text)
    (nothing,) = re.findall(r"tells nothing: (.*) dB", text)
    return [float(each) for each in images], float(nothing)


@pytest.mark.slow
def test_an_image_is_found_behind_its_update_unless_there_is_noise(output, tmp_path):
    plain, noisy, evasion = (command.split() for command in COMMANDS)
    assert evasion == ["--attack=evasion"]
    plain[-1] = f"--picture={tmp_path / 'found.png'}"
    found = output(*plain, "--iterations=100")
    (quality,), nothing = decibels(found)
    assert quality > nothing + 10
    (said,) = re.findall(r"The label is (\d); the update says \1\n", found)
    assert keras.utils.load_img(tmp_path / "found.png").size == (28, 2 * 28)
    (clipped,), _ = decibels(output(*noisy[:-1], "--noise=0", "--iterations=100"))
    assert clipped == pytest.approx(quality, abs=2)
    (hidden,), _ = decibels(output(*noisy, "--iterations=100"))
    assert hidden < nothing


def test_the_search_knows_what_a_client_does(attacks):
    model = attacks.small_cnn()
    x = RNG.uniform(size=(3, 28, 28, 1)).astype("float32")
    y = np.array([2, 0, 1])
    before = model.get_weights()
    sent = attacks.client_update(model, x, y, 3)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(sent).max() > 1e-3
    np.testing.assert_allclose(attacks.imagined_update(model, x, y, 3), sent, atol=1e-6)


def linear(classes: int = 2) -> keras.Model:
    keras.utils.set_random_seed(2)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(classes)])


def test_on_a_linear_model_both_attacks_find_the_worst_corner(attacks):
    model = linear()
    x = RNG.uniform(0.3, 0.7, (8, 6)).astype("float32")
    y = RNG.integers(2, size=8)
    kernel = model.layers[-1].kernel.numpy()
    away = np.sign(kernel[:, 1 - y] - kernel[:, y]).T
    for found in (
        attacks.fgsm(model, x, y, 0.25),
        attacks.pgd(model, x, y, 0.25, steps=10),
    ):
        np.testing.assert_allclose(found, x + 0.25 * away, atol=1e-6)


def test_changed_inputs_stay_in_the_ball_and_the_range(attacks):
    model = linear(classes=3)
    x = RNG.uniform(size=(20, 6)).astype("float32")
    x[:5] = np.round(x[:5])
    y = RNG.integers(3, size=20)
    for found in (
        attacks.fgsm(model, x, y, 0.1),
        attacks.pgd(model, x, y, 0.1, steps=5),
    ):
        assert np.abs(found - x).max() <= 0.1 + 1e-6
        assert found.numpy().min() >= 0
        assert found.numpy().max() <= 1
        assert attacks.LOSS(y, model(found)) > attacks.LOSS(y, model(x)) + 0.01


def test_a_step_of_adversarial_training_is_one_on_what_the_attack_found(
    attacks, monkeypatch
):
    """Without a start by chance, both are the same to rounding."""
    monkeypatch.setattr(tf.random, "uniform", lambda shape, *_: tf.zeros(shape))
    x = RNG.uniform(size=(20, 6)).astype("float32")
    y = RNG.integers(3, size=20)

    def trained(make, inputs):
        model = linear(classes=3)
        wrapped = make(model)
        wrapped.compile(keras.optimizers.SGD(0.5), attacks.LOSS)
        wrapped.fit(inputs, y, batch_size=20, verbose=0)
        return wrapped, model.get_weights()

    attacked = attacks.pgd(linear(classes=3), x, y, 0.2, steps=3).numpy()
    robust, found = trained(lambda model: attacks.AdversarialTraining(model, 0.2, 3), x)
    _, wanted = trained(lambda model: model, attacked)
    _, plain = trained(lambda model: model, x)
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-6)
    assert np.abs(found[0] - plain[0]).max() > 1e-3
    assert robust.evaluate(x, y, verbose=0) == pytest.approx(
        float(attacks.LOSS(y, robust.model(x))), rel=1e-5
    )


@pytest.mark.slow
def test_training_on_attacks_withstands_them_on_the_clients_of_a_federation(output):
    rows = re.findall(
        r"([\d.]+) +([\d.]+) +([\d.]+)$",
        output("--attack=evasion", "--rounds=2", "--steps=5"),
        re.M,
    )
    (clean, _, usual), (_, fgsm, robust) = np.array(rows, float)
    assert clean > 0.7
    assert robust > usual + 0.1
    assert fgsm >= robust


def test_noise_without_a_clip_is_an_error_in_one_line(output):
    with raises(SystemExit, "noise", "clip"):
        output("--attack=leakage", "--noise=1")
