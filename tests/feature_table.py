"""Generates the table of features from the feature tests.

    python tests/feature_table.py           # into docs/features.md and README.md
    python tests/feature_table.py --check   # exits with status 1 if they differ

The README has the counts, docs/features.md the rows. A row is a marker
`@pytest.mark.feature(name, works, why)` of a test in `tests/features`; the table's parts
are the modules, by their docstrings. The source is parsed and not imported, so that this
needs no TensorFlow.

A row says what holds under each strategy. Unless told, that is the same under all:

    @pytest.mark.feature(name, "no", why, synchronous="yes")  # where workers keep step
    @pytest.mark.feature(name, multi_worker=("no", why), ring="yes")
    @pytest.mark.feature(name, on_ps=why)  # approximately there, and yes elsewhere
    @pytest.mark.feature(name, "-", synchronous="yes")
    @pytest.mark.feature(name, rounds=("no", why))  # tfdist.Synchronous()

A parameter of a test is a row by `row(id, make, name, ...)` of `tests/features/models.py`,
with the same arguments after its name.

`-` is of no meaning under a strategy. So is a test, or a module, that is marked as
`parameter_server` under the others, or as `steps_write` in rounds.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FEATURES = ROOT / "tests" / "features"
PARTS = (
    "training",
    "callbacks",
    "data",
    "leases",
    "ordinary_files",
    "models",
    "steps",
    "layers",
    "tables",
    "optimizers",
    "metrics",
    "saving",
    "resuming",
    "placement",
    "partitioning",
    "wire_dtype",
    "embeddings",
    "growing",
    "no_lost_updates",
    "refusals",
)
WORKS = {"yes": "yes", "approximate": "approximately", "no": "no", "-": "–"}
STRATEGIES = {
    "parameter_server": "Parameter servers",
    "bounded": "Ps, bounded",
    "rounds": "Ps, in rounds",
    "multi_worker": "Multi-worker",
    "ring": "Ring",
}
ON_PS = ("parameter_server", "bounded", "rounds")
COLUMNS = {
    "Parameter servers": {
        "parameter_server": "asynchronous",
        "bounded": "bounded",
        "rounds": "in rounds",
    },
    "Synchronous workers": {"multi_worker": "multi-worker", "ring": "ring"},
}
"""The strategies of each column, and what a cell calls them where they differ."""
HEADINGS = {
    "everywhere": "Works everywhere:\n\n",
    "ps": "On parameter servers only:\n\n",
    "": f"| Feature | {' | '.join(COLUMNS)} |\n|{' --- |' * (1 + len(COLUMNS))}\n",
}
"""The lists and the table of a part, by where all of its features work."""
INTRODUCTION = """# Features

What works under `ParameterServerStrategy`, with two ps and two workers, and under
`MultiWorkerMirroredStrategy` and `RingStrategy`, with two workers. Parameter servers run
under three policies: asynchronous, bounded (`BoundedStaleness(2)`) and in rounds
(`Synchronous(replicas_to_aggregate=1)`).

Each row is a test under every strategy and policy to which it applies; its name is in the
test's mark `feature`. A cell names strategies only if they differ:

- **yes**: the test passes. Under the synchronous strategies, it compares logs and weights
  with those of Keras in a single process.
- **approximately**: it trains, with the difference that the cell names; see
  [parameter servers](parameter-servers.md) and [synchronous workers](multi-worker.md).
- **no**: an error gives the reason, in most cases before the first step.
- **–**: the feature has no meaning there.

`python tests/feature_table.py` generates this page.
"""
BEGIN, END = "<!-- features:begin -->", "<!-- features:end -->"


@dataclass(frozen=True)
class Cell:
    """Whether a feature works under a strategy, and if not quite, why."""

    works: str = "yes"
    why: str = ""

    def __str__(self) -> str:
        return f"{WORKS[self.works]}: {self.why}" if self.why else WORKS[self.works]

    @property
    def in_brackets(self) -> str:
        """The same for a list of several cells, with the reason in brackets."""
        return f"{WORKS[self.works]} ({self.why})" if self.why else WORKS[self.works]


@dataclass(frozen=True)
class Row:
    """A feature, whether it works under each strategy, and the test that says so."""

    feature: str
    test: str
    cells: Mapping[str, Cell]

    def __post_init__(self) -> None:
        for cell in self.cells.values():
            if cell.works not in WORKS:
                raise ValueError(f"{self.test}: works is one of {', '.join(WORKS)}")
            if (cell.works in ("yes", "-")) != (not cell.why):
                raise ValueError(f"{self.test}: what does not quite work says why")

    @property
    def markdown(self) -> str:
        if self.where:
            return f"- {self.feature}\n"
        cells = [self.feature, *(self._together(names) for names in COLUMNS.values())]
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"

    @property
    def where(self) -> str:
        """Where it works and has a meaning, if that says it all: a key of `HEADINGS`."""
        works = {name: cell.works for name, cell in self.cells.items()}
        if set(works.values()) == {"yes"}:
            return "everywhere"
        on_ps = {name: "yes" if name in ON_PS else "-" for name in works}
        return "ps" if works == on_ps else ""

    def _together(self, names: Mapping[str, str]) -> str:
        """Returns what holds under some strategies; once, if it is the same under all."""
        found: dict[Cell, list[str]] = {}
        for strategy, name in names.items():
            found.setdefault(self.cells[strategy], []).append(name)
        if len(found) == 1:
            return str(next(iter(found)))
        return "; ".join(
            f"{' and '.join(of)}: {cell.in_brackets}" for cell, of in found.items()
        )


@dataclass(frozen=True)
class Part:
    """A module of tests: a part of the table."""

    title: str
    module: str
    rows: tuple[Row, ...]

    def table(self, to_tests: str) -> str:
        tables = [f"[`{self.module}`]({to_tests}/{self.module})\n"]
        for where, heads in HEADINGS.items():
            rows = [row.markdown for row in self.rows if row.where == where]
            if rows:
                tables.append(heads + "".join(rows))
        return "\n".join(tables)


def read(path: Path) -> Part:
    """Reads the part of a module.

    Raises:
        ValueError: If a marker is not as it should be.
    """
    module = ast.parse(path.read_text())
    lists = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    of_all = _marks(lists["pytestmark"]) if "pytestmark" in lists else set()
    rows = [
        _row(f"{path.name}::{name}", marker, of_all | _marks(*node.decorator_list))
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        for name, marker in _marked(node, lists)
    ]
    title = (ast.get_docstring(module) or path.stem).splitlines()[0].rstrip(".")
    return Part(title, path.name, tuple(rows))


def _row(test: str, marker: ast.Call, marks: set[str]) -> Row:
    name, *of_all = (ast.literal_eval(argument) for argument in marker.args)
    told = {keyword.arg: ast.literal_eval(keyword.value) for keyword in marker.keywords}
    if why := told.pop("on_ps", ""):
        of_all, told = ["approximate", why], {"synchronous": "yes", **told}
    unknown = set(told) - {"synchronous", *STRATEGIES}
    if unknown:
        raise ValueError(f"{test}: no strategy {', '.join(map(str, unknown))}")
    others = told.pop("synchronous", of_all)
    statuses = dict.fromkeys(STRATEGIES, "-" if "parameter_server" in marks else others)
    statuses |= dict.fromkeys(ON_PS, of_all)
    if "steps_write" in marks:
        statuses["rounds"] = "-"
    statuses |= told
    return Row(name, test, {name: _cell(each) for name, each in statuses.items()})


def _cell(status: str | Sequence[str]) -> Cell:
    return Cell(status) if isinstance(status, str) else Cell(*status)


def _marks(*nodes: ast.AST) -> set[str]:
    """Returns the names of markers without arguments, in a list or alone."""
    every = [e for n in nodes for e in (n.elts if isinstance(n, ast.List) else [n])]
    return {each.attr for each in every if isinstance(each, ast.Attribute)}


def _marked(
    test: ast.FunctionDef, lists: dict[str, ast.expr]
) -> Iterator[tuple[str, ast.Call]]:
    for decorator in test.decorator_list:
        if _calls(decorator, "feature"):
            assert isinstance(decorator, ast.Call)
            yield test.name, decorator
            continue
        sources: list[ast.AST] = [decorator]
        for node in ast.walk(decorator):
            if isinstance(node, ast.Name) and node.id in lists:
                sources.append(lists[node.id])
        for param in (n for source in sources for n in ast.walk(source)):
            if _calls(param, "row"):
                assert isinstance(param, ast.Call)
                name = ast.literal_eval(param.args[0])
                of_all = param.args[2:] or [ast.Constant(f"`{name}`")]
                told = [
                    ast.keyword(each.arg, lists.get(_called(each.value), each.value))
                    for each in param.keywords
                    if each.arg != "marks"
                ]
                yield f"{test.name}[{name}]", ast.Call(param.func, of_all, told)
            if _calls(param, "param"):
                yield from (
                    (f"{test.name}[{_id(param)}]", node)
                    for node in ast.walk(param)
                    if isinstance(node, ast.Call) and _calls(node, "feature")
                )


def _called(node: ast.AST) -> str:
    return getattr(node, "id", getattr(node, "attr", ""))


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _called(node.func) == name


def _id(param: ast.AST) -> str:
    assert isinstance(param, ast.Call)
    named = [keyword.value for keyword in param.keywords if keyword.arg == "id"]
    return str(ast.literal_eval((named or param.args)[0]))


def parts() -> list[Part]:
    """All parts of the table.

    Raises:
        ValueError: If a feature is there twice, or a module has no place.
    """
    modules = {
        path.stem.removeprefix("test_"): path for path in FEATURES.glob("test_*")
    }
    found = {name: read(path) for name, path in modules.items()}
    unplaced = [n for n, part in found.items() if part.rows and n not in PARTS]
    names = Counter(row.feature for part in found.values() for row in part.rows)
    twice = [name for name, count in names.items() if count > 1]
    if unplaced or twice:
        raise ValueError(f"no place in PARTS: {unplaced}; there twice: {twice}")
    return [found[name] for name in PARTS]


def page() -> str:
    """The text of docs/features.md."""
    tables = (
        f"\n## {part.title}\n\n{part.table('../tests/features')}" for part in parts()
    )
    return INTRODUCTION + "".join(tables)


def readme(text: str) -> str:
    """The README's text with the counts between its marks, if it has any."""
    if BEGIN not in text:
        return text
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{counts(parts())}{END}{after}"


def counts(table: Sequence[Part]) -> str:
    """How many features work under each strategy, as a table in Markdown."""
    rows = [row for part in table for row in part.rows]
    lines = [["Strategy", "Works", "Approximate", "Rejected"], ["---"] * 4]
    for strategy, name in STRATEGIES.items():
        found = Counter(row.cells[strategy].works for row in rows)
        lines.append([name, *(str(found[w]) for w in ("yes", "approximate", "no"))])
    return (
        f"Each of the {len(rows)} features in [the feature table](docs/features.md) "
        "is a test, which runs\nunder every strategy to which the feature "
        "applies:\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    )


def main(argv: list[str]) -> int:
    """Writes or checks both files, and returns the exit status."""
    docs, front = ROOT / "docs" / "features.md", ROOT / "README.md"
    wanted = {docs: page(), front: readme(front.read_text())}
    differ = [
        p for p, text in wanted.items() if not p.exists() or p.read_text() != text
    ]
    if "--check" in argv:
        for path in differ:
            print(f"{path.relative_to(ROOT)} is not what {argv[0]} makes: run it")
        return 1 if differ else 0
    for path in differ:
        path.write_text(wanted[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
