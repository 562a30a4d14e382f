"""KerasHub: GPT-2 with a byte-pair tokenizer of a vocabulary of its own."""

import keras
import keras_hub
import numpy as np
import tensorflow as tf

SAME_WEIGHTS = True
WITHIN = 0.2

TEXTS = ["the cat sat", "the dog sat", "a cat ran", "a dog ran"] * 8
MERGES = ["t h", "th e", "c a", "ca t", "d o", "do g", "s a", "sa t", "Ġ sat", "r a"]
LENGTH = 8


def build_preprocessor():
    letters = sorted(set("".join(TEXTS).replace(" ", "Ġ")))
    tokens = ["<|endoftext|>", *letters, *(each.replace(" ", "") for each in MERGES)]
    tokenizer = keras_hub.tokenizers.GPT2Tokenizer(
        vocabulary={token: number for number, token in enumerate(tokens)},
        merges=MERGES,
    )
    return keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=LENGTH)


def build_model(preprocessor):
    tokenizer = preprocessor.tokenizer
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=LENGTH,
        dropout=0.0,
    )
    return keras_hub.models.GPT2CausalLM(backbone, preprocessor)


def main(strategy, directory):
    with strategy.scope():
        model = build_model(build_preprocessor())
        model.compile(
            # The biases of keys have no gradient but rounding, which Adam enlarges.
            optimizer=keras.optimizers.Adam(0.01, epsilon=1e-4),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=["accuracy"],
            sampler="greedy",
        )
    data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(8)
    history = model.fit(data, epochs=4, verbose=0).history
    text = model.generate("the c", max_length=LENGTH)
    assert text.startswith("the c"), text
    result = {"loss": history["loss"][-1], "accuracy": history["accuracy"][-1]}
    assert np.isfinite(list(result.values())).all()
    return result, model
