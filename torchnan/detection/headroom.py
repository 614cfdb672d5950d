"""How close results have come to the end of their dtype's range."""

from __future__ import annotations

import dataclasses

from torchnan.config.text import printable


@dataclasses.dataclass(frozen=True)
class Headroom:
    """The largest forward result of one module in one dtype, or of one operator if no module is known.

    Attributes:
        module: dotted path of the module, ``""`` for the root itself, ``None`` outside every module.
        op: the operation that made the largest result, ``"aten::addmm"``.
        dtype: ``"float16"``, ``"bfloat16"`` or ``"float32"``.
        absmax: the largest scanned ``|x|``; if nothing was scanned, a bound for all results.
        exact: whether anything was scanned. Forecasts use scanned values only; a bound says only that there is room.
        bound: an upper limit of every ``|x|``. Larger than ``absmax`` if some results were proved finite, not scanned.
        limit: the largest number of the dtype.
    """

    module: str | None
    op: str
    dtype: str
    absmax: float
    exact: bool
    bound: float
    limit: float

    @property
    def used(self) -> float:
        """``absmax`` as a share of the dtype's range: at 1 it overflows."""
        return self.absmax / self.limit

    def __str__(self) -> str:
        place = f"{printable(self.module)} ({printable(self.op)})" if self.module else printable(self.op)
        how = "reached" if self.exact else "is within"
        return f"{place} {how} {self.absmax:.6g}, {self.used:.2g} of {self.dtype}'s range"


Headroom.__module__ = "torchnan"  # the public name
