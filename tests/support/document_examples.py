"""Runs the examples of a page of the documentation, in the order of the page, in one folder.

A Python block whose first line is ``# train.py`` is that file; any other is run. A console block has commands, each
after ``$``, with what they print; a line ``...`` stands for any lines, and so does ``...`` in a line for any text.

``python -m tests.support.document_examples docs/start.md`` writes what is printed under the commands that show nothing.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import REPOSITORY, run

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")
COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ |```).*\n)*)", re.MULTILINE)
TRACEBACK = re.compile(r"^(Traceback.*\n)(?: .*\n)+", re.MULTILINE)


@dataclass
class Example:
    """A command, its output, and the output that the page shows."""

    command: str
    shown: str
    printed: str

    def is_as_shown(self) -> bool:
        pattern = re.escape(self.shown).replace(re.escape("...\n"), "(?:.*\n)*").replace(re.escape("..."), ".*")
        return re.fullmatch(pattern, self.printed) is not None


def run_examples(page: Path, folder: Path) -> list[Example]:
    """Returns the commands of a page; its Python blocks that are not files are commands, too."""
    examples = []
    for language, text in BLOCK.findall(page.read_text()):
        if language == "console":
            examples += [Example(command, shown, _printed(command, folder)) for command, shown in COMMAND.findall(text)]
        elif named := FILE.match(text):
            (folder / named[1]).write_text(text)
        else:
            (folder / "example.py").write_text(text)
            printed = _printed("python example.py && echo it ends well", folder)
            examples.append(Example(text, "...\nit ends well\n", printed))
    return examples


def fill_in(page: Path) -> None:
    """Writes what the commands print under those that show nothing."""
    with tempfile.TemporaryDirectory() as folder:
        printed = [example.printed for example in run_examples(page, Path(folder)) if not example.shown]

    def with_output(command: re.Match[str]) -> str:
        return command[0] if command[2] else command[0] + TRACEBACK.sub(r"\1...\n", printed.pop(0))

    def with_outputs(block: re.Match[str]) -> str:
        return COMMAND.sub(with_output, block[0]) if block[1] == "console" else block[0]

    page.write_text(BLOCK.sub(with_outputs, page.read_text()))


def _printed(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python_path = f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ended = run(["bash", "-c", f"{{ {command}; }} 2>&1"], cwd=folder, PATH=path, PYTHONPATH=python_path, NO_COLOR="1")
    return ended.stdout


if __name__ == "__main__":
    for name in sys.argv[1:]:
        fill_in(Path(name))
