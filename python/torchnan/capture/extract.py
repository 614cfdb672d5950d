"""The bad operation alone: a Python file that needs nothing but PyTorch and safetensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from torchnan.capture.errors import CaptureError
from torchnan.capture.load import Capture
from torchnan.capture.operation import Operation

_PROGRAM = '''"""{title}"""

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
        capture: one whose replay has met the operation again.
        where: a folder; made if it is not there.

    Returns:
        path of the program.

    Raises:
        CaptureError: the capture has no operation in it.
    """
    from safetensors.torch import save_file

    operation = capture.operation
    if operation is None:
        raise CaptureError(
            f"{capture.path} has no operation in it: its replay found no single one to blame (cause "
            f"'{capture.event.get('cause')}'), or met it inside a compiled graph. `python -m torchnan replay` runs the "
            "whole step."
        )
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    rendered = _Rendering()
    arguments = [f"    {rendered.of(value, name)}," for name, value in _named_arguments(operation)]
    arguments += [f"    {name}={rendered.of(value, name)}," for name, value in operation.kwargs.items()]
    overload = operation.overload or "default"
    program = _PROGRAM.format(
        title=_title(capture),
        layout="".join(f"{line}\n" for line in rendered.layout),
        op=f"{operation.op.replace('::', '.')}.{overload}",
        arguments="\n".join(arguments),
    )
    _write(where / "operation.py", program.encode())
    save_file(rendered.tensors, where / "tensors.safetensors")
    os.chmod(where / "tensors.safetensors", 0o600)
    return where / "operation.py"


def _title(capture: Capture) -> str:
    origin = str(capture.event.get("origin") or "an operation").replace("\\", "/").replace('"', "'")
    return f"{origin}. Step {capture.step}, rank {capture.rank}, PyTorch {capture.versions.get('torch')}."


def _named_arguments(operation: Operation) -> list[tuple[str, Any]]:
    """With the names of the schema, where the operator is known here."""
    namespace, name = operation.op.split("::")
    overload = operation.overload or "default"
    known = getattr(getattr(getattr(torch.ops, namespace), name, None), overload, None)
    names = [f"arg{i}" for i in range(len(operation.args))]
    if known is not None:
        names = [argument.name for argument in known._schema.arguments][: len(operation.args)]
    return list(zip(names, operation.args, strict=False))


class _Rendering:
    """Arguments as Python source, their tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.layout: list[str] = []  # lines that put back what safetensors does not keep

    def of(self, value: Any, name: str) -> str:
        """The expression for one argument."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if isinstance(value, list | tuple):
            items = [self.of(item, f"{name}_{i}") for i, item in enumerate(value)]
            return f"[{', '.join(items)}]"
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            return f'float("{value}")'
        if isinstance(value, torch.device):
            return f'torch.device("{value}")'
        return repr(value)  # numbers, strings, None, torch.float32, torch.strided

    def _tensor(self, tensor: torch.Tensor, name: str) -> str:
        tensor = tensor.detach().cpu()
        plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        self.tensors[name] = plain.contiguous().clone()
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
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
