"""Pipelines: a Keras model whose layers are on several devices, trained in microbatches."""
