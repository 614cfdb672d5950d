"""A notebook, run by the kernel that Jupyter starts: what its cells show."""

from __future__ import annotations

import re

import nbclient
import nbformat

from tests.support.processes import REPOSITORY

FINDING = """
import torch, torchnan

with torchnan.detect(action="log") as watch:
    (torch.zeros(2) / torch.zeros(2)).sum().item()

watch
"""
ERROR = """
def normalized(x):
    return x / x.sum()

with torchnan.detect():
    normalized(torch.zeros(2)).sum().item()
"""


def test_a_cell_shows_a_session_as_a_table_and_an_error_with_the_report(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    cells = [nbformat.v4.new_code_cell(source) for source in (FINDING, ERROR)]
    notebook = nbclient.execute(nbformat.v4.new_notebook(cells=cells), allow_errors=True, timeout=300)

    (shown,) = notebook.cells[0].outputs
    assert shown.output_type == "execute_result"
    assert "1 finding," in shown.data["text/plain"]
    assert "<b>torchnan: NaN at step 1 (cpu)</b>" in shown.data["text/html"]
    assert "<b>aten::div, output 0   at Cell In[1]:4</b>" in shown.data["text/html"]
    assert "user code read it (Cell In[1]:4)" in shown.data["text/html"]

    (error,) = notebook.cells[1].outputs
    traceback = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))
    assert error.ename == "NonFiniteError"
    assert re.match(r'Traceback .*\n  File "Cell In\[2\]", line 5, in <module>\n    normalized', traceback)
    assert "\n  made by   aten::div, output 0   at Cell In[2]:2\n" in traceback
    assert traceback.endswith("\n  stack     Cell In[2]:2 normalized\n            Cell In[2]:5 <module>")
    assert "site-packages" not in traceback
