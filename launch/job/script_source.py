"""Reads from the source of a program its imports, its names and its kind.

The source is parsed, not run.
"""

import ast
import importlib.util
import itertools
import re
import sys
from collections.abc import Collection, Container, Iterator
from pathlib import Path

from launch.job.plan import AUTO, COORDINATOR, EVERY_TASK, PlanError, Program
from tf_config.contract import ESTIMATOR_MODULE

DEFAULT_PS = 2

STRATEGIES_WITH_PS = frozenset({"ParameterServerStrategy"})
"""Strategies of tfdist that need parameter servers."""

STRATEGIES_OF_CHIEF = frozenset({"PipelineStrategy", "RingStrategy"})
"""Strategies without parameter servers whose script the chief alone runs."""

STRATEGIES_OF_WORKERS = frozenset(
    {"LocalUpdateStrategy", "MultiWorkerMirroredStrategy"}
)
"""Strategies whose script every worker runs."""

STRATEGY_OF_CLUSTER = "strategy"
"""The function of tfdist that makes a strategy for the cluster, with ps or without."""

# absl defines these in every script that uses it.
_OF_ANY_SCRIPT = {"help", "log_dir"}
# As an object that is linked with it names it.
_OF_TENSORFLOW = b"libtensorflow_framework.so"


def imports_any(program: Program, modules: Collection[str]) -> bool:
    """Returns True if a program, or a module next to it, imports one of `modules`."""
    wanted = tuple(f"{name}." for name in modules)
    return any(f"{name}.".startswith(wanted) for name in _imported(program))


def op_libraries(program: Program) -> list[str]:
    """Returns the installed libraries of TensorFlow operations that a program imports.

    Such a library has a distribution that requires TensorFlow, and shared objects that are
    linked with TensorFlow's. A library that imports another one requires it.
    """
    names = {name.split(".")[0] for name in _imported(program)}
    names -= {"tensorflow", *sys.stdlib_module_names}
    names |= {required for name in names for required in _requirements(name)}
    return sorted(name for name in names if _has_operations(name))


def _imported(program: Program) -> Iterator[str]:
    return (name for tree in trees(program) for name in _imports(tree, ()))


def _requirements(name: str) -> list[str]:
    """Returns the modules that the distribution of a module requires, by their names."""
    # Imported late: it imports much, and a file beside the script may have such a name.
    from importlib import metadata

    try:
        required = metadata.requires(name) or []
    except (metadata.PackageNotFoundError, ValueError):
        return []
    return [re.split(r"[^\w.-]", each)[0].replace("-", "_") for each in required]


def _has_operations(name: str) -> bool:
    of_tensorflow = [n for n in _requirements(name) if n.startswith("tensorflow")]
    if name == "tensorflow" or not of_tensorflow or not importlib.util.find_spec(name):
        return False
    from importlib import metadata

    found = [Path(str(file.locate())) for file in metadata.files(name) or []]
    objects = [path for path in found if path.suffix == ".so" and path.is_file()]
    return any(_OF_TENSORFLOW in path.read_bytes() for path in objects)


def kind_of_script(
    program: Program, asked: str = AUTO, num_ps: int | None = None
) -> str:
    """Returns the kind that was asked for, or else the kind that the script shows, or `auto`.

    Every task runs an Estimator program, even with parameter servers. It is recognized
    by an import of `tfdist.estimator` in the script, or in a module next to it that it
    imports. The chief alone runs a program that names `RingStrategy` or
    `PipelineStrategy` of tfdist and no other strategy. The script is parsed, not run.
    With `auto`, the cluster decides.

    Args:
        program: The program.
        asked: The kind that was asked for.
        num_ps: The number of ps; None if it is unknown.

    Raises:
        PlanError: If a coordinator was asked for, and every task has to run the script.
    """
    if asked == COORDINATOR:
        named = strategies_of(program)
        # Without ps, it makes a strategy of workers.
        of_workers = {STRATEGY_OF_CLUSTER} if num_ps == 0 else set()
        if named and named <= STRATEGIES_OF_WORKERS | of_workers:
            words = " and ".join(f"tfdist.{name}" for name in sorted(named))
            # Its workers would wait for servers, which never take part.
            raise PlanError(
                f"--program must be {EVERY_TASK} for {words} of {program.script} "
                f"without ps; received {COORDINATOR}: omit it"
            )
    if asked != AUTO:
        return asked
    if imports_any(program, [ESTIMATOR_MODULE]):
        return EVERY_TASK
    return COORDINATOR if _runs_on_chief(strategies_of(program)) else AUTO


def _runs_on_chief(named: frozenset[str]) -> bool:
    return bool(named) and named <= STRATEGIES_OF_CHIEF


def num_ps_of(program: Program, asked: str = AUTO) -> tuple[int, str]:
    """Returns how many ps a program needs, and in words what was chosen for it.

    Args:
        program: The program.
        asked: The kind of program that was asked for.

    Returns:
        The default number, and '', if the program does not tell which strategy it uses.
    """
    named = strategies_of(program)
    has_ps = named & {*STRATEGIES_WITH_PS, STRATEGY_OF_CLUSTER}
    if not named or (has_ps and named != has_ps):
        return DEFAULT_PS, ""
    if imports_any(program, [ESTIMATOR_MODULE]):
        return DEFAULT_PS, ""
    num_ps = DEFAULT_PS if has_ps else 0
    chosen = f"--num_ps={num_ps}"
    if asked == AUTO and _runs_on_chief(named):
        chosen += f" --program={COORDINATOR}"
    words = " or ".join(sorted(named))
    words = words.replace(
        STRATEGY_OF_CLUSTER, "tfdist.strategy(), which fits any cluster"
    )
    return num_ps, f"{program.script} uses {words}: {chosen}"


def strategies_of(program: Program) -> frozenset[str]:
    """Returns the strategies of tfdist that a program, or a module next to it, names."""
    known = STRATEGIES_WITH_PS | STRATEGIES_OF_CHIEF | STRATEGIES_OF_WORKERS
    known |= {STRATEGY_OF_CLUSTER}
    return frozenset(
        name for tree in trees(program) for name in _of_tfdist(tree) if name in known
    )


def _of_tfdist(tree: ast.Module) -> Iterator[str]:
    """Yields the names that a module imports from tfdist, or reads there."""
    packages = {"tfdist"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {
                alias.asname
                for alias in node.names
                if alias.asname and alias.name.split(".")[0] == "tfdist"
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "tfdist"
        ):
            yield from (alias.name for alias in node.names)
            packages |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            while isinstance(owner, ast.Attribute):
                owner = owner.value
            if isinstance(owner, ast.Name) and owner.id in packages:
                yield node.attr


def stray_flags(program: Program, known: Container[str]) -> str:
    """Returns a notice about flags of the launcher after the script, or ''.

    A script that ignores flags it does not know would train on the launcher's default
    cluster, and nobody would notice. A flag seems to be misplaced if the launcher has
    one of its name, and neither the script nor a module next to it mentions that name.
    """
    given = [*itertools.takewhile(lambda flag: flag != "--", program.flags)]
    names = {
        flag: name
        for flag in given
        if (name := _name(flag)) in known and name not in _OF_ANY_SCRIPT
    }
    sources = [ast.dump(tree) for tree in trees(program)] if names else []
    stray = [
        flag
        for flag in given
        if flag in names and not any(_mentions(text, names[flag]) for text in sources)
    ]
    if not sources or not stray:
        return ""
    return (
        f"WARNING: {' '.join(stray)} after {program.script} belongs to the script, which "
        "does not mention it. If it is meant for the launcher, put it before the script"
    )


def _name(flag: str) -> str:
    """The name of a flag such as --num-ps=2, or '' of another argument."""
    is_flag = flag.startswith("--")
    return flag[2:].partition("=")[0].replace("-", "_") if is_flag else ""


def _mentions(source: str, name: str) -> bool:
    return name in source or name.replace("_", "-") in source


def path_of(program: Program) -> Path | None:
    """Returns the file that Python runs, which need not exist; None if it finds none."""
    found = _find(program)
    return found and found[1]


def trees(program: Program) -> Iterator[ast.Module]:
    """Yields the syntax tree of a program, and of each module or package next to it."""
    return (tree for _, tree in sources(program))


def sources(program: Program) -> Iterator[tuple[str, ast.Module]]:
    """Yields the text of a program, and of each module next to it, with its syntax tree."""
    if (where := _find(program)) is None:
        return
    root, first = where
    # Beside an installed package is all else that is installed.
    is_installed = bool({"site-packages", "dist-packages"} & {*root.parts})
    own = program.script.split(".")[0] if program.is_module and is_installed else ""
    # Python imports the packages around a module before it runs it.
    inits = [each / "__init__.py" for each in first.parents if root in each.parents]
    found = [first, *(path for path in inits if path.is_file())]
    for path in found:
        try:
            text = path.read_bytes()
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            continue  # Python reports it when it runs the script.
        yield text.decode(errors="replace"), tree
        names = set(_imports(tree, path.parent.relative_to(root).parts))
        # `a.b` is either the module b of the package a, or a name in the module a. The
        # packages around it are imported too.
        parts = [name.split(".") for name in sorted(names)]
        parts = [each for each in parts if own in ("", each[0])]
        heads = [root.joinpath(*p[:n]) for p in parts for n in range(1, len(p) + 1)]
        for head in heads:
            paths = (head.with_name(f"{head.name}.py"), head / "__init__.py")
            found += [p for p in paths if p not in found and p.is_file()]


def _find(program: Program) -> tuple[Path, Path] | None:
    """Returns where imports begin, and the file that Python runs."""
    if not program.is_module:
        return Path(program.script).parent, Path(program.script)
    names = program.script.split(".")
    try:
        spec = importlib.util.find_spec(names[0])
    except ValueError:  # An empty name, or a module that hides where it is from.
        spec = None
    if spec is None:
        return None
    for place in spec.submodule_search_locations or [spec.origin or ""]:
        root = Path(place).parent
        path = root.joinpath(*names)
        for file in (path / "__main__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return root, file
    return None


def _imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    """Yields the dotted names of what is imported.

    Args:
        tree: The source.
        package: Its package; () for a script, which can import nothing relative to it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            if node.level and not parents:
                continue
            module = [*parents, *([node.module] if node.module else [])]
            yield from (".".join([*module, alias.name]) for alias in node.names)
