"""Brings what the pages link to outside `docs/` into the site, for MkDocs.

On GitHub a page links to `../examples/quickstart.py` or `../README.md`. The site has
the source files under `source/`, and the Markdown files of the root as pages under
`project/`; links are rewritten to match.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: Any) -> Files:
    """Adds the root's pages, and every source file that a page links to."""
    texts = {page: (ROOT / page).read_text() for page in ROOT_PAGES}
    texts |= {
        f"docs/{file.src_uri}": file.content_string
        for file in files.documentation_pages()
    }
    for page, text in texts.items():
        for link in (match[2] for match in _LINK.finditer(text)):
            source = _in_the_repository(page, link)
            uri = f"source/{source}"
            if _is_source(source) and files.get_file_from_path(uri) is None:
                content = (ROOT / source).read_bytes()
                files.append(File.generated(config, uri, content=content))
    for page in ROOT_PAGES:
        text = _rewritten(texts[page], page, f"project/{page}")
        files.append(File.generated(config, f"project/{page}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links of a page of `docs/` at the copies in the site."""
    uri = page.file.src_uri
    if uri.startswith("project/"):
        return markdown
    return _rewritten(markdown, f"docs/{uri}", uri)


def _rewritten(text: str, page: str, uri: str) -> str:
    def replace(match: re.Match[str]) -> str:
        target = _in_the_site(_in_the_repository(page, match[2]))
        if target is None:
            return match[0]
        link = posixpath.relpath(target, posixpath.dirname(uri))
        return f"{match[1]}{link}{match[3] or ''}{match[4]}"

    return _LINK.sub(replace, text)


def _in_the_repository(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _in_the_site(path: str) -> str | None:
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in ROOT_PAGES:
        return f"project/{path}"
    return f"source/{path}" if _is_source(path) else None


def _is_source(path: str) -> bool:
    if path.startswith("docs/") or path in ROOT_PAGES:
        return False
    return (ROOT / path).is_file()
