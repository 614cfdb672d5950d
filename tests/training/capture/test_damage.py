"""A damaged document is an error that says where, and never another one."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchnan.capture import CaptureError
from torchnan.training.storage.codec import decode, encode


@dataclasses.dataclass
class Plain:
    value: Any


def nested(depth):
    inner: Any = 0
    for _ in range(depth):
        inner = [inner]
    return inner


def kept():
    """Something of everything."""
    base = torch.arange(12.0).reshape(3, 4)
    return encode(
        {
            "tensors": [
                base,
                base.t()[1:],
                torch.nn.Parameter(torch.ones(2)),
                torch.ones(2, dtype=torch.complex64).conj(),
            ],
            "numbers": (2**80, float("inf"), 1.5, 1j, True, None, b"ab", "\ud83d\ude00"),
            3: collections.OrderedDict(a=Plain(torch.float16), b=collections.UserDict(x=torch.device("cpu"))),
            "numpy": [np.arange(6).reshape(2, 3), np.float32(2)],
            "size": torch.Size([2, 3]),
        },
        name="x",
    )


DOCUMENT, TENSORS = kept()
DOCUMENT = json.loads(json.dumps(DOCUMENT))


def places(node, path=()):
    yield path
    for key, inner in enumerate(node) if isinstance(node, list) else node.items() if isinstance(node, dict) else ():
        yield from places(inner, (*path, key))


PLACES = [path for path in places(DOCUMENT) if path]
json_values = st.deferred(
    lambda: st.none() | st.booleans() | st.integers() | st.integers(-2, 20) | st.floats() | st.text(max_size=3)
    | st.sampled_from(["float64", "nan", "0x1", "00", "F", "<f4", "cuda", "qint8", "bits8", "int1"])
    | st.lists(json_values, max_size=3) | st.dictionaries(st.sampled_from(NAMES), json_values, max_size=1)
)  # fmt: skip
NAMES = sorted({part for path in PLACES for part in path if isinstance(part, str)})


def copy_to_damage(path):
    """A document like DOCUMENT, and what of it holds the place."""
    document = holder = copy.deepcopy(DOCUMENT)
    for part in path[:-1]:
        holder = holder[part]
    return document, holder


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None, max_examples=1000)
@given(st.sampled_from(PLACES), json_values, st.sampled_from(["replace", "delete", "repeat"]))
def test_a_damaged_document_is_a_capture_error_or_a_value(path, replacement, what):
    document, holder = copy_to_damage(path)
    if what == "delete":
        del holder[path[-1]]
    elif what == "repeat" and isinstance(holder, list):
        holder.append(holder[path[-1]])
    else:
        holder[path[-1]] = replacement
    with contextlib.suppress(CaptureError):
        decode(document, TENSORS)


OVERFLOWING = {**DOCUMENT["tensors"][0], "shape": [2**62, 2**62], "strides": [0, 0]}
DAMAGE = [
    (("tensors", 0, "offset"), 1, "document['tensors'][0] reaches from element 1 to 12 of 12 that were kept"),
    (("tensors", 0, "shape", 0), 4, "document['tensors'][0] reaches from element 0 to 15 of 12 that were kept"),
    (("tensors", 0, "strides", 0), 2**62, "document['tensors'][0] reaches from element 0 to"),
    (("tensors", 0, "offset"), -1, "document['tensors'][0] reaches from element -1"),
    (("tensors", 0, "shape"), [2**62, 2**62], "to 23058430092136939515 of 12 that were kept"),
    (("tensors", 0), OVERFLOWING, "document['tensors'][0] cannot be made: numel: integer multiplication overflow"),
    (("tensors", 0, "shape", 0), -3, "['tensors'][0]['shape'][0] must be a size but is -3: the document is damaged."),
    (("tensors", 0, "shape", 0), 3.0, "must be a size but is 3.0"),
    (("tensors", 0, "strides"), [1], "document['tensors'][0]['strides'] must be 2 numbers but is [1]"),
    (("tensors", 0, "dtype"), "float64", "to 11 of 6 that were kept"),
    (("tensors", 0, "dtype"), "nn", "['dtype'] must be the name of a torch.dtype but is 'nn'"),
    (("tensors", 0, "dtype"), "qint8", "['dtype'] must be the name of a torch.dtype but is 'qint8'"),
    (("tensors", 0, "memory"), 9, "document['tensors'][0]['memory'] must be a number from 0 to"),
    (("tensors", 0, "requires_grad"), 1, "['requires_grad'] must be true or false but is 1"),
    (("value", "dict", 0, 1, 0, "tensor"), 77, "['dict'][0][1][0]['tensor'] must be a number from 0 to 3 but is 77"),
    (("value", "dict", 0, 0), {"tuple": []}, "['dict'][0][0] must be a unique key"),
    (("value", "dict", 1, 0), "tensors", "['dict'][1][0] must be a unique key"),
    (("value", "dict", 1, 1), {"pickle": "x"}, "must be a value, a list, or an object with one of int, float"),
    (("value", "dict", 1, 1, "tuple", 0, "int"), "12", "['int'] must be a hexadecimal number such as '0x1f'"),
    (("value",), nested(5000), "levels deep"),
    (("memory",), [], "must be a number from 0 to -1"),
    (("memory",), {}, "document['memory'] must be a list but is {}"),
    (("value", "dict", 3, 1, 0, "array", "shape"), [3, 3], "must be an array of 48 bytes in order C or F"),
    (("value", "dict", 3, 1, 0, "array", "shape"), [1] * 65, "must be an array of 48 bytes"),
    (("value", "dict", 3, 1, 0, "array", "dtype"), "O", "['dtype'] must be the name of a NumPy dtype of numbers but"),
    (("value", "dict", 3, 1, 1, "numpy", "dtype"), "<f99", "a dtype that NumPy does not have on this machine"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "replacement", "message"), DAMAGE, ids=[f"{p[-1]}-{i}" for i, (p, _, _) in enumerate(DAMAGE)]
)
def test_damage_is_reported_with_its_place(path, replacement, message):
    document, holder = copy_to_damage(path)
    holder[path[-1]] = replacement
    with pytest.raises(CaptureError) as raised:
        decode(document, TENSORS)
    assert message in str(raised.value)


@pytest.mark.parametrize("document", [None, [], 3, {}, {"value": 1}, {"value": 1, "tensors": []}])
def test_an_invalid_document_is_an_error(document):
    with pytest.raises(CaptureError, match="document must be an object"):
        decode(document, {})


def test_a_tensor_that_is_missing_is_named():
    with pytest.raises(
        CaptureError, match=r"document\['memory'\]\[1\]: there is no tensor 'memory.1' beside the document"
    ):
        decode(DOCUMENT, {"memory.0": TENSORS["memory.0"]})
