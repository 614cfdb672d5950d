"""Effects of detection that a program could notice, and does not: mechanisms on which test suites of other packages
failed.

Seen to fail with the sources before their repairs (wrappers in Python, bounds of sparse tensors, weak references to
tensors); those about nested scopes, other layouts and operators defined anew stood before, and stand guard.
"""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn

import torchnan

METHODS = {
    "numpy": lambda x: x.numpy(),
    "tolist": lambda x: x.tolist(),
    "data_ptr": lambda x: x.data_ptr(),
    "untyped_storage": lambda x: x.untyped_storage(),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_stays_the_object_it_is(name):
    before = getattr(torch.Tensor, name)
    with torchnan.detect(action="log"):
        method = getattr(torch.Tensor, name)
        assert method is before is getattr(torch._C.TensorBase, name)
        assert inspect.ismethoddescriptor(method)
        assert method.__reduce__() == (getattr, (torch._C.TensorBase, name))  # it can be pickled
        with pytest.raises(TypeError, match="doesn't apply to a 'int' object"):
            method(3)


def test_functions_of_autograd_and_optimizers_stay_too():
    before = torch.autograd._engine_run_backward, vars(torch.autograd.Function)["apply"], torch.Tensor.__dlpack__
    with torchnan.detect(action="log"):
        assert torch.autograd._engine_run_backward is before[0]
        assert vars(torch.autograd.Function)["apply"] is before[1]
        assert torch.Tensor.__dlpack__ is before[2]
        with pytest.raises(RuntimeError, match="expect a Iterable"):
            torch._C._increment_version(3)
        x = torch.ones(2)
        torch._C._increment_version(one for one in [x])
        assert x._version == 1


def test_hooks_of_nested_scopes_end_with_the_last():
    reads = []

    def read(x):
        x.tolist()
        reads.append(len(watch.findings))

    with torchnan.detect(action="log") as watch:
        with torchnan.detect(action="log"):
            pass
        read(torch.ones(2) / 0)
    read(torch.ones(2) / 0)
    assert reads == [1, 1]


@pytest.mark.parametrize("name", ["numpy", "tolist"])
def test_a_warning_names_the_line_of_the_program(name):
    def traced(x):
        METHODS[name](x)
        return x + 1

    with torchnan.detect(action="log"):
        with pytest.warns(torch.jit.TracerWarning) as told:
            torch.jit.trace(traced, torch.ones(2), check_trace=False)
    tracer = [warning for warning in told if warning.category is torch.jit.TracerWarning]
    assert {warning.filename for warning in tracer} == {__file__}


@pytest.mark.parametrize("name", METHODS)
def test_dynamo_compiles_a_method_as_it_would(name):
    def compute(x):
        return METHODS[name](x), x + 1

    def graphs():
        torch._dynamo.reset()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            explained = torch._dynamo.explain(compute)(torch.ones(2))
        return explained.graph_count, explained.graph_break_count, [str(warning.message) for warning in told]

    plain = graphs()
    with torchnan.detect(action="log"):
        assert graphs() == plain


def test_a_function_mode_sees_pytorchs_own_methods():
    class Listing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen: list[object] = []
    with torchnan.detect(action="log"), Listing():
        for call in METHODS.values():
            call(torch.ones(2))
    assert {torch._C.TensorBase.numpy, torch._C.TensorBase.tolist, torch._C.TensorBase.data_ptr} <= set(seen)


def test_direct_calls_of_the_engine_are_checked():
    x = torch.ones(2, requires_grad=True)
    with torchnan.detect(action="log") as watch:
        loss = (x * 0).log().sum()
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward((loss,), (torch.ones(()),), False, False, (), allow_unreachable=True, accumulate_grad=True)
    assert watch.first.harm.kind == "backward"


class HalfBuilt(nn.Module):
    def __init__(self, kept):
        kept.append(self)
        raise ValueError("before super().__init__()")


class Peculiar(nn.Module):
    """Methods that a program may override with arbitrary code."""

    def named_parameters(self, *_, **__):
        raise RuntimeError("never called")

    named_modules = named_buffers = children = named_children = named_parameters

    def forward(self, x):
        return x.log().sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.last = Peculiar()

    def forward(self, x):
        return self.last(self.first(x) * 0)


def test_modules_that_are_half_built_or_peculiar_do_not_spoil_a_report():
    kept: list[nn.Module] = []
    with pytest.raises(ValueError, match="before super"):
        HalfBuilt(kept)
    net = Net()
    optimizer = torch.optim.SGD(net.first.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torchnan.detect(action="log") as watch:
            net(torch.ones(1, 2)).backward()
            optimizer.step()
            net(torch.ones(1, 2)).backward()
    assert watch.first.module == "last"
    assert watch.stats()["internal_errors"] == 0
    assert len(kept) == 1


def test_an_optimizer_may_keep_anything_as_its_state():
    class Odd(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter] = [1, parameter / 0]

    parameter = nn.Parameter(torch.ones(2))
    with torchnan.detect(action="log"):
        Odd([parameter], {}).step()


def large(layout):
    x = torch.randn(100, 100)
    if layout == "nested":
        return torch.nested.nested_tensor([x, x])
    return x.to_sparse(layout=layout) if layout is not torch._mkldnn else x.to_mkldnn()


@pytest.mark.filterwarnings("ignore:.*beta state:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, "nested", torch._mkldnn], ids=str)
def test_bounds_speak_of_plain_tensors_alone(layout):
    x = large(layout)
    with torchnan.detect() as watch:
        for op in (torch.relu, torch.tanh, torch.clone, lambda x: x * 2, lambda x: x @ torch.ones(100, 100)):
            try:
                op(x)
            except (NotImplementedError, RuntimeError):
                continue  # PyTorch has no kernel for this layout
    assert watch.stats()["internal_errors"] == 0


def test_a_sparse_result_that_is_bad_is_found_where_a_rule_would_bound_it():
    x = torch.randn(100, 100).to_sparse()
    x._values()[3] = float("inf")
    with torchnan.detect(action="log", when="origin") as watch:
        _ = x * 0
    assert watch.first.op == "aten::mul"


def test_compiled_autograd_with_sizes_that_are_symbols():
    x = torch.ones(3, requires_grad=True)
    with torchnan.detect(action="log"):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            (x / 0).sum().backward()
    assert torch.isinf(x.grad).all()
    torch._dynamo.reset()


def test_a_bad_tensor_can_be_swapped():
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
    with torchnan.detect(action="log"):
        with torch.no_grad():
            a.div_(0)
        torch.utils.swap_tensors(a, b)
    assert torch.equal(a, torch.zeros(2))


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="PyTorch 2.12 cannot run it: docs/limits.md")
def test_dynamo_and_modes_do_not_see_the_queries_of_torchnan():
    """A graph break puts an operation into a frame that Dynamo watches; explaining its NaN runs torchnan's Python
    code."""

    class Net(nn.Module):
        def forward(self, x):
            return x.log().sum()

    def compute(x):
        torch._dynamo.graph_break()
        return float(net(x * 0)) + float(torch.zeros(1).log().numpy()[0])

    net = Net()

    def compiled():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        Listing.seen.clear()
        with Listing():
            torch.compile(compute, backend="eager")(torch.ones(2))
        return {name: dict(counts) for name, counts in torch._dynamo.utils.counters.items()}, list(Listing.seen)

    class Listing(torch.overrides.TorchFunctionMode):
        seen: list[str] = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.seen.append(torch.overrides.resolve_name(function))
            return function(*args, **(kwargs or {}))

    compiled()  # the first call in a process has more to do
    plain = compiled()
    with torchnan.detect(action=lambda finding: finding.stack) as watch:
        assert compiled() == plain
    assert watch.first is not None
    torch._dynamo.reset()


def test_an_operator_may_be_defined_anew_with_another_schema():
    definitions = [
        ("again(Tensor x) -> Tensor", lambda x: x + 1, (torch.ones(2),)),
        ("again(Tensor x, Tensor y) -> (Tensor, Tensor)", lambda x, y: (x + y, x / y), (torch.ones(2), torch.ones(2))),
        ("again(Tensor[] x, int n) -> Tensor[]", lambda x, n: [one * n for one in x], ([torch.ones(2)], 3)),
    ]
    with torchnan.detect():
        for schema, function, arguments in definitions:
            library = torch.library.Library("torchnan_test_again", "DEF")
            library.define(schema)
            library.impl("again", function, "CPU")
            torch.ops.torchnan_test_again.again(*arguments)
            library._destroy()
            delattr(torch.ops, "torchnan_test_again")
