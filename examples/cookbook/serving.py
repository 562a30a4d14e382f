"""Serving: train on a cluster, export, and ask the files as a server does.

tfdist local serving.py
"""

import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.ParameterServerStrategy()

city = tf.constant(["Rome", "Oslo", "Bonn", "Rome"] * 64)
price = np.array([3.0, 5.0, 4.0, 3.0] * 64, "float32")
with strategy.scope():
    name = keras.Input((), dtype="string", name="city")
    number = keras.layers.StringLookup(vocabulary=["Rome", "Oslo", "Bonn"])(name)
    rows = keras.layers.Embedding(4, 8)(number)
    model = keras.Model({"city": name}, keras.layers.Dense(1)(rows))
    model.compile(keras.optimizers.Adam(0.1), "mse")
model.fit({"city": city}, price, epochs=10, verbose=2)


def predict(city):
    return {"price": model({"city": city})[:, 0]}


# TensorFlow Serving finds the newest version, a number, in the directory "price".
archive = keras.export.ExportArchive()
archive.track(model)
signature = [tf.TensorSpec([None], tf.string, "city")]
archive.add_endpoint("predict", predict, input_signature=signature)
archive.write_out("price/1", verbose=False)

# What follows needs neither the script above nor tfdist.
served = tf.saved_model.load("price/1")
found = served.signatures["predict"](city=tf.constant(["Oslo", "Rome"]))
print("Oslo, Rome:", *(f"{price:.1f}" for price in found["price"].numpy()))
