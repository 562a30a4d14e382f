"""How Keras models train on workers that step together."""
