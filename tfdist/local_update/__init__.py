"""Local steps on every worker, and a mix of their models now and then.

A worker that comes back to the fit of a LocalUpdateStrategy: `rejoining` (asks the others)
-> `rejoin` (where the first of them looks, who comes back, what is refused) -> `exchange`
(tells all) -> `local_peers` (what workers told each other as fit started) ->
`handover` (model, optimizer, round, epoch) -> `sharing` (reads on in the data).
"""
