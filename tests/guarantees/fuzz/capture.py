"""A capture with one part replaced and its checksums corrected: must load or raise CaptureError, and extract no code.

The first line of an input names the part: a file (``contents.json``, ``batches.safetensors``...), or an entry of
``capture.json`` (``batches``, ``event``...).
"""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import json
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy
import torch

import torchnan
from torchnan.capture import CaptureError, load_capture
from torchnan.training.capture.reproducer import write_example
from torchnan.training.storage.codec import encode

CORPUS = Path(__file__).with_name("corpus") / "capture"
CONTENTS = "contents.json"
DOCUMENT = "capture.json"


@functools.cache
def whole() -> dict[str, bytes]:
    """The files of a small capture with an operation and a batch of all sorts."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = {
        "x": torch.ones(1, 2),
        "n": torch.zeros(1),
        3: (None, True, 2**70, 0.5, float("nan"), 1j, "text", b"bytes", torch.float16, torch.Size([1])),
        "numpy": [numpy.ones((2, 2)), numpy.float32(1), collections.OrderedDict(a=torch.device("cpu"))],
    }
    with tempfile.TemporaryDirectory() as folder:
        guard = torchnan.StepGuard(model, optimizer, lambda model, b: (model(b["x"]) / b["n"]).sum(), captures=folder)
        event = guard.step(batch).event
        assert event is not None
        assert event.capture is not None
        return {path.name: path.read_bytes() for path in Path(event.capture).iterdir()}


@functools.cache
def parts() -> dict[bytes, bytes]:
    """The entries of the document, by name."""
    return {name.encode(): json.dumps(part).encode() for name, part in json.loads(whole()[DOCUMENT]).items()}


def seeds() -> list[bytes]:
    """Each part as it is."""
    files = {name.encode(): text for name, text in whole().items()}
    return [name + b"\n" + text for name, text in {**files, **parts()}.items()]


def one(data: bytes) -> None:
    """Loads it, and writes its operation as a program."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(CaptureError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forge(Path(folder), data)
        write_example(load_capture(folder), Path(folder) / "extract")
        want_harmless((Path(folder) / "extract" / "operation.py").read_text())


def forge(folder: Path, data: bytes) -> None:
    """The whole capture with one part replaced, and its contents adapted."""
    replaced, _, text = data.partition(b"\n")
    files = {name: text if name.encode() == replaced else held for name, held in whole().items()}
    if replaced != DOCUMENT.encode():
        files[DOCUMENT] = document(replaced, text)
    if replaced != CONTENTS.encode():
        files[CONTENTS] = contents(files)
    for name, held in files.items():
        (folder / name).write_bytes(held)


def document(replaced: bytes, text: bytes) -> bytes:
    """``capture.json`` with any text under one name, and as little as possible under the others: code that every input
    covers teaches a fuzzer nothing."""
    if replaced not in parts():
        return whole()[DOCUMENT]
    least = {name: part for name, part in parts().items() if name != b"operation"}
    least.update({part: json.dumps(encode({}, name="")[0]).encode() for part in (b"weights", b"buffers")})
    least.update({part: json.dumps(encode([], name="")[0]).encode() for part in (b"batches", b"batch_random")})
    return b"{%s}" % b",".join(b'"%s":%s' % part for part in {**least, replaced: text}.items())


def contents(files: dict[str, bytes]) -> bytes:
    """``contents.json`` of these files."""
    made = json.loads(whole()[CONTENTS])
    for entry in made["files"]:
        entry.update(bytes=len(files[entry["name"]]), crc32=zlib.crc32(files[entry["name"]]))
    return json.dumps(made).encode()


# The syntax that a program written by `extract` may use, and the functions it may call.
HARMLESS = (
    *(ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.Expr, ast.Assign, ast.Constant, ast.For, ast.IfExp),
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.keyword, ast.List, ast.Tuple, ast.UnaryOp, ast.USub),
    *(ast.Load, ast.Store),
)
CALLED = {
    *("Path", "with_name", "load_file", "isinstance", "print", "int", "float", "complex", "torch.device"),
    *("torch.view_as_complex", "torch.empty_strided", "copy_", "sum", "isnan", "isinf"),
}


def want_harmless(program: str) -> None:
    """One operator of PyTorch is called, and functions that inspect its result."""
    operators = 0
    for node in ast.walk(ast.parse(program)):
        assert isinstance(node, HARMLESS), ast.dump(node)
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            is_operator = function.startswith("torch.ops.") and "__" not in function and function.count(".") == 4
            assert is_operator or function in CALLED or function.split(".")[-1] in CALLED, function
            operators += is_operator
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert ast.unparse(node) in (
                "from pathlib import Path",
                "import torch",
                "from safetensors.torch import load_file",
            )
    assert operators == 1
