"""Checkpoints cut short, a full file system, and the command that looks at them."""

import os
import subprocess
from pathlib import Path

import pytest

from launch.fault import checkpoint_faults
from tfdist.checkpoint.__main__ import main
from tfdist.checkpoint.store import CheckpointStore

from ..support.raising import raises


def write(directory: Path, number: int) -> None:
    with CheckpointStore(directory, keep=9) as store:
        for _ in range(number):
            with store.writing() as path:
                (path / "large").write_bytes(bytes(1000))
                (path / "small").write_bytes(bytes(10))


def test_the_newest_is_found_among_others_of_its_fit(tmp_path):
    assert checkpoint_faults.newest(str(tmp_path)) is None
    write(tmp_path / "fit-000", 3)
    newest = checkpoint_faults.newest(str(tmp_path))
    assert newest == tmp_path / "fit-000" / "checkpoint-00000002"
    write(tmp_path / "fit-001", 1)
    # Cut short, it would leave its fit with none.
    assert checkpoint_faults.newest(str(tmp_path)) is None


def test_a_checkpoint_that_was_cut_short_is_seen(tmp_path, capsys):
    write(tmp_path / "fit-000", 2)
    assert main(["", str(tmp_path)]) == 0
    newest = checkpoint_faults.newest(str(tmp_path))
    checkpoint_faults.cut_short(newest)
    assert main(["", str(tmp_path)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"{newest} can be read",
        f"{newest} cannot be read: large has 500 bytes; it had 1000 when it was "
        "written",
    ]


def test_each_fit_has_a_newest(tmp_path, capsys):
    write(tmp_path / "fit-000", 2)
    write(tmp_path / "fit-001", 1)
    assert main(["", str(tmp_path)]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert [os.path.relpath(name, tmp_path) for name in names] == [
        "fit-000/checkpoint-00000001",
        "fit-001/checkpoint-00000000",
    ]


@pytest.mark.parametrize("arguments", [[], ["--hepl"], ["missing"], ["a", "b"]])
def test_no_checkpoint_is_another_status(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["", *arguments]) == 2


def test_help_is_not_an_error(capsys):
    assert main(["", "--help"]) == 0
    assert "python -m tfdist.checkpoint DIRECTORY" in capsys.readouterr().out


@pytest.mark.namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="a file system is root's to make")
def test_a_small_file_system_is_filled_and_freed(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this root may not mount")
    try:
        checkpoint_faults.check_can_be_filled(str(tmp_path))
        free = checkpoint_faults.fill(str(tmp_path))
        with raises(OSError, "No space"):
            (tmp_path / "more").write_bytes(bytes(100_000))
        free()
        (tmp_path / "more").write_bytes(bytes(100_000))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
