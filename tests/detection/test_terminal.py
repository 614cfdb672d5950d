"""Findings on a terminal: colours if wanted, its width, and source lines only for findings of this process."""

from __future__ import annotations

import io
import re
import sys

import pytest
import torch

import torchnan
from torchnan.detection import terminal

ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "wanted"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (io.StringIO(), {"TERM": "xterm"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "0"}, False),
        (Terminal(), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (None, {}, False),
    ],
)
def test_colours_are_where_they_are_wanted(stream, variables, wanted, monkeypatch):
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert terminal.wants_color(stream) is wanted


def test_a_closed_stream_has_no_colours():
    stream = io.StringIO()
    stream.close()
    assert not terminal.wants_color(stream)


@pytest.fixture
def finding():
    with torchnan.detect(action="log") as session:
        x = torch.zeros(3)
        for _ in range(12):
            x = x + torch.log(x - 1).exp()  # the log is the one
        x.sum().item()
    return session.first


def plain(text):
    return ANSI.sub("", text)


def test_it_is_the_plain_report_in_colour_and_fits_the_width(finding):
    shown = terminal.layout(finding, columns=60, with_source=False)
    assert shown.startswith("\x1b[1;31mtorchnan: NaN")
    assert max(map(len, plain(shown).splitlines())) <= 60
    assert plain(shown).split() == str(finding).split()


def test_the_source_line_of_a_live_finding_is_shown_with_the_call_underlined(finding):
    lines = plain(terminal.layout(finding, columns=100, with_source=True)).splitlines()
    at = next(i for i, line in enumerate(lines) if " | x = x + torch.log(x - 1).exp()" in line)
    assert lines[at].split(" | ")[0].strip() == str(finding.line)
    if sys.version_info >= (3, 11):
        call = lines[at].index("torch.log(x - 1)")
        assert lines[at + 1] == " " * (lines[at].index("|")) + "|" + " " * (call - lines[at].index("|") - 1) + "^" * 16


def test_a_call_at_the_end_of_a_long_line_is_seen_on_a_narrow_terminal(finding):
    lines = plain(terminal.layout(finding, columns=40, with_source=True)).splitlines()
    at = next(i for i, line in enumerate(lines) if f"{finding.line} | " in line)
    assert max(len(line) for line in lines[at : at + 2]) <= 40
    if sys.version_info >= (3, 11):
        underlined = slice(lines[at + 1].index("^"), lines[at + 1].rindex("^") + 1)
        assert lines[at][underlined] == "torch.log(x - 1)"


def test_a_source_file_that_was_edited_meanwhile_is_not_shown(finding, monkeypatch):
    """Its lines are no longer the ones that run."""
    monkeypatch.setattr(terminal, "_START", 0.0)
    assert " | " not in plain(terminal.layout(finding, columns=100, with_source=True))


def test_files_that_a_log_names_are_not_opened(finding, monkeypatch):
    monkeypatch.setattr(terminal.linecache, "getline", lambda *_: pytest.fail("a file was read"))
    terminal.layout(torchnan.Finding.from_json(finding.to_json()), columns=80, with_source=False)
