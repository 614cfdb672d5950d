"""Answers where the non-finite values of a tensor came from, at any time during detection."""

from __future__ import annotations

import torch

from torchnan._load import _C
from torchnan.config.text import brief
from torchnan.detection.finding import Finding


def origin_of(tensor: torch.Tensor) -> Finding | None:
    """Returns where the non-finite values of a tensor came from. Nothing is reported or raised for them.

    For a debugger, a notebook, or a check in the program. The finding names the same operation, line, module and inputs
    as a report; its level is ``"note"``, and its ``harm`` is ``"none"``. If the values were there before detection
    began, its ``origin`` is ``"input"`` or ``"parameter"``. On a device the call waits for the device.

    Args:
        tensor: any shape, dtype and device. An integer or boolean tensor that was computed from a NaN (``argmax``,
            ``.long()``) has the origin of that NaN.

    Returns:
        the finding of the first cause, ``None`` if all values are finite.

    Raises:
        RuntimeError: no detection is on in this thread.
        TypeError: it is not a tensor.

    Example::

        with torchnan.detect(action="log"):
            loss = model(batch)
            if not loss.isfinite():
                print(torchnan.origin_of(loss))
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"origin_of({brief(tensor)}): it takes a tensor.")
    if _C.current_session() is None:
        raise RuntimeError(
            "origin_of(): no detection is on in this thread, so nothing was recorded. Call it inside "
            "`with torchnan.detect():`, or after torchnan.set_detect(True)."
        )
    return _C.origin_of(tensor)
