"""How Keras models train on parameter servers."""
