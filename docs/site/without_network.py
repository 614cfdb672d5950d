"""Fails the build if a page of the site needs a network in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

# Resources that a browser loads by itself; a link is loaded only when a reader follows it.
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["'](?:https?:)?//[^"']*|"""
                    r"""<link\b(?=[^>]*rel=["'](?:stylesheet|preload|icon|preconnect))[^>]*href=["'](?:https?:)?//[^"']*|"""
                    r"""@import\s[^;]*//[^;]*|url\(["']?(?:https?:)?//[^)]*""")  # fmt: skip


def check(app: Sphinx, failure: Exception | None) -> None:
    if failure is not None or app.builder.format != "html":
        return
    found = [
        f"{path.relative_to(app.outdir)}: {loaded[0]}"
        for pattern in ("**/*.html", "**/*.css")
        for path in sorted(Path(app.outdir).glob(pattern))
        if "source" not in path.relative_to(app.outdir).parts[:1]
        for loaded in LOADED.finditer(path.read_text())
    ]
    if found:
        raise ExtensionError("the site loads from a network:\n" + "\n".join(found))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True}
