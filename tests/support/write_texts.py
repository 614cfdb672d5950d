"""Writes tests/texts.txt, the list of texts that users see: messages, report rows, hints, help of commands.

Scripts and people search for these texts, so a change is made on purpose. Run it by ``python -m
tests.support.write_texts``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LIST = REPOSITORY / "tests" / "texts.txt"
HEAD = "# The texts that users see; {} is a value. Rewrite: python -m tests.support.write_texts\n"

_WORDS = re.compile(r"[A-Za-z]{2,}[,;:.]? (\S* )?[a-z({'/]")  # text for people, not a name, a key or a pattern
_CPP_TOKEN = re.compile(
    r'''//[^\n]*|/\*.*?\*/|\#include[^\n]*|'(?:\\.|[^'\\])'  # nothing that is shown
    |R"\((.*?)\)"|"((?:\\.|[^"\\\n])*)"''',
    re.DOTALL | re.VERBOSE,
)


def texts() -> dict[str, str]:
    """Returns the file and line of each text."""
    found: dict[str, str] = {}
    for path in sorted([*REPOSITORY.glob("torchnan*.py"), *REPOSITORY.glob("torchnan/**/*.py")]):
        _add(found, path, _python_literals(ast.parse(path.read_text())))
    for path in sorted(REPOSITORY.glob("csrc/**/*")):
        if path.suffix in {".cpp", ".h", ".cu"} and path.name != "testing.cpp":  # a module for tests
            _add(found, path, _cpp_literals(path.read_text()))
    return found


def listed() -> set[str]:
    """Returns the texts of the list."""
    return {line for line in LIST.read_text().splitlines() if not line.startswith("# ")}


def write() -> None:
    LIST.write_text(HEAD + "".join(f"{text}\n" for text in sorted(texts())))


def _add(found: dict[str, str], path: Path, literals: Iterator[tuple[int, str]]) -> None:
    for line, literal in literals:
        text = literal.strip().replace("\n", "\\n")
        if _WORDS.search(text) and not text.startswith("<"):  # elements of pages
            found.setdefault(text, f"{path.relative_to(REPOSITORY)}:{line}")


def _python_literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each literal that may be shown, and not in an annotation."""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        yield node.lineno, "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    if _is_not_shown(node):
        return
    for name, child in ast.iter_fields(node):
        if name in {"annotation", "returns"} or (isinstance(node, ast.JoinedStr) and name == "values"):
            child = [part for part in node.values if isinstance(part, ast.FormattedValue)] if name == "values" else []
        for part in child if isinstance(child, list) else [child]:
            if isinstance(part, ast.AST):
                yield from _python_literals(part)


def _is_not_shown(node: ast.AST) -> bool:
    """Returns whether a node is a docstring or the pattern of a regular expression."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")


def _cpp_literals(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each literal; adjacent literals are one."""
    start, text, end = 0, "", -1
    for token in _CPP_TOKEN.finditer(source):
        raw, quoted = token.groups()
        is_adjacent = end >= 0 and not source[end : token.start()].strip()
        if raw is None and quoted is None:
            end = token.end() if is_adjacent and token[0].startswith("/") else end
            continue
        if not is_adjacent:
            yield source.count("\n", 0, start) + 1, text
            start, text = token.start(), ""
        text += raw if quoted is None else re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), quoted)
        end = token.end()
    yield source.count("\n", 0, start) + 1, text


if __name__ == "__main__":
    write()
