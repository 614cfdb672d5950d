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
    """Prints the report and opens the debugger (IPython's under IPython) in the innermost frame of user code.

    With ``when="origin"`` the operation that made the value has just returned there, and its tensors are the locals.

    Raises:
        SystemExit: the debugger was left with ``q``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and introspection.is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:  # on a thread of the autograd engine there is no user code
        return
    print(finding, f"torchnan: the debugger is at {printable(frame.f_code.co_filename)}:{frame.f_lineno}", sep="\n")
    _interact(_debugger(), frame)


def _interact(debugger: Any, frame: FrameType) -> None:
    """Asks for commands in a frame at once. ``set_trace()`` asks at the next line, which may be one of PyTorch's."""
    debugger.reset()
    above: FrameType | None = frame
    while above is not None:  # so that `n`, `r`, `up` and the user's breakpoints continue from here
        above.f_trace = debugger.trace_dispatch
        debugger.botframe = above
        above = above.f_back
    debugger.interaction(frame, None)
    if debugger.quitting:
        raise SystemExit(1)  # an action may only end the program by SystemExit: its other errors are contained
    if debugger.stoplineno != -1 or debugger.breaks:  # not `c`
        sys.settrace(debugger.trace_dispatch)


def _debugger() -> Any:
    """Returns a debugger whose ``s`` stays in user code: PyTorch runs much code of its own between two user lines."""
    base: Any = pdb.Pdb
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from IPython.core import debugger

        base = debugger.Pdb

    class Debugger(base):  # type: ignore[misc]
        def stop_here(self, frame: FrameType) -> bool:
            return super().stop_here(frame) and not _is_internal(frame)

    return Debugger()


def _is_internal(frame: FrameType) -> bool:
    # generated code, such as the methods of a named tuple
    if frame.f_code.co_filename == "<string>" and frame.f_back is not None:
        return introspection.is_internal(frame.f_back.f_code.co_filename)
    return introspection.is_internal(frame.f_code.co_filename)
