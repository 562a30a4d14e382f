"""A table in CSV: columns of numbers and of words, and early stopping.

tfdist local tabular.py
"""

import csv
import random

import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.ParameterServerStrategy()

# A table to try it with. Customers on a monthly plan leave if their bill is above 50.
with open("customers.csv", "w") as file:
    file.write("months,bill,plan,left\n")
    for _ in range(4000):
        bill, plan = random.uniform(20, 90), random.choice(["month", "year"])
        left = int(plan == "month" and bill > 50)
        file.write(f"{random.randrange(1, 72)},{bill:.2f},{plan},{left}\n")


def columns(rows):
    numbers = [[float(row["months"]), float(row["bill"])] for row in rows]
    left = np.array([float(row["left"]) for row in rows], "float32")
    plan = tf.constant([row["plan"] for row in rows])
    return {"numbers": np.array(numbers, "float32"), "plan": plan}, left


with open("customers.csv") as file:
    rows = list(csv.DictReader(file))
(x, y), test = columns(rows[:3000]), columns(rows[3000:])

with strategy.scope():
    scale = keras.layers.Normalization()
    scale.adapt(x["numbers"])
    words = keras.layers.StringLookup(
        vocabulary=["month", "year"], output_mode="one_hot"
    )
    numbers = keras.Input((2,), name="numbers")
    plan = keras.Input((), dtype="string", name="plan")
    hidden = keras.layers.Concatenate()([scale(numbers), words(plan)])
    hidden = keras.layers.Dense(16, activation="relu")(hidden)
    left = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = keras.Model({"numbers": numbers, "plan": plan}, left)
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])

stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
model.fit(x, y, epochs=10, verbose=2, validation_data=test, callbacks=[stop])
loss, accuracy = model.evaluate(*test, verbose=0)
print(f"accuracy on customers that it has not seen: {accuracy:.3f}")
