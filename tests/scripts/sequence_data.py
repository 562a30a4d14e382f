"""A `PyDataset` with an uneven last batch that is put in order anew each epoch."""

import keras
import numpy as np
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.2


class Waves(keras.utils.PyDataset):
    """Waves of two frequencies, in batches."""

    def __init__(self, count, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.rng = np.random.default_rng(0)
        self.labels = self.rng.integers(0, 2, size=count)
        phases = self.rng.uniform(0, 6, size=(count, 1))
        times = np.arange(16) * (0.4 + 0.5 * self.labels[:, None])
        self.x = np.sin(times + phases)[..., None].astype("float32")
        self.order = np.arange(count)

    def __len__(self):
        return -(-len(self.order) // self.batch_size)

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size :][: self.batch_size]
        return self.x[rows], self.labels[rows]

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


def main(strategy, directory):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((16, 1)),
                layers.Conv1D(8, 3, activation="relu"),
                layers.GRU(8),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.03), "binary_crossentropy", metrics=["accuracy"]
        )
    model.fit(Waves(110, 32), epochs=4, shuffle=False, verbose=0)
    found = model.evaluate(Waves(50, 32), return_dict=True, verbose=0)
    return {"accuracy": found["accuracy"]}, model
