"""Prints everything by which a program could tell that it was forked."""

import json
import os
import resource
import signal
import sys
import threading

import __main__


def text(name):
    with open(f"/proc/self/{name}") as file:
        return file.read()


streams = [
    (each.name, each.encoding, each.errors, each.line_buffering, each.write_through)
    for each in (sys.stdin, sys.stdout, sys.stderr)
]
files = [
    (int(number), os.readlink(f"/proc/self/fd/{number}").partition(":")[0])
    for number in os.listdir("/proc/self/fd")
    if os.path.exists(f"/proc/self/fd/{number}")
]
print(
    json.dumps(
        {
            "argv": sys.argv,
            "orig_argv": sys.orig_argv,
            "path": sys.path,
            "flags": str(sys.flags),
            "executable": sys.executable,
            "excepthook": sys.excepthook is sys.__excepthook__,
            "main": {
                name: str(value)
                for name, value in vars(__main__).items()
                if name.startswith("__") and name not in ("__loader__", "__main__")
            },
            "is_main": vars(__main__) is globals(),
            "loader": type(__loader__).__name__,
            "tensorflow": sorted({"tensorflow", "keras", "tfdist"} & {*sys.modules}),
            "directory": os.getcwd(),
            "umask": os.umask(0o22),
            "environ": dict(os.environ),
            "session": os.getsid(0) == os.getpgrp() == os.getpid(),
            "signals": [str(signal.getsignal(s)) for s in signal.valid_signals()],
            "blocked": [*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))],
            "files": sorted(files),
            "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
            "threads": (len(os.listdir("/proc/self/task")), threading.active_count()),
            "is_main_thread": threading.current_thread() is threading.main_thread(),
            "streams": streams,
            "shown": text("cmdline"),
            "shown_environ": sorted(text("environ").split("\0")),
            "name": text("comm"),
        },
        default=str,
    )
)
