"""What the Estimator needs, and what a user is told who has not got it."""

import pytest

from tfdist.estimator import versions
from tfdist.estimator.versions import EstimatorImportError


def installed(estimator="2.15.0", keras="2.21.0"):
    return {"tensorflow-estimator": estimator, "tf_keras": keras}


@pytest.mark.parametrize("tensorflow", ["2.16.2", "2.21.0", "2.22.0-rc1"])
def test_what_it_needs(tensorflow):
    versions.check(tensorflow, installed(keras=tensorflow.split("-")[0]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (installed(estimator=None), r"tensorflow-estimator, which is not installed"),
        (installed(keras=None), r"tf_keras, which is not installed"),
        (installed(estimator="2.14.0"), r"estimator 2.15.0, .*; version 2.14.0 is ins"),
        (installed(estimator="2.16.0"), r"version 2.16.0 is installed"),
    ],
)
def test_missing_or_other_versions_name_the_extra(given, words):
    with pytest.raises(EstimatorImportError, match=words) as raised:
        versions.check("2.21.0", given)
    assert "pip install 'tfdist[estimator]'" in str(raised.value)


def test_keras_of_another_tensorflow():
    with pytest.raises(EstimatorImportError, match=r"'tf_keras~=2.21.0'"):
        versions.check("2.21.0", installed(keras="2.16.0"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [("1.15.5", True), ("2.15.1", True), ("2.16.1", False), ("2.21.0", False)],
)
def test_tensorflow_with_an_estimator_of_its_own(given, expected):
    assert versions.is_native(given) is expected


NOT_INSTALLED = """
import importlib.metadata
real = importlib.metadata.version
def version(name):
    if name == "tensorflow-estimator":
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
import tfdist  # does not need it
try:
    from tfdist import estimator
except ImportError as error:
    print(error)
"""

NATIVE = """
import types
import tensorflow as tf
tf.__version__ = "2.15.1"
def api():
    class Names(types.SimpleNamespace):
        def __getattr__(self, name):
            return type(name, (), {})
    return Names(experimental=Names(), export=Names())
tf.estimator = tf.compat.v1.estimator = api()
tf.keras = types.SimpleNamespace(estimator=api())
tf.estimator.Estimator = int
from tfdist.estimator import names
print(names.v2.Estimator)
"""


def test_not_installed(run_python):
    done = run_python(NOT_INSTALLED)
    assert "pip install 'tfdist[estimator]'" in done.stdout, done.stderr


def test_native_is_used_and_said_so(run_python):
    done = run_python(NATIVE)
    assert done.stdout == "<class 'int'>\n", done.stderr
    assert "TensorFlow 2.15.1 has an Estimator of its own: tfdist" in done.stderr
