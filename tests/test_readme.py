"""What the README and the docs print is what the repository has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def test_the_script_of_the_readme_is_the_quickstart():
    script = code_blocks(README, "python")[0]
    quickstart = (ROOT / "examples" / "quickstart.py").read_text()
    assert script in quickstart


def test_the_make_targets_exist():
    targets = set(re.findall(r"make (\w+)", "\n".join(code_blocks(README, "sh"))))
    makefile = (ROOT / "Makefile").read_text()
    assert targets == {"mnist", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page):
    """Every command of ours is understood, as a dry run where it can be."""
    for block in code_blocks(page.read_text(), "sh"):
        hosts = re.search(r'^HOSTS="(.*)"$', block, re.M)
        for line in block.splitlines():
            command = line.split("#")[0].strip()
            if not command.startswith("python -m launch"):
                continue
            if hosts:
                command = command.replace("$HOSTS", hosts[1])
            _, module_flag, module, *flags = command.split()
            done = subprocess.run(
                [sys.executable, module_flag, module, "--dry_run", *flags],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            missing_script = "train.py" in command and "does not exist" in done.stderr
            assert done.returncode == 0 or missing_script, (command, done.stderr)
