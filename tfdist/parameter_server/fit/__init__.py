"""Training of Keras models on parameter servers."""
