"""Makes the README and setup.cfg of a DIRECTORY ready for a package index: DIRECTORY [ADDRESS].

With the address of the repository's files, such as `https://github.com/me/tfdist/blob/v1`,
a link to a file becomes absolute, and setup.cfg gets `project_urls` and an author. Without
one, a link becomes its text, a picture its description, and setup.cfg remains as it is.
"""

import re
import sys
from pathlib import Path

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)\s]+)\)")


def rewritten(text: str, address: str = "") -> str:
    """Returns the text of a README without relative links."""

    def absolute(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        if not address:
            return f"*{words}*" if picture else words
        query = "?raw=true" if picture else ""
        return f"{picture}[{words}]({address.rstrip('/')}/{path}{query})"

    return _LINK.sub(absolute, text)


def with_urls(text: str, address: str = "") -> str:
    """Returns the text of a setup.cfg with an author and URLs, if there is an address."""
    if not address:
        return text
    base = address.rstrip("/")
    urls = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    lines = [f"    {name} = {base}/{page}\n" for name, page in urls.items()]
    about = f"author = The tfdist authors\nproject_urls =\n{''.join(lines)}"
    return text.replace("[metadata]\n", f"[metadata]\n{about}", 1)


if __name__ == "__main__":
    folder, *address = sys.argv[1:]
    for name, change in {"README.md": rewritten, "setup.cfg": with_urls}.items():
        file = Path(folder, name)
        file.write_text(change(file.read_text(), *address))
