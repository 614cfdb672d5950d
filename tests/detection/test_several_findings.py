"""Several findings of one session: as text, and in a notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import torch
from torch import nn

import torchnan
from tests.support.browser import HOSTILE
from tests.support.finding_logs import LINE, finding_of, masked_row

TWO_SCREENS = 2 * 50  # lines


class Logs(nn.Module):
    """Each of its children makes a separate NaN."""

    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(Log() for _ in range(count))

    def forward(self, x):
        return [layer(x) for layer in self.layers]


class Log(nn.Module):
    def forward(self, x):
        return x.log()


def sixty():
    with torchnan.detect(action="log") as watch:
        for result in Logs(60)(torch.tensor([-1.0])):
            result.item()
    return watch


def test_sixty_findings_fit_two_screens():
    watch = sixty()
    assert len(watch.findings) == 60
    first, others = watch.report().split("\n\n")
    assert first == str(watch.findings[0])
    lines = others.split("\n")
    assert lines[0] == "torchnan: 59 more"
    assert re.fullmatch(
        r"  NaN at step 1 \(cpu\): aten::log in layers\.59 \(Log\) at \S*test_several_findings\.py:\d+", lines[-1]
    )
    assert len(lines) == 60
    assert watch.report().count("\n") < TWO_SCREENS


def test_the_most_serious_is_the_one_in_full():
    with torchnan.detect(action="log") as watch:
        with torchnan.detect(action="log"):
            torch.tensor([-1.0]).log()  # nothing uses it: a warning
        torch.tensor([0.0]).log().item()
    assert [finding.level for finding in watch.findings] == ["warning", "error"]
    assert watch.report().startswith(
        f"{watch.first}\n\ntorchnan: 1 more\n  NaN at step 1 (cpu) - a warning: nothing used it: "
    )


class Elements(HTMLParser):
    """The names of the elements of a document, and its text."""

    def __init__(self, document):
        super().__init__()
        self.names, self.text = [], ""
        self.feed(document)

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)

    def handle_data(self, data):
        self.text += data


def test_a_notebook_shows_a_finding_as_a_table():
    shown = Elements(finding_of(masked_row())._repr_html_())
    assert shown.names[:3] == ["div", "b", "table"]
    for text in ("torchnan: NaN at step 17 (cpu)", "made by", f"finding_logs.py:{LINE}", "because", "harm"):
        assert text in shown.text


def test_a_notebook_shows_the_findings_of_a_session():
    shown = Elements(sixty()._repr_html_())
    assert "60 findings, 60 of level error" in shown.text
    assert shown.names.count("table") == 1
    assert shown.names.count("li") == 59
    assert "59 more" in shown.text
    assert Elements(torchnan.detect()._repr_html_()).names == ["div", "code"]


def test_names_of_strangers_are_text_in_a_notebook():
    told = masked_row(
        op=HOSTILE,
        module=HOSTILE,
        hint=HOSTILE,
        stack=[{"file": HOSTILE, "line": 1, "function": HOSTILE, "installed": False}],
    )
    shown = Elements(finding_of(told)._repr_html_())
    assert {"script", "img", "style", "svg"}.isdisjoint(shown.names)
    assert "<script>" in shown.text
