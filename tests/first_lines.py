"""First lines of docstrings, which begin with a noun or a verb.

    python -m tests.first_lines   # names each that does not; then the exit status is 1

A clause, such as "What a worker sends", has no word that a stranger could look up.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tf_config", "launch", "tfdist")
CLAUSE = re.compile(
    r"(What|Which|Who|Whose|Whom|Where|When|Whether|Why|How|That|Those|Of|By|Not|Or|And"
    r"|(As|At|For|From|In|On|To|With) (what|which|whom)|Returns whether)\b"
)
INSTEAD = {
    "module": 'Begin with a noun, as in "Schedules of pipeline stages."',
    "class": 'Begin with a noun or a verb, as in "The phase of a step." or "Counts steps."',
    "function": 'Begin with a verb, as in "Returns ...", "Raises ..." or "Returns True if ..."',
    "property": 'Begin with a noun, as in "The number of workers.", or with "True if ..."',
    "constant": 'Begin with a noun, as in "The most bytes of a message."',
}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yields the line, the kind and the text of each docstring of a module."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for index, each in enumerate(body if isinstance(body, list) else ()):
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    kind = "constant" if index else kind_of(node)
                    yield each.lineno, kind, text.strip()


def kind_of(node: ast.AST) -> str:
    if isinstance(node, ast.Module | ast.ClassDef):
        return "module" if isinstance(node, ast.Module) else "class"
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", ())]
    return "property" if "property" in " ".join(decorators) else "function"


def problems(name: str, source: str) -> Iterator[str]:
    """Yields a line for each docstring of a file that begins with a clause."""
    for line, kind, text in docstrings(ast.parse(source)):
        if CLAUSE.match(text):
            first = text.partition("\n")[0]
            yield f'{name}:{line}: "{first}" begins with a clause. {INSTEAD[kind]}'


def found() -> list[str]:
    """Returns the problems of all files of the packages."""
    paths = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
    return [
        each
        for path in paths
        for each in problems(str(path.relative_to(ROOT)), path.read_text())
    ]


if __name__ == "__main__":
    print(*(lines := found()), sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
