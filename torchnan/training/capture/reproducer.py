"""Reproducers: the operation at the origin as a Python file that needs only PyTorch and safetensors."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import torch

from torchnan.config.text import brief, printable
from torchnan.training.capture.capture import Capture
from torchnan.training.guard.step.operation import Operation
from torchnan.training.storage import atomic_folder
from torchnan.training.storage.errors import CaptureError

PROGRAM, TENSORS = "operation.py", "tensors.safetensors"
_TEXT = '''"""{title}"""

from pathlib import Path

import torch
from safetensors.torch import load_file

t = load_file(Path(__file__).with_name("tensors.safetensors"))
{layout}out = torch.ops.{op}(
{arguments}
)
for x in out if isinstance(out, (list, tuple)) else [out]:
    print(x.shape, x.dtype, "nan", int(x.isnan().sum()), "inf", int(x.isinf().sum()))
'''


def write_example(capture: Capture, where: Path) -> Path:
    """Writes ``operation.py`` and ``tensors.safetensors``.

    Args:
        capture: one whose replay reached the operation again.
        where: a folder; created if necessary.

    Returns:
        path of the program.

    Raises:
        CaptureError: the capture has no operation, or an invalid one: text from a capture is written as Python only
            where it can only be a name or a value.
        OSError: the folder is a link, holds other files inside of the capture, or cannot be written.
    """
    operation = capture.operation
    if operation is None:
        raise CaptureError(
            f"{capture.path} has no operation in it: its replay found no single one to blame (cause "
            f"'{capture.event.get('cause')}'), or met it inside a compiled graph. `torchnan replay` runs the "
            "whole step."
        )
    rendered = _Rendering()
    arguments = [f"    {rendered.of(value, name)}," for name, value in _named_arguments(operation)]
    arguments += [f"    {name}={rendered.of(value, name)}," for name, value in operation.kwargs.items()]
    program = _TEXT.format(
        title=_title(capture),
        layout="".join(f"{line}\n" for line in rendered.layout),
        op=f"{operation.op.replace('::', '.')}.{operation.overload or 'default'}",
        arguments="\n".join(arguments),
    )
    _refuse_folder(capture.path, where)
    atomic_folder.make_private_dirs(where)
    _write(where / PROGRAM, program.encode())
    _save(where / TENSORS, rendered.tensors)
    return where / PROGRAM


def _refuse_folder(capture: Path, where: Path) -> None:
    """Raises ``FileExistsError`` for a folder in a capture of somebody else that is prepared: a link, or one with a
    ``torch.py`` that the program would import."""
    if where.is_symlink():
        raise FileExistsError(f"{printable(str(where))} is a link: give another folder")
    if not where.is_dir() or not where.resolve().is_relative_to(capture.resolve()):
        return
    others = sorted({entry.name for entry in where.iterdir()} - {PROGRAM, TENSORS})
    if others:
        raise FileExistsError(
            f"{printable(str(where))} is inside of the capture and holds {brief(others[0])}, which the program could "
            "import: give another folder"
        )


def _title(capture: Capture) -> str:
    origin = capture.event.get("origin") or "an operation"
    if capture.event.get("cause") in ("data", "model"):
        origin = f"{origin}. The value came in: the operation only read it, so this program shows only the values"
    title = f"{origin}. Step {capture.step}, rank {capture.rank}, PyTorch {capture.versions.get('torch')}."
    return re.sub(r"[^ -~]", "?", title).replace("\\", "/").replace('"', "'")


def _named_arguments(operation: Operation) -> list[tuple[str, Any]]:
    """Returns positional arguments with their names in the schema.

    Raises:
        CaptureError: it is not an operator that a capture holds, or it takes other arguments.
    """
    schema = operation.schema()
    if schema is None:
        raise CaptureError(
            f"the operation of the capture, {operation}, is not an operator of PyTorch that computes on tensors alone: "
            "torchnan writes no program that calls it."
        )
    names = [argument.name for argument in schema.arguments]
    return list(zip(names, operation.args, strict=False))


_AS_SOURCE = {type(None), bool, float, str, torch.dtype, torch.layout, torch.memory_format}  # written by their repr()


class _Rendering:
    """Arguments as Python source, their tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.layout: list[str] = []  # lines that restore properties that safetensors does not keep

    def of(self, value: Any, name: str) -> str:
        """Returns the expression for an argument."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if isinstance(value, list | tuple):
            items = [self.of(item, f"{name}_{i}") for i, item in enumerate(value)]
            return f"[{', '.join(items)}]"
        if type(value) is float and not math.isfinite(value):
            return f'float("{value}")'
        if type(value) is complex:
            return f"complex({self.of(value.real, name)}, {self.of(value.imag, name)})"
        if isinstance(value, torch.device):
            return f'torch.device("{value}")'
        if type(value) in _AS_SOURCE or (type(value) is int and abs(value) < 2**64):
            return repr(value)
        raise CaptureError(f"argument {name} is of type {type(value).__name__}, which no operator takes.")

    def _tensor(self, tensor: torch.Tensor, name: str) -> str:
        if math.prod(tensor.shape) * tensor.dtype.itemsize > tensor.untyped_storage().nbytes():
            raise CaptureError(f"argument {name}, {list(tensor.shape)}, has more elements than were saved.")
        try:
            tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
            plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            self.tensors[name] = plain.contiguous().clone()
        except RuntimeError as error:  # a dtype that PyTorch cannot handle
            raise CaptureError(f"argument {name} cannot be written: {error}") from error
        entry = f't["{name}"]'
        if tensor.is_complex():
            self.layout.append(f"{entry} = torch.view_as_complex({entry})")
        if not tensor.is_contiguous():
            shape, strides = tuple(tensor.shape), tuple(tensor.stride())
            if 0 in strides:
                return entry  # expanded: the values are the same
            self.layout.append(
                f"{entry} = torch.empty_strided({shape}, {strides}, dtype={tensor.dtype}).copy_({entry})"
            )
        return entry


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # the path may be a link
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)


def _save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.unlink(missing_ok=True)
    try:
        save_file(tensors, path)
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:  # a dtype that safetensors does not store
        raise CaptureError(f"{path} cannot be written: {error}") from error
    os.chmod(path, 0o600)
