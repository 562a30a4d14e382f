"""KerasRS: two towers, whose negatives are the other examples of the whole batch."""

import keras
import keras_rs
import numpy as np

import tfdist

SAME_WEIGHTS = True
WITHIN = 0.4

USERS, ITEMS = 24, 24


class TwoTowers(keras.Model):
    def __init__(self):
        super().__init__()
        self.users = keras.layers.Embedding(USERS, 8)
        self.items = keras.layers.Embedding(ITEMS, 8)

    def call(self, inputs):
        return self.users(inputs["user"]), self.items(inputs["item"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
        users, items = map(tfdist.whole_batch, y_pred)
        ids = tfdist.whole_batch(x["item"])
        scores = keras.ops.matmul(users, keras.ops.transpose(items))
        labels = keras.ops.eye(keras.ops.shape(scores)[0])
        scores = keras_rs.layers.RemoveAccidentalHits()(scores, labels, ids)
        losses = keras.losses.categorical_crossentropy(labels, scores, from_logits=True)
        return keras.ops.mean(losses)


def main(strategy, directory):
    rng = np.random.default_rng(0)
    users = rng.integers(USERS, size=128)
    x = {"user": users, "item": (users + rng.integers(3, size=128)) % ITEMS}
    with strategy.scope():
        model = TwoTowers()
        model.compile(optimizer=keras.optimizers.Adagrad(0.5))
    model.fit(x, batch_size=16, epochs=6, shuffle=False, verbose=0)

    users, items = (
        np.asarray(each.get_weights()[0]) for each in (model.users, model.items)
    )
    retrieval = keras_rs.layers.BruteForceRetrieval(items, k=5, return_scores=False)
    top = np.asarray(retrieval(users))
    wanted = (np.arange(USERS)[:, None] + np.arange(3)) % ITEMS
    return {
        "recall": np.mean(
            [np.isin(a, b).mean() for a, b in zip(wanted, top, strict=True)]
        )
    }, model
