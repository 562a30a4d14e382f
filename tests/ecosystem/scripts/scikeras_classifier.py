"""SciKeras: an estimator in a pipeline and a grid search of scikit-learn."""

import keras
import numpy as np
from scikeras.wrappers import KerasClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

SAME_WEIGHTS = True
WITHIN = 0.2


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = (x.sum(axis=1) > 0).astype(int)

    def build_model(units=4):
        with strategy.scope():
            hidden = keras.layers.Dense(units, "relu")
            output = keras.layers.Dense(1, "sigmoid")
            model = keras.Sequential([keras.Input((4,)), hidden, output])
            model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        return model

    estimator = KerasClassifier(
        build_model, batch_size=16, epochs=3, shuffle=False, verbose=0, units=4
    )
    search = GridSearchCV(
        make_pipeline(StandardScaler(), estimator),
        {"kerasclassifier__units": [4, 8]},
        cv=2,
        error_score="raise",
    )
    search.fit(x, y)
    model = search.best_estimator_[-1].model_
    return {"accuracy": search.score(x, y)}, model
