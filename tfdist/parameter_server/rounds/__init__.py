"""Rounds on the ps: gradients of several workers are averaged and applied at once.

A round, under tfdist.Synchronous(), from a batch to the weights of the next round:
`tfdist/parameter_server/steps/train_steps` (asks for the policy) ->
`tfdist/parameter_server/steps/round_steps` (deals batches out to rounds) -> `rounds` (what
a step does in its round) -> `turnstile` (waits for the round, on each ps) -> `computation`
(takes gradients in place of the optimizer) -> `sums` (one accumulator per variable) ->
`updates` (the chief's thread; the optimizer runs once).
`tfdist/parameter_server/gate/counting_gates` counts the steps. With backup workers:
`tfdist/parameter_server/steps/backup_steps` (hands out one batch at a time) ->
`backup_rounds` (one ps decides who joins a round, and what counts).
"""
