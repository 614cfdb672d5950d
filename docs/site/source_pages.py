"""Adds the sources that the documents link to as pages of the site, which must work without a repository and a
network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

REPOSITORY = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()\.\./([^)#\s]+)(?=[)#])")  # a link from a document to a file outside of docs/


def collect(app: Sphinx, document: str, source: list[str]) -> None:
    """Turns links to files and folders outside of docs/ into links to their pages. A link to nothing fails."""

    def to_page(link: re.Match[str]) -> str:
        name = link[1].rstrip("/")
        return f"source:{name}" if (REPOSITORY / name).exists() else link[0]

    source[0] = LINK.sub(to_page, source[0])


def linked(app: Sphinx) -> set[str]:
    """Returns the link targets of the documents, by their path in the repository."""
    names = set()
    for document in app.env.found_docs:
        for reference in app.env.get_doctree(document).findall(nodes.reference):
            _, is_source, name = reference.get("refuri", "").partition("source/")
            if is_source:
                names.add(name.partition("#")[0].removesuffix(".html"))
    return names


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields a page for each of them, and for each file in a folder that is linked to."""
    names = linked(app)
    for folder in [name for name in names if (REPOSITORY / name).is_dir()]:
        names |= {f"{folder}/{path.name}" for path in _files(REPOSITORY / folder)}
    for name in sorted(names):
        path = REPOSITORY / name
        body = _listing(path) if path.is_dir() else _highlighted(path)
        yield f"source/{name}", {"title": name, "body": f"<h1><code>{escape(name)}</code></h1>{body}"}, "page.html"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _listing(folder: Path) -> str:
    items = (
        f'<li><a href="{folder.name}/{path.name}.html"><code>{path.name}</code></a></li>' for path in _files(folder)
    )
    return f"<ul>{''.join(items)}</ul>"


def _highlighted(path: Path) -> str:
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(path.read_text(), lexer, HtmlFormatter(linenos="inline", anchorlinenos=True, lineanchors="L"))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", collect)
    app.connect("html-collect-pages", pages)
    app.config.myst_url_schemes = {
        **dict.fromkeys(["http", "https", "mailto"]),
        "source": {"url": "source/{{path}}.html#{{fragment}}"},
    }
    return {"parallel_read_safe": True}
