"""Values that workers keep, and when they move.

A cache, with exchange=WhenChanged(...): `cached_steps` (a step on what its worker keeps) ->
`decision` (what moves before it) -> `blocks` (moves a weight) and `tables` (moves rows of a
table) -> `worker_cache` (keeps them on the worker) -> Caches in `cached_steps` (has all
workers send what they have kept back, before anything else reads it).
"""
