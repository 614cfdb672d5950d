"""Counts who else holds an object. How many references the count itself needs depends on the Python."""

from __future__ import annotations

import sys
from typing import Any


def references_elsewhere(objects: list[Any]) -> list[int]:
    """Returns for each object of a list the number of references to it besides that of the list."""
    return [count - _OWN for count in _counts(objects)]


def _counts(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(each) for each in objects]


# Those of the list, the loop and, before Python 3.14, the call: measured where they arise.
(_OWN,) = _counts([object()])
