"""Training of Keras models on workers in lockstep."""
