"""What data are used for beside `fit`, whoever reads them."""

import keras
import numpy as np
import pytest
from models import compiled


def assert_seen_once(model, data, x, in_order=True):
    """Checks that validation, `evaluate` and `predict` use each example once."""
    (history,) = model.fit(data, validation_data=data, verbose=0).history["val_seen"]
    results = model.evaluate(data, verbose=0, return_dict=True)
    np.testing.assert_array_equal([history, results["seen"]], np.ones([2, len(x)]))
    predicted, expected = (model.predict(each, verbose=0) for each in (data, x))
    if not in_order:
        predicted, expected = (np.sort(each, axis=0) for each in (predicted, expected))
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)


def assert_weighted_as_in_one_process(strategy, data, samples, kind):
    """Checks the loss of examples with a class, or a weight, of their number each."""

    def build():
        return compiled(keras.layers.Dense(1), optimizer=keras.optimizers.SGD(0.0))

    with strategy.scope():
        model = build()
    plain = build()
    plain.set_weights(model.get_weights())
    data, options = data.map(lambda x, y: (x, y[0])), {}
    if kind == "class":
        options["class_weight"] = {i: 1.0 + i for i in range(samples)}
    else:
        data = data.map(lambda x, y: (x, y, 1.0 + y))
    one, other = (
        each.fit(data.batch(8), verbose=0, **options).history["loss"]
        for each in (model, plain)
    )
    assert one == pytest.approx(other, rel=1e-5)
