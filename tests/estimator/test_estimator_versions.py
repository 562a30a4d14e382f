"""The packages that the Estimator needs, and the errors when one is missing."""

import pytest

from tfdist._support.requires import check_tensorflow
from tfdist.estimator import versions
from tfdist.estimator.versions import EstimatorImportError

from ..support.raising import raises

INSTALL = "pip install 'tensorflow-estimator==2.15.0' tf_keras (the extra `estimator`)"


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
    assert INSTALL in str(raised.value)


def test_keras_of_another_tensorflow():
    with raises(EstimatorImportError, "'tf_keras~=2.21.0'"):
        versions.check("2.21.0", installed(keras="2.16.0"))


@pytest.mark.parametrize("version", ["1.15.5", "2.15.1", "2.9.0"])
def test_tensorflow_with_an_estimator_of_its_own(version):
    with raises(ImportError, "own", "tf.estimator"):
        check_tensorflow(version)


@pytest.mark.parametrize("version", ["2.16.1", "2.21.0", "3.0.0-rc1"])
def test_tensorflow_without(version):
    check_tensorflow(version)


OLD = """
import tensorflow as tf
tf.__version__ = "2.15.1"
try:
    from tfdist import estimator
except ImportError as error:
    print(error)
"""


def test_not_installed(run_program):
    done = run_program("estimator_not_installed.py")
    assert INSTALL in done.stdout, done.stderr


def test_old_tensorflow_is_named_before_anything_fails(run_python):
    done = run_python(OLD)
    assert "tfdist needs TensorFlow 2.16 or newer; version 2.15.1" in done.stdout
