"""Checks of a document that may be damaged: each raises a CaptureError that says where."""

from __future__ import annotations

from typing import Any

from torchnan.config.text import brief
from torchnan.training.storage.errors import CaptureError

_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a number without fraction", bool: "true or false"}


def damaged(path: str, expected: str, found: object) -> CaptureError:
    """Returns the error for an invalid part of a document."""
    return CaptureError(f"{path} must be {expected} but is {brief(found)}: the document is damaged.")


def require_type(node: Any, expected: type, path: str) -> Any:
    """Returns a node that is exactly of this type."""
    if type(node) is not expected:
        raise damaged(path, _NAMES[expected], node)
    return node


def require_key(node: Any, key: str, expected: type, path: str) -> Any:
    """Returns the value of a key in an object; ``object`` stands for any type."""
    if key not in require_type(node, dict, path):
        raise damaged(path, f"an object with '{key}'", node)
    return node[key] if expected is object else require_type(node[key], expected, f"{path}['{key}']")


def require_sizes(node: Any, key: str, path: str) -> list[int]:
    """Returns a list of integers from 0 to 2**63 - 1, such as a shape or strides."""
    listed: list[int] = require_key(node, key, list, path)
    for i, size in enumerate(listed):
        require_size(size, f"{path}['{key}'][{i}]")
    return listed


def require_size(number: Any, path: str) -> int:
    """Returns an integer from 0 to 2**63 - 1."""
    if type(number) is not int or not 0 <= number < 2**63:
        raise damaged(path, "a size", number)
    return number


def require_index(number: Any, length: int, path: str) -> int:
    """Returns an index into a list of this length."""
    if type(number) is not int or not 0 <= number < length:
        raise damaged(path, f"a number from 0 to {length - 1}", number)
    return number
