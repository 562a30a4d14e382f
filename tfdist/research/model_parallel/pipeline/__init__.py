"""Pipelines: a Keras model whose layers are on several devices, trained in microbatches.

A microbatch, under PipelineStrategy, from the layers of a model to their gradients:
`assign` (which layer is in which stage; under "auto" `nominal` estimates layers, and `cut`
tries cuts of a `chain` by the simulated `step_time`) -> `splitting/nodes` (parts in
place of a split layer) -> `pipeline` (their stages, and what crosses the cuts) ->
`extended` (variables to the devices of their stages) -> `steps` (a step as one graph) ->
`microbatches` (divides a batch) -> `tfdist/research/model_parallel/schedule` (the order of its
tasks) -> `tasks` (adds each, forward or backward) -> `devices` (where its operations
belong) -> `objective` (the loss of all microbatches) -> `copies` (adds up) -> `extended`
(updates each weight where it is). With max_staleness: `tfdist/research/model_parallel/schedule`
(which stage computes in which step) -> `stale_steps` (fills and drains; a step as one
graph) -> `links` (what a step leaves for a later one, in functions traced once).
"""
