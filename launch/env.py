"""Prints what a report of a defect needs, as Markdown to paste.

    python -m launch.env

Versions, the machine, packages, and the variables that TensorFlow, Keras and tfdist read.
Values that may be secret are left out; look at the rest before you publish it.
"""

import contextlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence

from launch.check import report_of_this_machine
from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.remote import keras_backend
from launch.remote.memory import measure
from tf_config import contract

_READ = re.compile(
    r"(TF|TFDIST|LAUNCH|KERAS|CUDA|NVIDIA|XLA|OMP|GRPC|SLURM|PYTHON)_?[A-Z0-9_]*|LD_\w+|"
    r"\w+_proxy|\w+_PROXY"
)
# A command line may have anything.
_SECRET = re.compile(
    f"KEY|TOKEN|SECRET|PASS|CRED|AUTH|{contract.COMMAND}", re.IGNORECASE
)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_PACKAGES = re.compile(
    r"(tensorflow|keras|tf[_-]keras|numpy|ml[_-]dtypes|h5py|protobuf|grpcio|absl-py|psutil|"
    r"rich|cryptography|cloudpickle|ray|kubernetes|nvidia|tensorboard).*"
)


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns its exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values = Flags()
    command_line.define_help(values)
    _, rest = command_line.parse_flags(argv, values, __doc__ or "")
    if rest:
        raise UsageError(f"env takes no arguments; received {' '.join(rest)!r}")
    report = report_of_this_machine(imports=False)
    backend, by = keras_backend.backend(os.environ)
    machine = {
        **report.versions,
        "Python": platform.python_version(),
        "Keras's backend": f"{backend} ({by})",
        "system": f"{platform.platform()}, {' '.join(platform.libc_ver())}",
        "CPUs": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}, {_processor()}",
        "memory": f"{measure().limit / 1e9:.1f} GB",
        "NVIDIA GPUs": str(report.gpus),
        "stunnel": report.secure["version"] or "none",
        "closes ports": report.secure["open"] or "yes",
        "problems": "; ".join(report.problems) or "none",
    }
    packages = {
        each.name: each.version
        for each in importlib.metadata.distributions()
        if _PACKAGES.fullmatch((each.name or "").lower())
    }
    print("\n".join(markdown(machine, packages, os.environ)))
    return 0


def markdown(
    machine: Mapping[str, str], packages: Mapping[str, str], environ: Mapping[str, str]
) -> Iterator[str]:
    """Yields the lines of the report."""
    yield from ("| | |", "| --- | --- |")
    yield from (f"| {name} | {_cell(value)} |" for name, value in machine.items())
    yield from ("", "Packages:", "", "```text")
    yield from (f"{name} {packages[name]}" for name in sorted(packages, key=str.lower))
    yield from ("```", "", "Environment:", "", "```text")
    yield from (f"{name}={value}" for name, value in shown(environ).items())
    yield "```"


def shown(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that matter, without what may be secret.

    >>> shown({"TF_CONFIG": "{}", "HOME": "/x", "TF_API_KEY": "1", "http_proxy": "http://a:b@c"})
    {'TF_API_KEY': '(left out)', 'TF_CONFIG': '{}', 'http_proxy': 'http://...@c'}
    """
    return {
        name: "(left out)"
        if _SECRET.search(name)
        else _LOGIN.sub("...@", environ[name])
        for name in sorted(environ)
        if _READ.fullmatch(name)
    }


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for each in lines:
            if "model name" in each:
                return each.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    command_line.run(main, "launch.env")
