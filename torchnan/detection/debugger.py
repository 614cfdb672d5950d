"""``action="breakpoint"``: the debugger, in the user's frame."""

from __future__ import annotations

import pdb
import sys
from types import FrameType
from typing import Any

from torchnan.config.text import printable
from torchnan.detection import introspection
from torchnan.detection.finding import Finding


def stop(finding: Finding) -> None:
    """Prints the report and opens the debugger in the innermost frame of user code: IPython's where IPython runs.

    With ``when="origin"`` the operation that made the value has just returned there, and its tensors are the locals.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and introspection.is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:  # on a thread of the autograd engine there is no user code
        return
    print(finding, f"torchnan: the debugger is at {printable(frame.f_code.co_filename)}:{frame.f_lineno}", sep="\n")
    _debugger().set_trace(frame)


def _debugger() -> Any:
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from IPython.core.debugger import Pdb

        return Pdb()
    return pdb.Pdb()
