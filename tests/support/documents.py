"""The README, the other pages of the root and those of docs, parsed as Markdown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(
        ROOT / f"{name}.md"
        for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PROGRAM = "program: "
CONTINUES = "# Continues the program above"
_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced code block.

    Attributes:
        page: The file it is in.
        line: The line on which the block starts.
        language: What follows the opening fence.
        code: The lines between the fences.
        mark: The HTML comment on the line above the block, without its delimiters.
    """

    page: Path
    line: int
    language: str
    code: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Returns all blocks in these languages, or in any."""
    return [
        Block(
            page,
            text[: found.start("code")].count("\n"),
            found["language"],
            found["code"],
            found["mark"] or "",
        )
        for page in PAGES
        for text in [page.read_text()]
        for found in _FENCE.finditer(text)
        if not languages or found["language"] in languages
    ]


@dataclass(frozen=True)
class Program:
    """A complete program of a page, with the blocks that continue it.

    Attributes:
        blocks: The program as it is printed, and the blocks below that continue it.
    """

    blocks: tuple[Block, ...]

    @property
    def command(self) -> str:
        """Returns what runs it."""
        return self.blocks[0].mark.removeprefix(PROGRAM)

    def code(self, *, runnable: bool = False) -> str:
        """Returns the blocks one after the other, or only those that can run here."""
        return "\n".join(
            block.code
            for block in self.blocks
            if not (runnable and block.mark.startswith("not run:"))
        )


def programs(found: Sequence[Block]) -> list[Program]:
    """Returns the programs of these blocks, which are in the order of their pages."""
    begun: list[list[Block]] = []
    for block in found:
        if not block.code.startswith(CONTINUES):
            begun.append([block])
        else:
            assert begun[-1][0].page == block.page, block
            begun[-1].append(block)
    return [Program(tuple(each)) for each in begun]


def prose(page: Path) -> str:
    """Returns a page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Returns the targets of all links and images of a page, external ones too."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub derives them."""
    titles = re.findall(r"^#{1,6} (.+)$", prose(page), re.M)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", t).strip().lower().replace(" ", "-") for t in plain}
