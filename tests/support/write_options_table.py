"""Writes the table in docs/options.md from the signature and the docstring of ``torchnan.detect``.

Run it by ``python -m tests.support.write_options_table``.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import torchnan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
HEAD = "| option | default | meaning |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)+")


def table() -> str:
    """Returns the table as it should be."""
    meanings = _meanings()
    rows = (
        f"| `{name}` | `{_literal(parameter.default)}` | {meanings[name]} |\n"
        for name, parameter in inspect.signature(torchnan.detect).parameters.items()
    )
    return HEAD + "".join(rows)


def written() -> str:
    """Returns the table as it is."""
    found = _TABLE.search(PAGE.read_text())
    assert found is not None
    return found[0]


def write() -> None:
    PAGE.write_text(PAGE.read_text().replace(written(), table()))


def _literal(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _meanings() -> dict[str, str]:
    """Returns the description of each argument in the docstring, as Markdown."""
    section = re.search(r"^Args:\n(.*?)\n\n", inspect.getdoc(torchnan.detect) or "", re.MULTILINE | re.DOTALL)
    assert section is not None
    lines = re.sub(r"\n {8}", " ", section[1]).split("\n")
    return {name: _markdown(text) for name, text in (line.strip().split(": ", 1) for line in lines)}


def _markdown(text: str) -> str:
    text = re.sub(r":meth:`(\w+)`", r"`\1()`", text)
    return re.sub(r":class:`(?:torchnan\.)?(\w+)`", r"`\1`", text).replace("``", "`").removesuffix(".")


if __name__ == "__main__":
    write()
