"""Looking into a document that may be damaged: what is not as it must be is a CaptureError that says where."""

from __future__ import annotations

from typing import Any

from torchnan.config.text import shown
from torchnan.storage.errors import CaptureError

_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a number without fraction", bool: "true or false"}


def wrong(path: str, expected: str, found: object) -> CaptureError:
    """The error for a place in a document that does not hold what it must."""
    return CaptureError(f"{path} must be {expected} but is {shown(found)}: the document is damaged.")


def kind(node: Any, expected: type, path: str) -> Any:
    """The node, which is exactly of this type."""
    if type(node) is not expected:
        raise wrong(path, _NAMES[expected], node)
    return node


def entry(node: Any, key: str, expected: type, path: str) -> Any:
    """What an object holds under a key; ``object`` stands for anything."""
    if key not in kind(node, dict, path):
        raise wrong(path, f"an object with '{key}'", node)
    return node[key] if expected is object else kind(node[key], expected, f"{path}['{key}']")


def sizes(node: Any, key: str, path: str) -> list[int]:
    """A list of numbers from 0 to 2**63 - 1, as shapes and strides are."""
    listed: list[int] = entry(node, key, list, path)
    for i, size in enumerate(listed):
        if type(size) is not int or not 0 <= size < 2**63:
            raise wrong(f"{path}['{key}'][{i}]", "a size", size)
    return listed


def index(number: Any, length: int, path: str) -> int:
    """A number that counts into a list of this length."""
    if type(number) is not int or not 0 <= number < length:
        raise wrong(path, f"a number from 0 to {length - 1}", number)
    return number
