"""Writes what the core's table says about the options of detection into docs/options.md, and into the docstring of
``torchnan.detect``.

Run it by ``python -m tests.support.write_options_table``.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import torchnan
from torchnan.config.detection_options import DetectionOptions

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "options.md"
SESSION = Path(torchnan.__file__).parent / "detection" / "session.py"  # also where torchnan is installed
HEAD = "| option | default | meaning |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)+")
_ARGUMENTS = re.compile(r"(?<=    Args:\n)        action: .*?\n(?=        model: )", re.DOTALL)


def table() -> str:
    """Returns the table of the page as it should be."""
    meanings = {name: option.meaning for name, option in DetectionOptions.options().items()} | {"model": _of_model()}
    rows = (
        f"| `{name}` | `{_literal(parameter.default)}` | {_markdown(meanings[name])} |\n"
        for name, parameter in inspect.signature(torchnan.detect).parameters.items()
    )
    return HEAD + "".join(rows)


def written() -> str:
    """Returns the table of the page as it is."""
    return _find(_TABLE, PAGE)


def arguments() -> str:
    """Returns the arguments in the docstring as they should be. That of ``model`` is written by hand."""
    wrap = textwrap.TextWrapper(120, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False)
    return "".join(f"{wrap.fill(f'{name}: {o.meaning}.')}\n" for name, o in DetectionOptions.options().items())


def written_arguments() -> str:
    """Returns the arguments in the docstring as they are."""
    return _find(_ARGUMENTS, SESSION)


def write() -> None:
    PAGE.write_text(PAGE.read_text().replace(written(), table()))
    SESSION.write_text(SESSION.read_text().replace(written_arguments(), arguments()))


def _find(pattern: re.Pattern[str], file: Path) -> str:
    found = pattern.search(file.read_text())
    assert found is not None
    return found[0]


def _literal(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _of_model() -> str:
    """Returns the meaning of ``model``, which the core does not know, from the docstring."""
    found = re.search(r"\n        model: (.*?)\.\n\n", SESSION.read_text(), re.DOTALL)
    assert found is not None
    return re.sub(r"\s+", " ", found[1])


def _markdown(text: str) -> str:
    text = re.sub(r":meth:`(\w+)`", r"`\1()`", text)
    return re.sub(r":class:`(?:torchnan\.)?(\w+)`", r"`\1`", text).replace("``", "`")


if __name__ == "__main__":
    write()
