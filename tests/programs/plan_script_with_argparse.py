"""A model whose size comes from argparse."""

import argparse

import keras

parser = argparse.ArgumentParser()
parser.add_argument("--units", type=int, default=64)
arguments = parser.parse_args()


def build_model():
    layers = [keras.Input((8,)), keras.layers.Dense(arguments.units)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return model
