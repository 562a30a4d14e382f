"""Deadlines of waits between tasks, and the errors that users read at their end.

TensorFlow mostly waits without a deadline. Each wait here has one, and an error or a log
line that names the task it waited for.

*Asynchronous training: the chief waits for workers, ps and data.*

*   `activity`: what the chief waits for and what each worker does, as noted by the threads.
*   `patience`: the main thread's wait for steps, in slices, so that an error can be raised.
*   `stall` (pure): decides whether a wait has taken too long, and what to do about it.
*   `watchdog`: a thread that probes every server and acts on `stall`. Raises
    `StalledError`, or exits the process if the main thread cannot be interrupted.
*   `sentinel`: a process that kills the chief if no Python thread runs, so that the
    watchdog cannot either.
*   `supervision`: the chief's reports to its launcher, which restarts tasks.

*Synchronous training: each task waits for its peers.*

*   `peers`: probes every peer; aborts the collectives if one is lost. `PeerLostError`,
    which names a lost ps, too.
*   `watched_workers`: exits the process if a call still waits for a lost worker.

*Both:*

*   `step_error`: what TensorFlow says of a failed step, shortened in errors and in its log.

The wait for a cluster to start is `tfdist.cluster.startup`, whose error is
`StartupTimeoutError`.
"""
