"""What a program has done on a device."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class StepTrace:
    """Counts of one run of a program, such as a training step.

    Attributes:
        waits: how often the host waited for the device.
        copies_to_host: copies from the device to the host.
        operators: the names of the operators, also of those that others called.
        scans: launches of torchnan's scan.
        scan_microseconds: their time on the device; 0 where the device has no times.
        kernels: launches of kernels, with the scans; 0 where the device does not tell.
        device_microseconds: the time of all kernels, copies and fills on the device.
    """

    waits: int
    copies_to_host: int
    operators: list[str]
    scans: int
    scan_microseconds: float = 0.0
    kernels: int = 0
    device_microseconds: float = 0.0

    @property
    def cloned_gradients(self) -> int:
        """How many gradients autograd copied because something else referred to them."""
        return self.operators.count("aten::new_empty_strided")

    @property
    def adds_in_place(self) -> int:
        """How many sums were written into one of their terms, such as gradients that autograd accumulates."""
        return self.operators.count("aten::add_")
