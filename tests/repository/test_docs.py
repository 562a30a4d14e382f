"""Documentation: links, paths, names and code blocks are right.

A block of commands runs here unless the line above it is one of the first two of these
comments, and a block of Python has one of the three:

    <!-- not run: the reason -->
    <!-- run by: tests/test_x.py -->
    <!-- program: tfdist local --num_workers=2 -->

The last one is a complete program, which `tests/examples/test_page_programs.py` runs together
with the blocks below that begin with `# Continues the program above`.
"""

import ast
import configparser
import importlib
import operator
import pickle
import re
import shlex
import subprocess
import sys
import types
from fnmatch import fnmatchcase

import documents
import pytest
import tensorflow as tf
from documents import PAGES, ROOT

import tf_config.__main__
import tfdist
from launch import quickstart, slurm
from launch.flags.config_file import settings_in
from launch.flags.errors import UsageError
from tf_config import commands

PACKAGES = ("tfdist", "launch", "tf_config")
FOLDERS = (*PACKAGES, "tests", "examples", "benchmarks", "docs")
COMMANDS = {
    "launch.local",
    "launch.ssh",
    "launch.slurm",
    "launch.kubernetes",
    "launch.ray",
    "launch.task",
    "launch.chaos",
    "launch.doctor",
    "launch.speedup",
}


def test_the_readme_fits_on_a_few_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


def test_the_script_in_the_readme_is_the_quickstart():
    script = next(b.code for b in documents.blocks("python") if b.page == PAGES[0])
    assert script in (ROOT / "examples" / "quickstart.py").read_text()


LINKED = ["docs/index.md", "CHANGELOG.md"]
"""The files that a package index links to; they must exist."""


@pytest.mark.parametrize("address", ["", "https://example.com/tree/"])
def test_the_links_of_the_readme_work_on_a_package_index(address, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    release = importlib.import_module("site_readme")
    page = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)]*)\)", release.rewritten(page, address))
    assert [each for each in targets if not each.startswith("https://")] == []
    assert ("https://example.com/tree/docs/start.md" in targets) == bool(address)
    setup = configparser.ConfigParser()
    setup.read_string(release.with_urls((ROOT / "setup.cfg").read_text(), address))
    urls = setup["metadata"].get("project_urls", "").split()[2::3]
    assert urls == [f"{address}{page}" for page in LINKED if address]
    assert ("author" in setup["metadata"]) == bool(address)


def leads_somewhere(page, link):
    if link.startswith(("http:", "https:")):
        return True
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if anchor and target.suffix == ".md":
        return target.exists() and anchor in documents.anchors(target)
    return target.exists()


def test_links_lead_somewhere():
    found = [(page, link) for page in PAGES for link in documents.links(page)]
    assert [each for each in found if not leads_somewhere(*each)] == []


def linked(page):
    return {link.split("#")[0] for link in documents.links(ROOT / "docs" / page)}


def test_every_page_is_in_the_index_and_the_menu_or_a_benchmark():
    menu, _, rest = (ROOT / "mkdocs.yml").read_text().partition("\nvalidation:")
    outside = menu.partition("not_in_nav: |\n")[2].split()
    docs = ROOT / "docs"
    for page in PAGES:
        if page.parent not in (docs, docs / "reference"):
            continue
        name = page.relative_to(docs).as_posix()
        if any(fnmatchcase(name, each) for each in outside):
            assert name in linked("benchmarks.md")
        else:
            assert name in linked("index.md") | {"index.md"}
            assert f": {name}\n" in rest


TICS = re.compile(
    r"half of (?:the|their) b(?:it|yte)s|\bstrangers?\b|\bgiven? up\b|\bdearer\b|for ever\b"
    r"|now and then|nine tenths|under way|\brefuses\b|\b(?:is|are) (?:refused|waited for)\b"
    r"|\bat [0-9a-f]{7}\b|^#+ [^\n]*\n\n(?!tfdist)[a-z]",
    re.M,
)
"""Home-made words, commits, and sentences whose subject is their heading."""


def test_guides_use_standard_terms():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    guides = re.findall(r": ([\w-]+\.md)$", menu.partition("- Project:")[0], re.M)
    assert "start.md" in guides
    guides.remove("features.md")  # Its rows are the names of tests.
    pages = [ROOT / "README.md", *(ROOT / "docs" / name for name in guides)]
    found = [(page.name, TICS.findall(documents.prose(page))) for page in pages]
    assert [each for each in found if each[1]] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_the_public_names(package):
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(page.read_text() for page in pages)
    listed = set(re.findall(rf"^::: {package}\.(?:\w+\.)*(\w+)$", text, re.M))
    module = importlib.import_module(package)
    # And those are all: what a page has of the package itself is public.
    direct = set(re.findall(rf"^::: {package}\.(\w+)$", text, re.M))
    assert direct <= {*module.__all__} <= listed
    assert all(hasattr(module, name) for name in module.__all__)


def names_of(module, prefix=""):
    """Yields the public names of a module of TensorFlow, and of those within it."""
    for name in dir(module):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            yield from names_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_the_page_says_what_each_name_of_tf_distribute_is_in_tfdist():
    page = (ROOT / "docs" / "migrate.md").read_text()
    table = page.partition("| `tf.distribute` |")[2].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    listed = {name for row in rows for name in re.findall(r"`([\w.]+)`", " ".join(row))}
    known = {*names_of(tf.distribute)}
    assert known - listed == set()
    for names, whose, _ in rows:
        for name in known & {*re.findall(r"`([\w.]+)`", names)}:
            if name.startswith("experimental."):
                continue
            theirs = operator.attrgetter(name)(tf.distribute)
            is_theirs = operator.attrgetter(name)(tfdist) is theirs
            assert (whose, name) == ("TensorFlow's" if is_theirs else "its own", name)


def test_paths_exist():
    pattern = re.compile(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./*-]*)")
    found = {
        (page, path.rstrip("."))
        for page in PAGES
        for path in pattern.findall(page.read_text())
    }
    assert [each for each in found if not any(ROOT.glob(each[1]))] == []


def test_names_exist():
    """`tfdist.x.y` is a module, or a name that a module defines or exports."""
    pattern = re.compile(rf"`(?:python -m )?((?:{'|'.join(PACKAGES)})(?:\.\w+)+)")
    found = {
        (page, name)
        for page in PAGES
        for name in pattern.findall(documents.prose(page)) + imported(page)
    }
    assert [each for each in found if not defined(each[1])] == []


def imported(page):
    """What a page imports of the packages, in its text and in its blocks."""
    pattern = rf"\bfrom ((?:{'|'.join(PACKAGES)})(?:\.\w+)*) import ([\w, ]+)"
    return [
        f"{module}.{name.split()[0]}"
        for module, names in re.findall(pattern, page.read_text())
        for name in names.split(",")
    ]


def defined(name):
    path, rest = ROOT, name.split(".")
    while rest and (path / rest[0]).is_dir():
        path /= rest.pop(0)
    if not rest:
        return True
    stub = path / "__init__.pyi"
    file = stub if stub.exists() else path / "__init__.py"
    if (path / f"{rest[0]}.py").exists():
        file = path / f"{rest.pop(0)}.py"
        stub = file.with_suffix(".pyi")
        file = stub if stub.exists() else file
    return not rest or rest[0] in names(file)


def names(file):
    """All that a module defines at its top level, imports, or names in a list."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_blocks_have_a_language_and_true_marks():
    for block in documents.blocks():
        check_block(block)


def check_block(block):
    assert block.language in {"diff", "python", "sh", "text", "toml", "yaml", "mermaid"}
    if block.language == "toml":
        settings_in(block.code, str(block), "slurm", slurm._define_flags())
    kind, _, what = block.mark.partition(": ")
    if kind == "program":
        assert what.split()[0] in {"tfdist", "python", "without"}, block
    elif kind == "run by":
        assert block.page.name in (ROOT / what).read_text(), what
    elif kind == "not run":
        assert what, block
    else:
        assert "run" not in kind.split(), f"not a mark: {block.mark}"
        continues = block.code.startswith(documents.CONTINUES)
        assert block.language != "python" or continues, f"{block} needs a mark"


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=str(block))
        for block in documents.blocks("sh")
        if not block.mark.startswith(("not run:", "run by:"))
    ],
)
def test_commands_run(block, tmp_path, monkeypatch):
    """Each command runs, as a dry run if it would start a cluster."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    variables = {}
    for line in block.code.replace("\\\n", " ").splitlines():
        if assigned := re.fullmatch(r'(\w+)="(.*)"', line):
            variables[f"${assigned[1]}"] = assigned[2]
            continue
        for name, value in variables.items():
            line = line.replace(name, value)
        if words := shlex.split(line, comments=True):
            run(*words)


def run(*words):
    match words:
        case ("make", target):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
        case ("pip", "install", what):
            extras = re.findall(r"\w+", what)
            assert set(extras) <= set(configuration()["options.extras_require"])
        case ("tfdist", "quickstart"):
            assert quickstart.main(["tfdist quickstart"]) == 0
        case ("python", "-m", "tf_config", *flags):
            assert tf_config.__main__.main(flags) == 0
        case ("python", "-m", module, *flags) if module in COMMANDS:
            dry_run(module, flags)
        case ("tfdist", name, *flags) if commands.COMMANDS[name][0] in COMMANDS:
            dry_run(commands.COMMANDS[name][0], flags)
        case _:
            pytest.fail(
                f"no test runs {shlex.join(words)}: mark the block with "
                "<!-- not run: the reason -->"
            )


def dry_run(module, flags):
    main, wrong = importlib.import_module(module).main, ""
    try:
        assert main([module, "--dry_run", *flags]) == 0
    except UsageError as error:
        wrong = str(error)
    # `train.py` stands for the user's script, which is not here.
    assert not wrong or ("train.py" in flags and "'train.py' does not exist" in wrong)


def configuration():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_python_blocks_define_what_they_use(tmp_path):
    """Each can be pasted and run, alone or after the program that it continues."""
    for number, program in enumerate(documents.programs(documents.blocks("python"))):
        name = f"{number}_{program.blocks[0].page.stem}_{program.blocks[0].line}.py"
        (tmp_path / name).write_text(program.code())
    ruff = (sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821,E9")
    done = subprocess.run([*ruff, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_page_lists_what_flows_around_keras():
    """Each module with a context variable has a row, and no other module has one."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## What flows around Keras\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(tfdist/\S+)` \|", table, re.M)
    made = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tfdist").rglob("*.py")
        if re.search(r"ContextVar\(", path.read_text())
    }
    assert set(listed) == made
    assert len(listed) == len(made)


def test_the_page_of_errors_has_each():
    """Every error of the core is public in `tfdist.errors`, and has a row on its page."""
    made = {
        name
        for path in (ROOT / "tfdist").rglob("*.py")
        if not {"research", "estimator"} & {*path.parts}
        for name in re.findall(
            r"^class ([A-Z]\w+)\((?:Error|RefusalError)\b", path.read_text(), re.M
        )
    }
    stub = ast.parse((ROOT / "tfdist" / "errors.pyi").read_text())
    listed = {
        alias.name
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    page = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.M)
    made.remove("RefusalError")
    assert listed == made | {"Error"}
    for name in listed:
        error = getattr(tfdist.errors, name)
        # As a traceback shows it.
        assert (error.__module__, error.__name__) == ("tfdist.errors", name)
        assert pickle.loads(pickle.dumps(error)) is error
    assert sorted(rows) == sorted(made)
