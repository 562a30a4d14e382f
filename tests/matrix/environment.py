"""Makes an environment with the versions of a run."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from .plan import PYTHONS, Versions

PACKAGES = ("tensorflow", "keras", "numpy", "protobuf", "grpcio")
_FOUND = f"""
import importlib.metadata, json, platform
found = {{name: importlib.metadata.version(name) for name in {PACKAGES}}}
print(json.dumps({{"python": platform.python_version(), **found}}))
"""


def pythons() -> dict[str, Path]:
    """Returns the Pythons of this machine that run, by minor version."""
    found = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in PYTHONS:
        on_path = shutil.which(f"python{version}")
        candidates = [Path(on_path)] if on_path else []
        candidates += sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
        running = [real for path in candidates if (real := _executable(path))]
        if running:
            found[version] = running[0]
    return found


def _executable(python: Path) -> Path | None:
    """Returns the interpreter that a command runs, or None if it fails.

    A shim of pyenv is on PATH also when its version is not active; it fails.
    """
    command = [python, "-c", "import sys, venv; print(sys.executable)"]
    done = subprocess.run(command, capture_output=True, text=True)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def make(
    directory: Path, uv: Path, python: Path, versions: Versions, source: Path
) -> Path:
    """Makes an environment with tfdist and what its tests need.

    Args:
        directory: Where to; what is there goes.
        uv: The installer.
        python: The Python of the environment.
        versions: What to install.
        source: A checkout of tfdist. It is installed in place.

    Returns:
        The environment's Python.

    Raises:
        subprocess.CalledProcessError: If a version does not install.
    """
    subprocess.run([uv, "venv", "-q", "--clear", "-p", python, directory], check=True)
    inside = directory / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", inside]
    wanted = [f"tensorflow=={versions.tensorflow}.*", "--editable", f"{source}[all]"]
    wanted += ["--group", f"{source}/pyproject.toml:test"]
    subprocess.run([*install, *wanted], check=True)
    if versions.keras:
        # After the rest and alone, so that it may be older than setup.cfg allows: that
        # is how a lower bound is found.
        keras = [*install, "--no-deps", f"keras=={versions.keras}"]
        subprocess.run(keras, check=True)
    return inside


def installed(python: Path) -> dict[str, str]:
    """Returns the versions that an environment has, by package, and its Python's."""
    command = [python, "-c", _FOUND]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)
