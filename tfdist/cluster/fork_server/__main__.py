"""Serves until the launcher ends; in a forked process, runs the task's program."""

from tfdist.cluster.fork_server import program, server

task = server.serve()
try:
    task.run()
except BaseException:
    # The interpreter handles it, as it would an exception of the program alone.
    program.hide_callers(task.namespace)
    raise
