"""Load a tfdist.embedding.Embedding as a Keras one: MODEL OUTPUT."""

import sys

import keras
import numpy as np

model = keras.models.load_model(
    sys.argv[1], custom_objects={"tfdist>Embedding": keras.layers.Embedding}
)
assert "tfdist" not in sys.modules
np.save(sys.argv[2], model.get_weights()[0])
