"""A launcher of single commands: each line of its input is forked and spawned.

    python forker.py LOG < commands

A command is a JSON list, the arguments of Python. One that starts with `<` is the file of
the standard input of the fork. The answer is a JSON list, once for the fork and once for
the spawn: the return code and the output, or why it was not forked.
"""

import json
import os
import sys

from launch.supervise import processes
from launch.supervise.fork_server import ForkServer


def ended(pid: int, output: int) -> list:
    data = b""
    while chunk := os.read(output, 65536):
        data += chunk
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), data.decode()]


def forked(server: ForkServer, argv: list[str], path: str) -> list:
    ours, theirs = os.pipe()
    stdin = os.open(path, os.O_RDONLY)
    files = {0: stdin, 1: theirs, 2: theirs}
    answer = server.fork(argv, os.environ, files)
    os.close(theirs)
    os.close(stdin)
    if answer.problem:
        os.close(ours)
        return [None, answer.problem]
    found = ended(answer.pid, ours)
    os.close(ours)
    return found


def spawned(argv: list[str]) -> list:
    ours, theirs = os.pipe()
    pid = processes.spawn(argv, os.environ, output=theirs)
    os.close(theirs)
    found = ended(pid, ours)
    os.close(ours)
    return found


def main() -> None:
    processes.adopt_orphans()
    with open(sys.argv[1], "wb") as log:
        server = ForkServer(sys.executable, os.environ, log)
    server.hear()
    print(json.dumps([server.pid, server.problem]), flush=True)
    for line in sys.stdin:
        arguments, path = json.loads(line), os.devnull
        if arguments and arguments[0].startswith("<"):
            path = arguments.pop(0)[1:]
        argv = [sys.executable, *arguments]
        print(json.dumps([forked(server, argv, path), spawned(argv)]), flush=True)


main()
