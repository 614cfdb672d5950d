"""Reading logs: on another machine, after a kill, after damage."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
import torch

import torchnan
from tests.support.forked_python import run_forked, run_forked_command
from tests.support.processes import run
from torchnan import findings

MODULE = [sys.executable, "-m", "torchnan"]


@pytest.fixture
def path(tmp_path):
    """A log of an error, a warning and the error again."""
    log = tmp_path / "findings.jsonl"
    for unused in (False, True, False):
        with torchnan.detect(action="log", log=log) as watch:
            watch.mark_step(7)
            if unused:
                torch.log(torch.tensor(-1.0))
            else:
                (torch.zeros(1) / torch.zeros(1)).item()
    return log


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


# -- one line


def test_a_finding_is_the_same_again(path):
    with torchnan.detect(action="log") as watch:
        (torch.full((2, 3), 9e4).half() - torch.full((2, 3), 9e4).half()).sum().item()
    for finding in [*findings.read(path).findings, *watch.findings]:
        for line in (finding.to_json(), finding.to_json().encode()):
            again = torchnan.Finding.from_json(line)
            assert again == finding
            assert (str(again), again.to_json()) == (str(finding), finding.to_json())


def changed(path, **fields):
    return json.dumps({**json.loads(lines_of(path)[0]), **fields})


def test_invalid_fields_are_named(path):
    for fields, message in [
        ({"schema": 2}, "schema is 2, and this torchnan reads 1: update torchnan"),
        ({"level": "fatal"}, 'level must be one of error, warning, note but is "fatal"'),
        ({"nan": True}, "nan must be a whole number from 0 to 9223372036854775807 but is true"),
        ({"device": ["os.system"]}, 'device must be a string but is ["os.system"]'),
        ({"harm": None}, "harm must be an object but is null"),
        ({"added": 1}, "added is not known"),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            torchnan.Finding.from_json(changed(path, **fields))
    for line in ("", "[", "null", "NaN", "\ud800", b"\xff", changed(path)[:-1]):
        with pytest.raises(ValueError, match=r"^(it is not JSON: |a finding must be an object)"):
            torchnan.Finding.from_json(line)


def test_a_number_that_json_has_not_is_a_word(path):
    inputs = json.loads(changed(path))["inputs"]
    finding = torchnan.Finding.from_json(changed(path, inputs=[{**inputs[0], "min": "-inf", "max": "nan"}]))
    assert (finding.inputs[0].min, str(finding.inputs[0].max)) == (float("-inf"), "nan")
    with pytest.raises(ValueError, match="it is not JSON"):
        torchnan.Finding.from_json(changed(path, inputs=[{**inputs[0], "min": float("inf")}]))


# -- a file


def test_a_log_is_read_in_its_order(path):
    log = findings.read(path)
    assert [(f.level, f.op, f.step) for f in log.findings] == [
        ("error", "aten::div", 7),
        ("warning", "aten::log", 7),
        ("error", "aten::div", 7),
    ]
    assert [f.op for f in log.findings[1:]] == ["aten::log", "aten::div"]
    assert (log.damaged, log.damaged_lines, log.ignored_bytes, log.truncated) == ((), 0, 0, False)


def test_a_last_line_that_is_not_whole_is_ignored_and_counted(path):
    os.truncate(path, path.stat().st_size - 10)
    log = findings.read(path)
    assert len(log.findings) == 2
    assert (log.ignored_bytes, log.truncated) == (len(lines_of(path)[-1]), True)
    assert (log.damaged, log.damaged_lines) == ((), 0)


def test_only_the_line_break_may_be_missing(path):
    os.truncate(path, path.stat().st_size - 1)
    log = findings.read(path)
    assert (len(log.findings), log.ignored_bytes, log.truncated) == (3, 0, False)


def test_damaged_lines_are_skipped_counted_and_reported(path):
    whole = lines_of(path)
    wrong = whole[1].replace(b'"kind":"nan"', b'"kind":"inv"')
    path.write_bytes(b"".join([whole[0], b'{"schema":}\n', b"\n", wrong, bytes(9), b"\n", whole[2]]))
    log = findings.read(path)
    assert [f.op for f in log.findings] == ["aten::div", "aten::div"]
    assert [(damage.line, damage.reason.split(":")[0]) for damage in log.damaged] == [
        (2, "it is not JSON"),
        (3, "it is not a finding"),
        (4, 'kind must be one of nan, inf but is "inv"'),
        (5, "it is not a finding"),
    ]
    assert (log.damaged_lines, log.ignored_bytes) == (4, 12 + 1 + len(whole[1]) + 10)


def test_reports_of_damage_are_bounded(path):
    path.write_bytes(b"x\n" * 1000 + path.read_bytes())
    log = findings.read(path)
    assert (len(log.findings), len(log.damaged), log.damaged_lines) == (3, 100, 1000)


def test_a_line_longer_than_any_finding_is_skipped(path):
    whole = path.read_bytes()
    path.write_bytes(b'{"schema":' + b"x" * (3 * 2**20) + b"\n" + whole)
    log = findings.read(path)
    assert (len(log.findings), log.ignored_bytes) == (3, 10 + 3 * 2**20 + 1)
    assert log.damaged[0].reason == "it has 3145739 bytes, and a finding is shorter"


def test_a_finding_after_a_line_that_was_cut_is_not_lost(path):
    """Another process continues in the file of one that was killed in the middle of a line."""
    whole = lines_of(path)
    path.write_bytes(whole[0] + whole[1][:50] + whole[2])
    log = findings.read(path)
    assert [f.op for f in log.findings] == ["aten::div", "aten::div"]
    assert (log.damaged_lines, log.ignored_bytes, log.truncated) == (1, 50, False)
    assert log.damaged[0] == findings.UnreadableLine(2, "before its finding there are 50 bytes of another")


def test_an_empty_log_has_none(tmp_path):
    (tmp_path / "log").touch()
    log = findings.read(tmp_path / "log")
    assert (list(log.findings), log.ignored_bytes, log.truncated) == ([], 0, False)


def test_a_path_that_is_not_a_file_is_rejected_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # has no writer
    for name in ("pipe", "/dev/null", "/dev/zero"):
        with pytest.raises(OSError, match="cannot be read: it is not a regular file"):
            findings.read(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        findings.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        findings.read(tmp_path / "none")


OPENED = """
import sys, torchnan.findings
from torchnan import cli
cli.main(["show", sys.argv[1]])  # what a first time imports
opened = []
sys.addaudithook(lambda event, arguments: opened.append(arguments[0]) if event == "open" else None)
cli.main(["show", sys.argv[1]])
print(set(opened))
"""


def test_no_path_that_a_log_names_is_opened(path):
    line = json.loads(lines_of(path)[0])
    line["stack"] = [{"file": __file__, "line": 1, "function": "f", "installed": False}]
    line["harm"]["file"] = line["inputs"][0]["constant"] = "/etc/passwd"
    path.write_text(json.dumps(line) + "\n")
    ended = run_forked(OPENED, str(path))
    assert ended.stdout.splitlines()[-1] == str({str(path)}), ended.stdout + ended.stderr


# -- the command


def test_show_prints_the_most_serious_first_and_folds_repeats(path):
    path.write_bytes(b"".join([lines_of(path)[1], *lines_of(path)]))
    ended = run_forked_command("show", str(path))
    assert (ended.returncode, ended.stderr) == (0, "")
    error, warning, summary = ended.stdout.split("\n\n")
    assert error.startswith("torchnan: NaN at step 7 (cpu)\n  made by   aten::div")
    assert error.endswith("\n  repeats   1 more in this log")
    assert warning.startswith("torchnan: NaN at step 7 (cpu) - a warning: nothing used it\n  made by   aten::log")
    assert warning.endswith("\n  repeats   1 more in this log")
    assert summary == f"{path}: 4 findings, 2 distinct\n"


def test_show_names_the_lines_that_it_ignored(path):
    path.write_bytes(b"\x1b[31m\n" * 102 + path.read_bytes()[:-9])
    ended = run_forked_command("show", str(path))
    assert ended.returncode == 0
    assert f"{path}: 2 findings, 2 distinct\nignored: " in ended.stdout
    assert "\n  line 1: it is not a finding\n" in ended.stdout
    assert "\n  line 100: " in ended.stdout
    assert ended.stdout.endswith("\n  and 2 more lines\n  the last line is incomplete\n")
    assert "\x1b" not in ended.stdout


def test_show_of_nothing_says_so(tmp_path):
    (tmp_path / "log").touch()
    ended = run_forked_command("show", str(tmp_path / "log"))
    assert (ended.returncode, ended.stdout) == (0, f"{tmp_path}/log: no findings\n")
    ended = run_forked_command("show", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"torchnan: {tmp_path} contains no log of findings: their names end with .jsonl.\n"


def test_show_as_json_is_the_log_without_unreadable_lines(path):
    whole = lines_of(path)
    path.write_bytes(whole[1] + b"damage\n" + whole[0])
    ended = run_forked_command("show", "--json", str(path))
    assert ended.stdout.encode() == whole[0] + whole[1]
    assert "2 findings, 2 distinct\nignored: 7 bytes\n  line 2: it is not a finding" in ended.stderr


def test_show_prints_names_of_any_alphabet_on_any_terminal(path):
    path.write_text(changed(path, module="größe") + "\n")
    assert "in größe " in run([*MODULE, "show", str(path)], PYTHONIOENCODING="utf-8").stdout
    assert "in gr\\xf6\\xdfe " in run([*MODULE, "show", str(path)], PYTHONIOENCODING="ascii").stdout
