"""The commands of `launch` and `tfdist`, and how a user types each of them."""

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from tf_config.contract import CHECKPOINT_MODULE, SERVER_MODULE

COMMANDS = {
    "quickstart": ("launch.quickstart", "writes a first script to train with"),
    "local": ("launch.local", "runs a cluster on this machine"),
    "ssh": ("launch.ssh", "runs a cluster on hosts that ssh can reach"),
    "slurm": ("launch.slurm", "runs a cluster on the nodes of a Slurm job"),
    "kubernetes": ("launch.kubernetes", "runs a cluster as pods of Kubernetes"),
    "ray": ("launch.ray", "runs a cluster on the nodes of a Ray cluster"),
    "task": ("launch.task", "starts one task of a cluster on this host"),
    "jobs": ("launch.jobs", "looks at the jobs that were started from this machine"),
    "doctor": ("launch.doctor", "asks what is wrong with a cluster"),
    "check": ("launch.check", "checks whether a job can run here, or on hosts"),
    "env": ("launch.env", "prints what a report of a defect needs"),
    "speedup": ("launch.speedup", "measures how training speeds up with more workers"),
    "chaos": ("launch.chaos", "breaks tasks on purpose while a script trains"),
    "plan": ("tfdist.plan", "plans which ps holds each variable of a model"),
    "simulate": (
        "tfdist.research.simulate",
        "predicts training on a cluster that you do not have",
    ),
    "mixing": ("tfdist.local_update.mixing", "compares graphs for gossip"),
    "checkpoint": (CHECKPOINT_MODULE, "checks whether checkpoints can be read"),
    "server": (SERVER_MODULE, "serves as a ps or a worker; the launchers start it"),
}
"""The module of each command, which `python -m` runs, and what it does."""

CONSOLE = "tfdist"
"""The console command that runs them all, as in `tfdist local`."""

GROUPS = {
    "begin": ("quickstart",),
    "run": ("local", "ssh", "slurm", "kubernetes", "ray", "task"),
    "look": ("jobs", "check", "doctor", "checkpoint", "env"),
    "measure and plan": ("speedup", "plan", "simulate", "mixing"),
    "test": ("chaos",),
}
"""The commands that users type, by what they are for; launchers alone start the server."""

_MODULES = {module: name for name, (module, _) in COMMANDS.items()}
# `launch.ray.Executor` is no command.
# A process is shown with its own command, and `/bin/python -m` is not ours either.
_MENTION = re.compile(
    r"process \d+ \([^)]*\)|(?<![\w./-])(?:python -m |(?<!-m ))\b"
    rf"({'|'.join(map(re.escape, _MODULES))})\b(?!\.\w)"
)


def listing(package: str) -> str:
    """Returns a line for each command of a package, as `python -m` runs it."""
    lines = {
        f"python -m {module}": summary
        for module, summary in COMMANDS.values()
        if module.startswith(package)
    }
    width = max(map(len, lines))
    return "\n".join(f"    {typed:{width}}  {does}" for typed, does in lines.items())


def grouped() -> str:
    """Returns a line for each command that users type, in groups."""
    width = max(map(len, COMMANDS))
    return "\n\n".join(
        "\n".join(
            [
                f"{title}:",
                *(f"    {name:{width}}  {COMMANDS[name][1]}" for name in names),
            ]
        )
        for title, names in GROUPS.items()
    )


def nearest(word: str, words: Iterable[str]) -> str:
    """Returns a question such as " Did you mean 'local'?", or "" if no word is near.

    >>> nearest("lokal", COMMANDS)
    " Did you mean 'local'?"
    """
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def starting(
    told: str,
    argv: Sequence[str],
    needs: Sequence[str],
    has: Mapping[str, Sequence[str]],
    flags: Sequence[str] = (),
) -> str:
    """Returns the command that starts a program on a cluster with other jobs.

    Args:
        told: The value of `contract.COMMAND` in its environment; '' if no launcher has started it.
        argv: The program's own arguments.
        needs: The jobs that the cluster needs.
        has: The addresses of the jobs that it has.
        flags: More flags for the launcher.

    >>> starting("", ["train.py"], ["chief", "ps", "worker"], {"worker": ["a:1"]})
    'tfdist local --num_ps=2 --num_workers=1 train.py'
    """
    local = [f"{CONSOLE} local", shlex.join(argv) or "SCRIPT"]
    command, program = json.loads(told) if told else local
    if "--job_name=" in command:  # Of one task, which names the hosts of all.
        jobs = [*needs, *(job for job in has if job not in (*needs, "ps"))]
        about = [
            f"--{job}_hosts={','.join(has.get(job, ['HOST:PORT']))}" for job in jobs
        ]
    else:
        num_ps = len(has.get("ps", "??")) if "ps" in needs else 0
        about = [f"--num_ps={num_ps}", f"--num_workers={len(has.get('worker', '??'))}"]
    return " ".join([command, *about, *flags, program])


def error_of(module: str, error: Exception, program: str) -> str:
    r"""Returns the message of a command of tfdist about a mistake of its user.

    >>> error_of("tfdist.plan", ValueError("give one function"), "tfdist plan")
    'tfdist plan: error: give one function\n(see --help for the flags)'
    """
    told = f"{module}: error: {error}\n(see --help for the flags)"
    return as_typed(told, program)


def as_typed(text: str, program: str) -> str:
    """Returns a text in which commands are written the way this one was started.

    Args:
        text: A text of ours, in which commands are named by their modules.
        program: The command's own `sys.argv[0]`.

    >>> as_typed("python -m launch.ssh --hosts=a ends as launch.local", "tfdist ssh")
    'tfdist ssh --hosts=a ends as tfdist local'
    >>> as_typed("process 7 (python -m launch.ssh) of /bin/python -m launch.ssh", "tfdist ssh")
    'process 7 (python -m launch.ssh) of /bin/python -m launch.ssh'
    >>> as_typed("python -m launch.ssh", "/home/me/launch/ssh.py")
    'python -m launch.ssh'
    """
    if not program.startswith(f"{CONSOLE} "):
        return text
    return _MENTION.sub(
        lambda match: f"{CONSOLE} {_MODULES[match[1]]}" if match[1] else match[0], text
    )
