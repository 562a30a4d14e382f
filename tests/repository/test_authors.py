"""Who wrote a line of code, by the path of its file."""

import os
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist._support.authors import Author, author, is_of_keras, line_of, made_in

LIBRARIES = {
    "tensorflow": Path(tf.__file__).parent,
    "keras": Path(keras.__file__).parent,
    "tfdist": Path(tfdist.__file__).parent,
    "standard": Path(os.__file__).parent,
}


@pytest.mark.parametrize(
    ("path", "who"),
    [
        ("/home/me/train.py", Author.PROGRAM),
        ("train.py", Author.PROGRAM),
        # Given to the interpreter, not in a file.
        ("<stdin>", Author.PROGRAM),
        ("<string>", Author.PROGRAM),
        # Names that the libraries' folders have too.
        ("/home/me/tensorflow/python/losses.py", Author.PROGRAM),
        ("/home/me/tfdist/keras/losses.py", Author.PROGRAM),
        ("{tfdist}_experiments/train.py", Author.PROGRAM),
        ("{standard}/site-packages/another/losses.py", Author.PACKAGE),
        ("/usr/lib/python3/dist-packages/another/losses.py", Author.PACKAGE),
        ("/elsewhere/lib/python3.12/threading.py", Author.PACKAGE),
        ("{standard}/threading.py", Author.STANDARD),
        ("<frozen runpy>", Author.STANDARD),
        ("{keras}/src/losses/losses.py", Author.KERAS),
        ("{tfdist}/embedding/layers.py", Author.PRIMITIVE),
        ("{keras}/src/ops/numpy.py", Author.PRIMITIVE),
        ("{tensorflow}/python/ops/math_ops.py", Author.PRIMITIVE),
        ("{tfdist}/synchronous/replica/compiled.py", Author.PRIMITIVE),
    ],
)
def test_author(path, who):
    assert author(path.format(**LIBRARIES)) is who


def test_an_operation_is_of_who_asked_for_it():
    with tf.Graph().as_default():
        value = tf.compat.v1.placeholder(tf.float32, (4, 2))
        by_a_loss = keras.losses.MeanSquaredError()(value, value).op
        by_hand = keras.ops.sum(value).op
    assert is_of_keras(by_a_loss)
    assert not is_of_keras(by_hand)
    assert line_of(by_hand, Author.PROGRAM).startswith(f"{__file__}, line ")
    assert made_in(by_hand, Author.PROGRAM).startswith(f", made in {__file__}, line ")
    assert made_in(by_hand) == ""
