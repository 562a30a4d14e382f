"""KerasRS: tables of `DistributedEmbedding`, a cross layer and a loss of pairs in lists."""

import keras
import keras_rs
import numpy as np

SAME_WEIGHTS = True
WITHIN = 0.2

USERS, ITEMS, LIST, BATCH = 20, 30, 4, 8


def features(batch_size):
    def config(name, size, shape):
        table = keras_rs.layers.TableConfig(
            name=name, vocabulary_size=size, embedding_dim=8, combiner="sum"
        )
        return keras_rs.layers.FeatureConfig(
            name=name,
            table=table,
            input_shape=(batch_size, *shape),
            output_shape=(batch_size, *shape[:-1], 8),
        )

    return {
        "user": config("user", USERS, (1,)),
        "item": config("item", ITEMS, (LIST, 1)),
    }


class Ranker(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = keras_rs.layers.DistributedEmbedding(features(BATCH))
        self.cross = keras_rs.layers.FeatureCross()
        self.score = keras.layers.Dense(1)

    def call(self, inputs):
        found = self.embedding(inputs)
        user = keras.ops.repeat(found["user"][:, None], LIST, axis=1)
        both = keras.ops.concatenate([user, found["item"]], axis=-1)
        return self.score(self.cross(both))[..., 0]


def main(strategy, directory):
    rng = np.random.default_rng(0)
    users = rng.integers(USERS, size=(64, 1))
    items = rng.integers(ITEMS, size=(64, LIST, 1))
    ratings = (items[..., 0] % 5).astype("float32")
    with strategy.scope():
        model = Ranker()
        model.compile(
            optimizer=keras.optimizers.Adagrad(0.3),
            loss=keras_rs.losses.PairwiseLogisticLoss(),
            metrics=[keras_rs.metrics.NDCG(k=LIST, name="ndcg")],
        )
    x = {"user": users, "item": items}
    model.fit(x, ratings, batch_size=BATCH, epochs=4, shuffle=False, verbose=0)
    results = model.evaluate(x, ratings, batch_size=BATCH, return_dict=True, verbose=0)
    return results, model
