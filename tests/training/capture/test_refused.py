"""A value that cannot be stored is rejected by name, and so is a class that is unknown to the reader."""

from __future__ import annotations

import abc
import collections
import dataclasses
import decimal
import enum
import json
import pathlib
import sys
import types
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchnan.capture import CaptureError, UnkeepableError
from torchnan.training.storage.codec import check, decode, encode


class Colour(str, enum.Enum):
    RED = "red"


class Tagged(torch.Tensor):
    pass


@dataclasses.dataclass
class Plain:
    value: Any


@dataclasses.dataclass
class Scaled:
    value: Any
    scale: dataclasses.InitVar[float]


@dataclasses.dataclass
class Listed(list):
    value: Any = 0


@dataclasses.dataclass
class Module(torch.nn.Module):
    value: Any = 0


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Any


class NeedsTwo(collections.UserDict):
    def __init__(self, data, more):
        super().__init__(data)


class Odd(collections.UserDict):
    def __init__(self, data=None):
        self.data = collections.OrderedDict(data or {})


def fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2)


def freed():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def without_its_field():
    slotted = Slotted(1)
    del slotted.value
    return slotted


REFUSED = {
    "class": (lambda: decimal.Decimal(1), "batch is a decimal.Decimal, which cannot be kept: the types "),
    "nested_class": (lambda: {"images": [0, 0, Plain(pathlib.PurePosixPath("x"))]}, "batch['images'][2].value is a "),
    "function": (lambda: [len], "batch[0] is a builtin_function_or_method, which cannot be kept"),
    "set": (lambda: {"a": {1}}, "batch['a'] is a set, which cannot be kept"),
    "module": (lambda: torch.nn.ReLU(), "batch is a torch.nn.modules.activation.ReLU, which cannot be kept"),
    "enum": (lambda: Colour.RED, f"batch is a {__name__}.Colour, which"),
    "defaultdict": (lambda: collections.defaultdict(int), "batch is a collections.defaultdict, which"),
    "key": (lambda: {"a": {(1, 2): 0}}, "batch['a'] has the key (1, 2), a tuple, which cannot be kept: keys can be "),
    "enum_key": (lambda: {Colour.RED: 0}, f"a {__name__}.Colour, which cannot be kept: keys can be"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "batch is a sparse tensor, which cannot be kept: keep its to_dense()"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), "batch is a sparse tensor, which cannot be kept"),
    "mkldnn": (lambda: torch.eye(2).to_mkldnn(), "batch is a torch._mkldnn tensor, which cannot be kept"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
        "batch is a quantized tensor, which cannot be kept: keep its dequantize()",
    ),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1)]), "batch is a nested tensor, which cannot be kept"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged),
        "NestedTensor, a kind of tensor that cannot be kept",
    ),
    "meta": (lambda: [torch.ones(2, device="meta")], "batch[0] is a meta tensor, which cannot be kept: it has no"),
    "fake": (fake, "batch is a torch._subclasses.fake_tensor.FakeTensor, a kind of tensor that cannot be kept"),
    "subclass": (lambda: torch.ones(2).as_subclass(Tagged), f"batch is a {__name__}.Tagged, a kind of tensor"),
    "zero": (lambda: torch._efficientzerotensor([3]), "batch is a zero tensor, which cannot be kept"),
    "freed": (freed, "batch is a tensor whose memory was taken away (0 of 16 bytes are there)"),
    "objects": (lambda: np.array([{}]), "batch is a NumPy array of dtype object, which cannot be kept: only numbers"),
    "texts": (lambda: np.array(["a"]), "batch is a NumPy array of dtype <U1, which cannot be kept"),
    "text": (lambda: np.array(["a"])[0], "batch is a NumPy scalar of dtype <U1, which cannot be kept"),
    "dates": (lambda: [np.datetime64("2020-01-01")], "batch[0] is a NumPy scalar of dtype datetime64[D], which"),
    "structured": (lambda: np.zeros(2, "f4,i4"), "which cannot be kept: only numbers and booleans can"),
    "masked": (lambda: np.ma.masked_array([1.0]), "batch is a numpy.ma.MaskedArray, which cannot be kept: make it"),
    "dataclass_of_more": (lambda: Scaled(1, 2.0), "from its contents (missing a required argument: 'scale')"),
    "dataclass_list": (lambda: Listed(), "a dataclass that holds more than its fields, which cannot be kept"),
    "dataclass_module": (lambda: Module(), f"{__name__}.Module, a dataclass that holds more than its fields"),
    "dataclass_unset": (without_its_field, f"batch is a {__name__}.Slotted without its field 'value', which"),
    "userdict_of_more": (lambda: NeedsTwo({}, 1), "from its contents (missing a required argument: 'more')"),
    "userdict_of_other": (lambda: Odd(), "batch.data is a collections.OrderedDict, which cannot be kept"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_values_are_rejected_by_name(case):
    make, message = REFUSED[case]
    for refuse in (check, encode):
        with pytest.raises(UnkeepableError) as raised:
            refuse(make(), name="batch")
        assert message in str(raised.value)
    assert issubclass(UnkeepableError, TypeError)


def test_tensors_inside_of_torch_func_are_refused():
    def refused(x):
        with pytest.raises(UnkeepableError, match=r"x is a torch\.func tensor, which cannot be kept"):
            check(x, name="x")
        return x

    torch.vmap(refused)(torch.ones(2))


def test_an_output_of_transformers_with_more_than_its_fields_is_refused():
    from transformers.modeling_outputs import BaseModelOutput

    output = BaseModelOutput(last_hidden_state=torch.ones(2))
    output["loss"] = torch.ones(1)
    with pytest.raises(UnkeepableError, match="BaseModelOutput, a dataclass that holds more than its fields"):
        check(output, name="output")


def nested(depth, inner=None):
    for _ in range(depth):
        inner = [inner]
    return inner


def test_recursive_values_are_rejected():
    holder: dict = {"a": [1]}
    holder["a"].append(holder)
    with pytest.raises(UnkeepableError, match=r"batch\['a'\]\[1\] contains itself \(a dict\)"):
        check(holder, name="batch")
    twice = [1]
    check([twice, twice], name="batch")  # held twice is not held by itself


def test_a_hundred_levels_are_kept_and_one_more_is_refused():
    deepest = nested(100, complex(1, float("nan")))
    document, tensors = encode(deepest, name="batch")
    assert repr(decode(json.loads(json.dumps(document)), tensors)) == repr(deepest)
    for depth in (101, 100_000):
        with pytest.raises(UnkeepableError, match="lies more than 100 levels deep"):
            check(nested(depth), name="batch")


def test_exponentially_shared_values_end(monkeypatch):
    from torchnan.training.storage import encoder as _walk

    monkeypatch.setattr(_walk, "MAX_PARTS", 10_000)
    value: list = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(UnkeepableError, match="is part 10,001 of its value, and at most 10,000 can be kept"):
        check(value, name="batch")


class NoOperations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called")


def test_check_reads_no_element():
    huge = np.broadcast_to(np.zeros(()), (2**50,))  # its elements would not fit anywhere
    value = {"x": torch.ones(3), "p": torch.nn.Parameter(torch.ones(2, 2)).T, "n": huge}
    with NoOperations():
        check(value, name="batch")
        with pytest.raises(AssertionError, match="was called"):
            encode(value["x"], name="batch")


# -- classes


def point_of_a_module(name):
    module = types.ModuleType(name)
    module.Point = dataclasses.make_dataclass("Point", ["x"], namespace={"__module__": name})
    sys.modules[name] = module
    return module.Point


def test_a_class_is_found_among_the_imported_or_the_given_ones_and_nothing_is_imported(monkeypatch):
    Point = point_of_a_module("module_of_points")
    document, tensors = encode([Point(1)], name="x")
    assert decode(document, tensors) == [Point(1)]
    del sys.modules["module_of_points"]
    with monkeypatch.context() as patched, pytest.raises(CaptureError) as raised:
        patched.setattr("builtins.__import__", lambda name, *rest: pytest.fail(f"{name} was imported"))
        decode(document, tensors)
    assert (
        "['value'][0]['dataclass']['class']: the value holds a module_of_points.Point, and no such class is known "
        "here: import its module first or pass it in `types`."
    ) in str(raised.value)
    assert decode(document, tensors, types=[Plain, Point]) == [Point(1)]
    elsewhere = point_of_a_module("__a_script_that_is_now_a_module__")
    assert decode(document, tensors, types=[elsewhere]) == [elsewhere(1)]
    assert decode(document, tensors, types=[elsewhere, Point]) == [Point(1)]


def test_a_module_that_imports_on_access_is_not_asked(monkeypatch):
    module = types.ModuleType("lazy_module")
    module.__getattr__ = lambda name: pytest.fail(f"{name} was asked for")
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    document, tensors = encode(Plain(1), name="x")
    document["value"]["dataclass"]["class"] = {"module": "lazy_module", "qualname": "Plain"}
    with pytest.raises(CaptureError, match="no such class is known here"):
        decode(document, tensors)


@pytest.mark.parametrize(
    ("module", "qualname"),
    [
        ("os", "system"),
        ("subprocess", "Popen"),
        ("builtins", "dict"),
        ("threading", "Thread"),
        ("collections", "UserDict.fromkeys"),
    ],
)
@pytest.mark.parametrize("kind", ["dataclass", "namedtuple", "userdict"])
def test_no_other_class_or_function_is_called(module, qualname, kind):
    content = {"class": {"module": module, "qualname": qualname}, "fields": [], "values": [], "items": []}
    with pytest.raises(CaptureError, match=f"no such class is known|was a {kind} and no longer is one"):
        decode({"value": {kind: content}, "tensors": [], "memory": []}, {})


def test_a_class_that_has_changed_since_is_named():
    document, tensors = encode(Plain(3), name="x")
    other = dataclasses.make_dataclass("Plain", ["number"])
    with pytest.raises(CaptureError, match=r"Plain has no field 'value'; it has number\."):
        decode(
            document, tensors, types=[types.new_class("Plain", (other,), {}, lambda ns: ns.update(__module__=__name__))]
        )

    document, tensors = encode(Plain(3), name="x")
    document["value"]["dataclass"]["fields"] = []
    with pytest.raises(CaptureError, match=r"the document has no value for the field 'value' of .*Plain\."):
        decode(document, tensors)


# -- code of a class


class Armed:
    """Every method that making an instance could call."""

    ran: ClassVar[list[str]] = []

    def __new__(cls, *args, **kwargs):
        cls.ran.append("__new__")
        return super().__new__(cls)

    def __setattr__(self, name, value):
        self.ran.append("__setattr__")
        super().__setattr__(name, value)

    def __getattribute__(self, name):
        if name == "__dict__":
            Armed.ran.append("__getattribute__")
        return super().__getattribute__(name)

    def __repr__(self):
        self.ran.append("__repr__")
        return "armed"


@dataclasses.dataclass(repr=False)
class ArmedFields(Armed):
    value: Any
    made: Any = dataclasses.field(init=False, compare=False, default_factory=lambda: Armed.ran.append("factory"))

    def __post_init__(self):
        self.ran.append("__post_init__")


@dataclasses.dataclass(repr=False)
class ArmedDict(ArmedFields, collections.OrderedDict):
    def __setitem__(self, key, value):
        self.ran.append("__setitem__")
        super().__setitem__(key, value)

    def __post_init__(self):
        collections.OrderedDict.__setitem__(self, "value", self.value)


class ArmedItems(Armed, collections.UserDict):
    def __init__(self, data=None):
        self.ran.append("__init__")
        super().__init__(data)


class ArmedPair(NamedTuple("ArmedPair", [("left", Any), ("right", Any)])):
    def __new__(cls, left, right):
        Armed.ran.append("__new__")
        return super().__new__(cls, left, right)


@pytest.mark.parametrize("allowed", [False, True])
def test_no_code_of_a_class_runs(allowed):
    values = [ArmedFields(torch.ones(2)), ArmedDict(7), ArmedItems({"a": 1}), ArmedPair(1, 2)]
    document, tensors = encode(values, name="x")
    Armed.ran.clear()
    types = [type(value) for value in values] if allowed else []
    back = decode(json.loads(json.dumps(document)), tensors, types=types)
    assert [type(value) for value in back] == [type(value) for value in values]
    assert Armed.ran == []
    assert (back[0].value.tolist(), back[1].value, dict(back[1])) == ([1, 1], 7, {"value": 7})
    assert (back[2].data, tuple(back[3])) == ({"a": 1}, (1, 2))


@dataclasses.dataclass
class Finalized:
    path: Any

    def __del__(self):
        Armed.ran.append("__del__")


def test_a_class_with_a_finalizer_is_made_only_if_the_caller_allows_it():
    document, tensors = encode(Finalized("/etc/passwd"), name="x")
    Armed.ran.clear()
    with pytest.raises(CaptureError, match=r"Finalized has a finalizer, which would run .* pass the class in `types`"):
        decode(document, tensors)
    assert Armed.ran == []
    assert decode(document, tensors, types=[Finalized]).path == "/etc/passwd"


@dataclasses.dataclass
class Failure(Exception):
    value: Any


@dataclasses.dataclass
class Abstract(abc.ABC):
    value: Any

    @abc.abstractmethod
    def method(self): ...


@pytest.mark.parametrize("cls", [Listed, Module, Failure, Abstract])
def test_a_class_that_holds_more_than_fields_is_not_made(cls):
    document, tensors = encode(Plain(3), name="x")
    document["value"]["dataclass"]["class"] = {"module": __name__, "qualname": cls.__name__}
    with pytest.raises(CaptureError, match=f"{cls.__name__} could not be made from its stored fields"):
        decode(document, tensors)


def test_attributes_of_a_userdict_come_back_and_others_are_none():
    value = collections.UserDict(a=1)
    value.__dict__.update(count=torch.ones(2), lock=len, deep=[[len]])
    document, tensors = encode({"x": value, "y": torch.zeros(1)}, name="x")
    back = decode(json.loads(json.dumps(document)), tensors)
    assert (back["x"].data, back["x"].count.tolist(), back["x"].lock, back["x"].deep) == ({"a": 1}, [1, 1], None, None)
    assert back["y"].tolist() == [0]
    del document["value"]["dict"][0][1]["userdict"]["attributes"]  # as earlier versions wrote it
    assert vars(decode(document, tensors)["x"]) == {"data": {"a": 1}}
