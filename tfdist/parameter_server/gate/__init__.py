"""Keeps a bound on staleness where steps write: on a ps, in TensorFlow operations.

A turn, from consistency=BoundedStaleness(4) to a step that waits:
`tfdist/consistency/bounded_staleness` (who may start and write, in Python) -> `decisions`
(the same in tensors) -> `bounded_gate` (one ps that decides for all steps; a policy of your
own decides on the chief: `policy_gate`) -> `waiting_gate` (the operations with which a step
asks and waits) -> `order_reads_and_writes` (has what the step reads and writes wait for
them) -> `meter` (counts) -> `tfdist/parameter_server/fit/staleness_logs` (adds the counts
to the logs of the epoch).
"""
