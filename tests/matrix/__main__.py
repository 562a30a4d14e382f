"""Runs the feature tests on each version of TensorFlow, Keras and Python.

    python -m tests.matrix                      # all, one after the other
    python -m tests.matrix --tensorflow=2.18    # one version
    python -m tests.matrix --table              # only write docs/versions.md

Each run gets an environment of its own under build/matrix, with the newest versions
that its TensorFlow resolves to, and tests the last commit: what is being edited in the
meantime does not change the outcome. The results go to tests/matrix/results.json and
from there to docs/versions.md. The exit status is 1 if a test failed or a run was not
possible.
"""

import argparse
import datetime
import shutil
import subprocess
import sys
from pathlib import Path

from . import environment, plan, results, run, table

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "matrix"


def main(argv: list[str]) -> int:
    """Makes the runs that are asked for, and returns the exit status."""
    options = _options(argv)
    failed = False
    if not options.table:
        at_hand = environment.pythons()
        commit = _git("rev-parse", "--short=10", options.commit)
        source = checkout(commit)
        for versions in plan.chosen(
            options.tensorflow,
            options.python,
            options.keras,
            list(at_hand),
            ROOT / "setup.cfg",
        ):
            failed |= not one(options, versions, at_hand, source, commit)
    table.PATH.write_text(table.page(results.load()))
    return int(failed)


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix")
    parser.add_argument("--tensorflow", default="", help="a minor version: 2.18")
    parser.add_argument("--python", default="", help="a minor version: 3.12")
    parser.add_argument("--keras", default="", help="an exact version: 3.12.0")
    parser.add_argument("--tests", choices=run.TESTS, default="all")
    parser.add_argument("--commit", default="HEAD", help="what to test")
    parser.add_argument("--uv", default=shutil.which("uv"), help="path of uv")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--table", action="store_true", help="only write the page")
    options = parser.parse_args(argv)
    if options.uv is None and not options.table:
        parser.error("uv is not on PATH: pip install uv, or `make matrix`")
    return options


def one(
    options: argparse.Namespace,
    versions: plan.Versions,
    at_hand: dict[str, Path],
    source: Path,
    commit: str,
) -> bool:
    """Makes and records a run, and returns whether it ran and every test passed."""
    directory = BUILD / str(versions)
    directory.mkdir(parents=True, exist_ok=True)
    venv = directory / "venv"
    try:
        python = environment.make(
            venv, Path(options.uv), at_hand[versions.python], versions, source
        )
        found = environment.installed(python)
        outcome = run.run(python, source, options.tests, directory)
    except (KeyError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"{versions}: not recorded: {error!r}", flush=True)
        return False
    finally:
        if not options.keep:
            shutil.rmtree(venv, ignore_errors=True)
    date = datetime.date.today().isoformat()
    made = results.entry(versions, found, options.tests, commit, date, outcome)
    results.record(made)
    counts = ", ".join(f"{outcome[k]} {k}" for k in ("passed", "failed", "skipped"))
    print(f"{versions}: {counts} in {outcome['seconds']} s", flush=True)
    for name in outcome["failures"]:
        print(f"  {name}", flush=True)
    return outcome["failed"] == 0


def checkout(commit: str) -> Path:
    """Returns a directory with the files of a commit."""
    source, archive = BUILD / "source", BUILD / "source.tar"
    shutil.rmtree(source, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    _git("archive", f"--output={archive}", commit)
    shutil.unpack_archive(archive, source)
    archive.unlink()
    return source


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
