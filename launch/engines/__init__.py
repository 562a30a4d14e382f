"""Engines that start jobs on several hosts: one module per engine, the same verbs.

A task on another host, from python -m launch.ssh to its process there: `launch/ssh` ->
`hosts` (the user's list) -> `layout` (which host gets which task) -> `planner` (a plan per
task) -> `preflight` and `launch/remote/probe` (can each host run it?) -> `ssh` -> `here`
(runs it, again elsewhere if a host is lost) -> `launch/loopback/foreground` -> the supervisor, as
above -> `launch/supervise/remote_process` (a connection, in place of a process) ->
`launch/remote/agent` (there: starts the task, and ends it with the connection).

A job of Slurm, from python -m launch.slurm to the same agents: `launch/slurm` ->
`slurm_script` (the batch script, pure) -> `slurm` and `slurm_client` (submit it, follow
it). On the job's first node the script runs `launch/slurm` again -> `slurm_allocation` (the
nodes, a command of srun per node, and Slurm's warnings) -> `layout`, as above.

A job of Kubernetes, from python -m launch.kubernetes to the same agents:
`launch/kubernetes` -> `kubernetes_pods` and `kubernetes_objects` (the objects, pure) ->
`kubernetes` (creates them through `kubernetes_client`, follows them by what
`kubernetes_state` reads in them, and copies the logs with `kubernetes_logs`). In the
launcher's pod, `launch/kubernetes` runs again -> the supervisor, as above ->
`launch/remote/connector` (a connection to a pod; `launch/remote/greeting` proves who is
there) -> `launch/remote/listener` (in that pod, runs the agent).

A job on Ray, from python -m launch.ray to the same agents: `launch/ray` -> `ray_request`
(what to ask for and what to ship, pure) -> `ray` -> `ray_launcher_process`, which starts the
job's one Ray program, `ray_driver_process` -> `ray_reservation` (placement groups, all or
none, and those that may come later) and an actor per task, `ray_actor_process`. Back here,
`ray_places` makes hosts of the places -> `layout`, as above. A connection is
`ray_bridge_process`, which hands its files to the driver, where `ray_driver_line` passes them
on to the actor. `ray_executor` uses the same reservation, with actors of `ray_rank_process`.
"""
