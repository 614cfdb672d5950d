"""Tables in the documents that commands write, between ``<!-- COMMAND -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from pathlib import Path


def write(page: Path, command: str, table: str) -> None:
    """Writes a table in the place that a page has for it."""
    place = re.compile(rf"(?<=<!-- {command} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    page.write_text(place.sub(lambda _: table, page.read_text()))
