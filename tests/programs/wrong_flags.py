"""Run a program once per command line from standard input, in forks: PROGRAM.

Prints a list of status and standard error for each. The forks share what takes longest,
the import of TensorFlow, and so it is no place for a program that goes on to compute.
"""

import json
import os
import runpy
import sys
import tempfile

import keras  # noqa: F401
import tensorflow  # noqa: F401


def run(program: str, arguments: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(errors.fileno(), 2)
            sys.argv = [program, *arguments]
            sys.path[0] = os.path.dirname(program)
            runpy.run_path(program, run_name="__main__")
            sys.exit(0)
        _, status = os.waitpid(pid, 0)
        errors.seek(0)
        return os.waitstatus_to_exitcode(status), errors.read()


if __name__ == "__main__":
    for arguments in json.load(sys.stdin):
        # Before a fork could write what is left in this buffer too.
        print(json.dumps(run(sys.argv[1], arguments)), flush=True)
