"""Model parallelism: schedules of stages, and which device computes which layer.

A layer, from a Keras model to its device: `place` -> `measured` (what each layer takes;
keras_graph.py next to it finds them) -> `graph` (as plain data) -> `work` (by numbers) ->
`heft` (a first assignment) -> `search` (better ones) -> `step` (simulates each) -> `plan`.
With split: `choose_split` (which layers) -> `split_graph` (parts in their place).
"""
