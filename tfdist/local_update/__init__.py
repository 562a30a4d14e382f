"""Local steps on every worker, and a mix of their models now and then.

A worker that comes back to the fit of a LocalUpdateStrategy: `rejoining` (asks the others)
-> `rejoin_listener` (where the first of them looks) -> `rejoin` (who comes back, what is
refused, and what workers told each other as fit started) -> `exchange` (tells all) ->
`handover` (model, optimizer, round, epoch) -> `sharing` (reads on in the data).
"""
