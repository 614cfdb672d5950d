"""PyTorch's anomaly mode, implemented by torchnan: the signatures of ``torch.autograd.set_detect_anomaly`` and
``detect_anomaly``, the errors of :class:`torchnan.detect`.

Like PyTorch's functions they check for NaN only. An Inf that turns into NaN is still named as its origin.
"""

from __future__ import annotations

import torch

from torchnan.detection import session

_own: session.detect | None = None  # the detection session that implements anomaly mode


def _is_on() -> bool:
    return _own is not None


def _switch(on: bool) -> None:
    """Starts or ends the program-wide session of anomaly mode. A session that user code or the environment started
    stays."""
    global _own
    if on == _is_on() or (on and session.is_program_wide()):
        return
    if on:
        _own = session.set_detect(True, check_inf=False)
    else:
        _own = None
        session.end_program_wide(report_pending=False)


class set_detect_anomaly:
    """Switches detection of NaN on or off in the whole program; used as a context manager, until its end.

    Args:
        mode: ``True`` to switch it on.
        check_nan: ``False`` checks nothing, because torchnan's anomaly mode has nothing else to check.

    Example::

        torchnan.set_detect_anomaly(True)
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _is_on()
        _switch(bool(mode and check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        _switch(self._before)


class detect_anomaly:
    """Detects NaN inside a ``with`` block.

    Args:
        check_nan: ``False`` checks nothing.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        self._before = False

    def __enter__(self) -> None:
        self._before = _is_on()
        _switch(self._check_nan)

    def __exit__(self, *error: object) -> None:
        _switch(self._before)


def replace_anomaly_mode() -> None:
    """Replaces PyTorch's functions by these, for unmodified programs: ``Trainer(detect_anomaly=True)``."""
    for holder in (torch.autograd, torch.autograd.anomaly_mode):
        for replacement in (set_detect_anomaly, detect_anomaly):
            setattr(holder, replacement.__name__, replacement)
