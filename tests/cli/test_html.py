"""The page of findings: from logs, and at the end of a program that TORCHNAN_HTML asks for it."""

from __future__ import annotations

import itertools
import math
import re
import sys

import pytest

from tests.support.browser import (
    HOSTILE,
    assert_hostile_names_are_text,
    assert_scripts_are_refused,
    assert_self_contained,
    colour_shares,
    in_browser,
    visible_text,
)
from tests.support.finding_logs import LINE, finding_of, masked_row, received, write_log
from tests.support.processes import run, run_python
from torchnan import cli, startup
from torchnan.config.options import OptionError
from torchnan.distributed.incidents import Story
from torchnan.pages import findings_page
from torchnan.pages.timeline import timelines


@pytest.fixture
def logs(tmp_path):
    """The logs of three ranks: rank 1 makes a NaN that the others receive, later rank 0 holds a bad buffer."""
    buffer = masked_row(origin="buffer", name="layers.2.scale", step=40, rank=0, kind="inf", hint="it came so")
    write_log(tmp_path / "rank-0.jsonl", received(rank=0), received(rank=0, name="layers.0.weight"), buffer)
    write_log(tmp_path / "rank-1.jsonl", masked_row(rank=1))
    write_log(tmp_path / "rank-2.jsonl", received(rank=2))
    return tmp_path


def test_a_browser_shows_causes_graph_modules_and_time_line(logs, capsys):
    page = logs / "report.html"
    assert cli.main(["html", str(logs / "rank-1.jsonl"), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"torchnan: the page is {page}\n"
    assert page.stat().st_mode & 0o777 == 0o600
    ended = in_browser(page, "--dump-dom")
    shown = visible_text(ended.stdout)
    for words in (
        "NaN at step 17: aten::_softmax in layers.0",
        "5 findings · 2 causes · ranks 0 to 2",
        "softmax of a fully masked row is 0/0",
        "received by ranks 0, 2 through allreduce_",
        "backward() was called on it",
        f"finding_logs.py:{LINE}",
    ):
        assert words in shown
    graph = ended.stdout.split('class="graph"')[1]
    kinds = re.findall(r'<g class="node (\w+)">', graph)
    assert kinds == ["argument", "origin", "step", "step", "step", "harm"]
    assert re.findall(r"<title>(aten::\w+) \(", graph) == ["aten::mul", "aten::add", "aten::sum"]
    assert graph.count('class="arrow"') == 5
    assert '<path class="gone"' in graph  # of the -inf in the argument
    marked = re.findall(r'depth(\d) marked"><span class="name">([^<]+)</span><span class="number">(\d)', ended.stdout)
    assert marked == [("2", "0", "1"), ("3", "scale", "2")]
    (timeline,) = re.findall(r'<svg data-screen="wide" .*?</svg>', ended.stdout, re.DOTALL)
    marks = re.findall(r'class="mark \w+"><title>(.*?)</title>', timeline)
    assert sorted(marks) == [
        "1: NaN at step 17 on rank 1",
        "1: received at step 17 on rank 0",
        "1: received at step 17 on rank 2",
        "2: Inf at step 40 on rank 0",
    ]
    assert "Content Security Policy" not in ended.stderr  # nothing of the page itself is refused


def test_causes_of_one_step_are_apart_on_the_time_line():
    story = Story()
    for i in range(9):
        story.add(finding_of(masked_row(op=f"aten::op{i}", step=3 + i // 3)))
    for timeline in timelines(story.incidents()):
        marks = [(mark.x, mark.y) for mark in timeline.marks]
        assert len(marks) == 9
        assert min(math.dist(*pair) for pair in itertools.combinations(marks, 2)) >= 18  # each is a circle of radius 9
        assert max(y for _, y in marks) < timeline.height - 22  # above the names of the steps


def test_the_style_is_used_and_the_page_is_not_blank(logs):
    page = logs / "page.html"
    assert cli.main(["html", str(logs), "-o", str(page)]) == 0
    assert_self_contained(page.read_text())
    share = colour_shares(page, height=1200)
    card, origin, values = (0xFF, 0xFF, 0xFF), (0xC8, 0x32, 0x2B), (0x24, 0x58, 0xC5)
    assert share[card] > 0.4
    assert share[origin] > 0.01
    assert values in share


def test_a_phone_shows_the_whole_graph(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(findings_page.html([finding_of(masked_row(lineage=[]))], ["findings.jsonl"]))
    harm = (0xFD, 0xEC, 0xEA)  # the third box of a line on a wide screen
    assert colour_shares(page, height=900, width=390)[harm] > 0.01


def test_names_of_strangers_are_text(tmp_path):
    frame = {"file": HOSTILE, "line": 1, "function": HOSTILE, "installed": False}
    told = masked_row(
        op=HOSTILE,
        module=HOSTILE,
        hint=HOSTILE,
        stack=[frame],
        lineage=[{"op": HOSTILE, "file": HOSTILE, "line": 1}],
        inputs=[{**masked_row()["inputs"][0], "name": HOSTILE, "dtype": HOSTILE}],
        harm={"kind": "guard", "name": HOSTILE, "file": HOSTILE, "line": 1, "applied": None, "step": None},
    )
    page = tmp_path / "page.html"
    page.write_text(findings_page.html([finding_of(told)], [HOSTILE], [HOSTILE]))
    assert_hostile_names_are_text(page)
    assert_scripts_are_refused(page)


def test_thousands_of_findings_are_a_page_that_opens():
    many = [finding_of(masked_row(op=f"aten::op{i}", step=i, rank=i % 70)) for i in range(1000)]
    page = findings_page.html(many, ["findings.jsonl"])
    assert len(page) < 500_000
    assert page.count('class="bad finding"') == findings_page.MAX_IN_FULL
    assert "And 480 more." in page
    assert "46 more ranks" in page


def test_none_is_left_out_of_a_page_where_there_is_room_for_it():
    logs = [f"rank-{rank}.jsonl" for rank in range(6)]
    arguments = [{**masked_row()["inputs"][0], "name": f"x{i}"} for i in range(5)]
    page = findings_page.html([finding_of(masked_row(inputs=arguments, rank=rank)) for rank in range(25)], logs[:5])
    assert "rank-4.jsonl" in page
    assert "x4" in page
    assert " more" not in page
    assert "rank-3.jsonl and 2 more logs" in findings_page.html([finding_of(masked_row())], logs)


def test_a_file_that_is_not_a_log_of_findings_is_rejected(tmp_path, capsys):
    run_log, page = tmp_path / "run.jsonl", tmp_path / "page.html"
    run_log.write_text('{"torchnan": "run", "version": 1}\n')
    for path, text in [
        (run_log, f"is the log of a Monitor: use `torchnan diagnose {run_log} --html {page}`"),
        (tmp_path, "contains no log of findings"),
        (tmp_path / "none", "No such file"),
    ]:
        assert cli.main(["html", str(path), "-o", str(page)]) == 2
        assert text in capsys.readouterr().err
    assert not page.exists()


def test_an_empty_log_is_a_page_that_says_so(tmp_path):
    (tmp_path / "log").touch()
    assert "<h1>no findings</h1>" in findings_page.html([], ["log"])
    assert cli.main(["html", str(tmp_path / "log"), "-o", str(tmp_path / "page.html")]) == 0


# -- TORCHNAN_HTML

BAD = "import torch\ntorch.log(torch.tensor(-1.0, requires_grad=True)).backward()\n"


def test_a_program_writes_a_page_of_its_findings(tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    page = tmp_path / "report.html"
    ended = run([sys.executable, str(tmp_path / "bad.py")], TORCHNAN="raise", TORCHNAN_HTML=str(page))
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"torchnan: the page of the findings is {page}\n")
    text = page.read_text()
    assert "<title>NaN at step 1: aten::log</title>" in text
    assert re.search(r"process \d+ of bad\.py · \d{4}-\d\d-\d\d \d\d:\d\d · torchnan \d\S+, PyTorch \d", text)


HEALTHY = """
import sys, torch
torch.ones(2).log()
import atexit
atexit._run_exitfuncs()
print([name for name in sys.modules if name.startswith(("jinja2", "torchnan.pages"))])
"""


def test_a_healthy_program_leaves_none_and_imports_nothing_for_it(tmp_path):
    ended = run_python(HEALTHY, TORCHNAN="raise", TORCHNAN_HTML=str(tmp_path / "report.html"))
    assert (ended.stdout, ended.stderr, list(tmp_path.iterdir())) == ("[]\n", "", [])


def test_a_page_that_cannot_be_written_changes_nothing(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    code = f"{BAD}import os; os.rmdir({str(folder)!r})"
    ended = run_python(code, TORCHNAN="log", TORCHNAN_LOG=str(tmp_path / "log"), TORCHNAN_HTML=str(folder / "a.html"))
    assert ended.returncode == 0
    assert ended.stderr == f"torchnan: there is no page of the findings: {folder}/a.html: No such file or directory\n"


def test_a_child_that_forks_leaves_the_page_to_its_parent(tmp_path):
    page = tmp_path / "report.html"
    code = f"{BAD}import os, sys\nif os.fork() == 0:\n    sys.exit()\nos.wait()"  # the child has its parent's findings
    ended = run_python(code, TORCHNAN="log", TORCHNAN_LOG=str(tmp_path / "log"), TORCHNAN_HTML=str(page))
    assert ended.stderr == f"torchnan: the page of the findings is {page}\n"


def test_a_page_that_can_never_be_written_is_refused_before_the_program_begins(tmp_path, monkeypatch):
    nowhere = tmp_path / "none" / "a.html"
    ended = run_python("import torch; print('begun')", TORCHNAN="raise", TORCHNAN_HTML=str(nowhere))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"torchnan: TORCHNAN_HTML={nowhere} cannot be used: there is no folder {nowhere.parent}.\n"
    monkeypatch.setenv("TORCHNAN_HTML", str(tmp_path))
    with pytest.raises(OptionError, match="no file can be written there"):
        startup.page_path()
    for value in ("", " "):
        with pytest.raises(OptionError, match=f"TORCHNAN_HTML={value} cannot be used: it takes a path"):
            startup.options_from({"TORCHNAN": "1", "TORCHNAN_HTML": value})
