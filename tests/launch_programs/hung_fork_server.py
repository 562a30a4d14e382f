"""A fork server that has imported nothing, and hangs after its first fork."""

import signal
import types

from tfdist.cluster.fork_server import program, server

fork = server._fork


def fork_and_hang():
    if pid := fork():
        print(f"forked {pid}", flush=True)
        signal.pause()
    return pid


server._fork = fork_and_hang
server.Imports = lambda: types.SimpleNamespace(path=[""], hidden_by=lambda _: "")
server.FirstImport = lambda _: None
task = server.serve()
try:
    task.run()
except BaseException:
    program.hide_callers(task.namespace)
    raise
