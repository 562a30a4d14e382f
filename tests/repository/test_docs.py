"""Documentation: links, paths, names and code blocks are right.

A code block runs here unless the line above it is one of these comments:

    <!-- not run: the reason -->
    <!-- run by: tests/test_x.py -->
"""

import ast
import configparser
import importlib
import inspect
import re
import shlex

import documents
import pytest
from documents import PAGES, ROOT

import tf_config.__main__
from launch import slurm
from launch.flags.command_line import UsageError
from launch.flags.config_file import settings_in
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


def unmarked(language):
    return [
        pytest.param(block, id=str(block))
        for block in documents.blocks(language)
        if not block.mark.startswith(("not run:", "run by:"))
    ]


def test_the_readme_fits_on_a_few_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) < 140


def test_the_script_in_the_readme_is_the_quickstart():
    script = next(b.code for b in documents.blocks("python") if b.page == PAGES[0])
    assert script in (ROOT / "examples" / "quickstart.py").read_text()


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


def test_every_page_is_in_the_index_and_the_site():
    docs = ROOT / "docs"
    linked = {link.split("#")[0] for link in documents.links(docs / "index.md")}
    site = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        if page.parent in (docs, docs / "reference"):
            name = page.relative_to(docs).as_posix()
            assert name in linked | {"index.md"}
            assert f": {name}\n" in site


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_public_name(package):
    page = (ROOT / "docs" / "reference" / f"{package}.md").read_text()
    listed = set(re.findall(rf"^::: {package}\.(?:\w+\.)*(\w+)$", page, re.M))
    assert set(importlib.import_module(package).__all__) <= listed


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
        for name in pattern.findall(documents.prose(page))
    }
    assert [each for each in found if not defined(each[1])] == []


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
    if kind == "run by":
        assert block.page.name in (ROOT / what).read_text(), what
    elif kind == "not run":
        assert what, block
    else:
        assert "run" not in kind.split(), f"not a mark: {block.mark}"


@pytest.mark.parametrize("block", unmarked("sh"))
def test_commands_run(block, monkeypatch):
    """Each command runs, as a dry run if it would start a cluster."""
    monkeypatch.chdir(ROOT)
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


@pytest.mark.cluster
@pytest.mark.parametrize("block", unmarked("python"))
def test_programs_run(block, strategy, monkeypatch, tmp_path):
    """Each block runs on the tests' cluster, with the objects that its page assumes."""
    import tfdist

    signature = inspect.signature(tfdist.ParameterServerStrategy)

    def existing_strategy(*args, **kwargs):
        """One process has one strategy: the arguments are only checked."""
        given = signature.bind(*args, **kwargs).arguments
        if "placement" in given:
            tfdist.placement.placement.check_placement(given["placement"])
        return strategy

    monkeypatch.setattr(tfdist, "ParameterServerStrategy", existing_strategy)
    monkeypatch.chdir(tmp_path)
    exec(compile(block.code, str(block), "exec"), assumed(strategy))


def assumed(strategy):
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    def build_model():
        inputs = keras.Input((4,))
        model = keras.Model(inputs, keras.layers.Dense(8)(inputs))
        model.compile("sgd", "mse")
        return model

    x, y = np.ones((16, 4), "float32"), np.ones((16, 8), "float32")
    return {
        "build_model": build_model,
        "keras": keras,
        "np": np,
        "plan": tfdist.plan(build_model, num_ps=2),
        "strategy": strategy,
        "tf": tf,
        "tfdist": tfdist,
        "x": x,
        "y": y,
    }


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
    assert sorted(rows) == sorted(made)
