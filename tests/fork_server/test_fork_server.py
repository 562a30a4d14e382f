"""A forked program behaves as a spawned one does."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import launch
from tf_config.contract import ForkAnswer, ForkRequest
from tfdist.cluster.fork_server import server

from ..launch_programs.launcher import PROGRAMS, wait_for
from ..support.deadline import DEADLINE
from ..support.processes import still_running

ROOT = str(Path(launch.__file__).parent.parent)


class Forker:
    """Runs a command in both ways."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, PROGRAMS / "forker.py", directory / "log"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": ROOT, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        pid, problem = json.loads(self.process.stdout.readline())
        assert problem == "", (directory / "log").read_text()
        self.server = psutil.Process(pid)

    def both(self, *arguments: str) -> tuple[tuple, tuple]:
        """The return code and the output of the fork, and of the spawn."""
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        forked, spawned = json.loads(self.process.stdout.readline())
        return tuple(forked), tuple(spawned)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def forker(directory):
    forker = Forker(directory)
    with forker.process:
        yield forker
        forker.process.stdin.close()
        forker.process.wait(DEADLINE)
        assert still_running([forker.server]) == []


@pytest.fixture(scope="module")
def other_forker(directory):
    """One whose environment sets what a script may unset."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
        forker = Forker(directory)
    with forker.process:
        yield forker
        forker.process.stdin.close()


@pytest.fixture
def script(directory, request):
    def write(code: str, name: str = "") -> str:
        path = directory / (name or f"{request.node.name.partition('[')[0]}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
        return str(path.relative_to(directory))

    return write


pytestmark = pytest.mark.slow


@pytest.mark.in_gate
def test_it_looks_like_a_fresh_interpreter(forker, script):
    path = script((PROGRAMS / "looks_around.py").read_text(), "beside/looks.py")
    forked, spawned = (
        json.loads(output) for _, output in forker.both(path, "--a", "b")
    )
    assert forked == spawned
    assert spawned["argv"] == [path, "--a", "b"]


def test_a_module_looks_as_with_dash_m(forker, script):
    script((PROGRAMS / "looks_around.py").read_text(), "package/looks.py")
    forked, spawned = (
        json.loads(re.sub("at 0x[0-9a-f]*", "", output))
        for _, output in forker.both("-m", "package.looks")
    )
    assert forked == spawned


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('done')", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('words')", 1),
        ("import sys; sys.exit(None)", 0),
        ("import os; os._exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
        # Ignored by default in what a shell has put into the background.
        (
            "import os, signal; signal.signal(2, signal.default_int_handler)\n"
            "os.kill(os.getpid(), 2)",
            -signal.SIGINT,
        ),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("def (", 1),
        ("import nothing_like_it", 1),
        ("def f(): 1 / 0\ntry: f()\nexcept ValueError: pass", 1),
        ("try: 1 / 0\nexcept ArithmeticError as e: raise ValueError from e", 1),
        ("import sys; sys.excepthook = lambda *a: print('mine', *a)\n1 / 0", 1),
        ("import atexit\natexit.register(print, 'last')\n1 / 0", 1),
    ],
)
def test_it_ends_in_the_same_way(forker, script, code, status):
    forked, spawned = forker.both(script(code))
    without_ids = [output.partition(" at 0x")[0] for _, output in (forked, spawned)]
    assert without_ids[0] == without_ids[1]
    assert forked[0] == spawned[0] == status


def test_a_server_imports_what_it_is_told_to(forker, script):
    script("import os\nprint('registers', flush=True)\nos._exit(5)", "operations.py")
    config = {"cluster": {"chief": ["a:1"], "ps": ["a:2"], "worker": ["a:3"]}}
    config["task"] = {"type": "ps", "index": 0}
    variables = {"TFDIST_IMPORTS": "operations", "TF_CONFIG": json.dumps(config)}
    code = f"""
import os
os.environ.update({variables!r})
from tfdist import server
server.main()
"""
    for status, output in forker.both(script(code)):
        assert (status, output.splitlines()[-1]) == (5, "registers")


def test_what_runs_last_still_finds_main(forker, script):
    path = script("""
import atexit, pickle, threading, time
class Mine: pass
def late():
    time.sleep(0.2)
    print("thread", pickle.loads(pickle.dumps(Mine)))
atexit.register(lambda: print("exit", pickle.loads(pickle.dumps(Mine))))
threading.Thread(target=late).start()
""")
    forked, spawned = forker.both(path)
    assert forked == spawned
    assert "exit" in forked[1]


def test_processes_of_a_script_start(forker, script):
    path = script("""
import multiprocessing
def square(x): return x * x
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(square, [3]))
""")
    forked, spawned = forker.both(path)
    assert forked == spawned
    assert forked[1].count("[9]") == 3


@pytest.mark.in_gate
def test_seeds_differ(forker, script):
    path = script("""
import multiprocessing, random
import numpy as np
print(random.random(), np.random.random(), multiprocessing.current_process().authkey)
""")
    seeds = [seed for _ in range(2) for seed in forker.both(path)[0][1].split()]
    assert len(set(seeds)) == len(seeds) >= 6


def test_nothing_is_executed_again(forker, script):
    path = script("""
import sys
before = set(sys.modules)
import keras, tensorflow, tfdist
print(sorted({*sys.modules} - before))
keras.src.marked = tensorflow.marked = True
import tensorflow.keras
print(keras.src.marked, tensorflow.marked)
""")
    (_, output), _ = forker.both(path)
    assert output.splitlines() == ["['keras', 'tensorflow', 'tfdist']", "True True"]


def test_tensorflow_is_there_and_whole(forker, script):
    path = script("""
import importlib.util, os
import tensorflow as tf
import tensorflow.keras.layers
import keras, tfdist
from tensorflow.python.ops import math_ops
print(importlib.util.find_spec("tensorflow").origin, tf.__spec__.name, tfdist.__file__)
print(sorted(os.environ))
print(keras.layers.Dense is tensorflow.keras.layers.Dense)
print(tf.reduce_sum([1.0, 2.0]).numpy(), keras.ops.sum([1.0, 2.0]).numpy())
""")
    forked, spawned = (output.splitlines()[-4:] for _, output in forker.both(path))
    assert forked == spawned
    assert forked[-1] == "3.0 3.0"


@pytest.mark.parametrize(
    ("code", "done"),
    [
        ("os.environ['KERAS_BACKEND'] = 'jax'", "sets KERAS_BACKEND"),
        ("os.environ.pop('OMP_NUM_THREADS', None)", "sets OMP_NUM_THREADS"),
        ("os.environ['HOME'] = '/tmp'", "sets HOME"),
        (
            "import importlib.util as u\nu.find_spec('tensorflow')\n"
            "os.environ['TF_X'] = os.environ['KERAS_X'] = ''",
            "sets KERAS_X and sets TF_X",
        ),
        ("import sys; sys.path.insert(0, 'lib')", "changes where Python finds keras"),
        ("import sys; sys.path[:0] = ['/tmp']; sys.path.append('lib')", ""),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '-1'", ""),
        ("os.environ['MY_OWN'] = '1'", ""),
        ("import keras; os.environ['KERAS_BACKEND'] = 'jax'", ""),
        ("import tfdist; os.environ['TF_XLA_FLAGS'] = ''", ""),
    ],
)
def test_what_comes_too_late_is_refused(other_forker, script, code, done):
    script("", "lib/keras.py")
    path = script(f"import os, sys\nprint(os.getppid())\n{code}\n{THEN_IMPORT}")
    (status, output), _ = other_forker.both(path)
    parent, *tries = output.splitlines()
    assert (status, int(parent)) == (0, other_forker.process.pid)
    if done:
        [said] = set(tries)
        assert said.startswith(f"before it imports keras, this program {done}, which")
        assert "--fork_server=off" in said
    else:
        assert tries == ["it is there"] * 2


# A refusal is not used up.
THEN_IMPORT = """
for _ in range(2):
    try:
        import keras
    except RuntimeError as error:
        print(error)
    else:
        print("it is there")
"""


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["-c", "print(1)"], "-c is no Python file"),
        (["-X", "dev", "x.py"], "-X is no Python file"),
        (["missing.py"], "missing.py is no Python file"),
        ([], "no script is no Python file"),
        (["shadows/train.py"], "it would import requests from "),
    ],
)
def test_what_cannot_be_forked(forker, script, argv, problem):
    script("", "shadows/train.py")
    script("", "shadows/requests.py")
    assert forker.both(*argv)[0][1].startswith(problem)


@pytest.mark.parametrize("free", [0, 1, 3])
def test_a_task_whose_files_do_not_fit_is_spawned(forker, script, free):
    """With one file, the first of them would pass for the launcher's permit to begin."""
    path = script("print('done')")
    before = forker.server.rlimit(psutil.RLIMIT_NOFILE)
    taken = {int(each.name) for each in Path(f"/proc/{forker.server.pid}/fd").iterdir()}
    limit = [number for number in range(len(taken) + 4) if number not in taken][free]
    forker.server.rlimit(psutil.RLIMIT_NOFILE, (limit, before[1]))
    try:
        forked, spawned = forker.both(path)
    finally:
        forker.server.rlimit(psutil.RLIMIT_NOFILE, before)
    assert forked[0] is None
    words = f"received {free} file descriptors of 4; it may have at most {limit} open"
    assert words in forked[1]
    assert spawned == (0, "done\n")
    assert forker.both(path) == (spawned, spawned)


def test_a_request_that_was_cut_off_is_the_end(capfd):
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(b'{"argv": ["py')
        assert server.receive(theirs) is None
    assert "within a request, of which 13 bytes had come" in capfd.readouterr().err


def test_the_runtime_of_tensorflow_is_untouched(forker):
    tasks = Path(f"/proc/{forker.server.pid}/task").iterdir()
    names = [(task / "comm").read_text() for task in tasks]
    assert [name for name in names if name.startswith(("tf_", "grpc"))] == []


def test_a_dead_fork_server_is_a_reason_to_spawn(directory, script):
    forker = Forker(directory)
    with forker.process:
        forker.server.kill()
        # Its files close with its last thread, which may end after the first.
        threads = Path(f"/proc/{forker.server.pid}/task")
        wait_for(
            lambda: (
                forker.server.status() == psutil.STATUS_ZOMBIE
                and len(list(threads.iterdir())) == 1
            ),
            "end of the fork server",
        )
        for reason in ("Broken pipe", "Bad file descriptor"):
            forked, spawned = forker.both(script("print(1)"))
            assert forked[0] is None
            assert "the fork server has ended: [Errno" in forked[1]
            assert reason in forked[1]
            assert spawned == (0, "1\n")
        forker.process.stdin.close()


@pytest.mark.in_gate
def test_nothing_survives_the_launcher(directory, script):
    forker = Forker(directory)
    path = script("import time; open('here', 'w').close(); time.sleep(600)")
    with forker.process:
        forker.process.stdin.write(json.dumps([path]) + "\n")
        forker.process.stdin.flush()
        wait_for((directory / "here").exists, "script")
        family = forker.process.pid, *psutil.Process(forker.process.pid).children()
        forker.process.kill()
    _, server, task = family
    assert forker.server in (server, task)
    assert still_running([server, task]) == []


def test_requests_and_answers_survive_their_journey():
    argv, env = ("py", "a b", "\udce4"), {"A": "é\n", "B": ""}
    request = ForkRequest(argv, env, "/tmp", (0, 1, 2, 9))
    assert ForkRequest.from_line(request.to_line()) == request
    assert request.to_line().count(b"\n") == 1
    for answer in (ForkAnswer(12), ForkAnswer(problem="because")):
        assert ForkAnswer.from_line(answer.to_line()) == answer
