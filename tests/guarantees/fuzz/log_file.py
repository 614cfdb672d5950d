"""Any bytes as a log: findings and a count of what is ignored, shown without a control character."""

from __future__ import annotations

import contextlib
import io
import tempfile
import unicodedata

import torch

import torchnan
from torchnan import cli, findings


def seeds() -> list[bytes]:
    """A log of two findings, and a truncated one."""
    with tempfile.NamedTemporaryFile() as file:
        with torchnan.detect(action="log", log=file.name):
            x = torch.zeros(1, requires_grad=True)
            (x / x.detach()).log().sum().backward()
            torch.full((2, 2), 9e4).half().sum().item()
        log = file.read()
    return [log, log[:-20]]


def one(data: bytes) -> None:
    """Reads and shows it; only a log without any finding may be rejected."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        log = findings.read(file.name)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            status = cli.main(["show", file.name])
    assert status == 0 or not log.findings
    assert 0 <= log.ignored_bytes <= len(data)
    assert (log.ignored_bytes > 0) == (log.truncated or log.damaged_lines > 0)
    assert is_for_a_terminal(shown.getvalue())
    for finding in log.findings:
        assert findings.Finding.from_json(finding.to_json()).to_json() == finding.to_json()


def is_for_a_terminal(text: str) -> bool:
    """No character except a line break moves the cursor, colours, rings or changes the direction of writing."""
    bidirectional = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    shown = text.replace("\n", "")
    return not any(unicodedata.category(c) in ("Cc", "Zl", "Zp") or c in bidirectional for c in shown)
