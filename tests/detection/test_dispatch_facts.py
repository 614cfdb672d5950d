"""The assumptions of torchnan about PyTorch, as programs. A new PyTorch that breaks one of them breaks torchnan, and
these tests fail first."""

from __future__ import annotations

import threading

import pytest
import torch

import torchnan
from torchnan._load import _C
from torchnan.training.guard.remedies.call import CallMode, Makers

KEY = _C.interceptor_key_name()


def included() -> bool:
    return torch._C._dispatch_tls_local_include_set().has(torch._C._parse_dispatch_key(KEY))


def test_the_key_is_ours_and_lies_below_autograd_and_from_2_13_on_below_python():
    key = torch._C._parse_dispatch_key(KEY)
    assert torch._C._dispatch_has_backend_fallback(key)
    python, autograd = torch._C.DispatchKey.Python, torch._C.DispatchKey.AutogradFunctionality
    below_python = torch._C._dispatch_keyset_full_after(python)
    assert below_python.has(key) == (torch.__version__ >= (2, 13))
    assert torch._C._dispatch_keyset_full_after(autograd).has(key)


def test_a_mode_above_autograd_sees_whole_operators_and_its_replacements_are_differentiated():
    """The mode is a SchemaCheckMode by name only: PyTorch takes three classes there."""
    seen = []

    def clamp_logarithm(call):
        seen.append(call.operator)
        return call["self"].clamp(min=1.0).log() if call.operator == "log" else call.run()

    x = torch.tensor([0.0, 2.0], requires_grad=True)
    with CallMode(clamp_logarithm, Makers()):
        loss = torch.nn.functional.softmax(torch.ones(2), 0).sum() + x.log().sum()
        during_forward = list(seen)
        loss.backward()
    assert during_forward == ["ones", "softmax", "sum", "log", "sum", "add"]
    assert x.grad.tolist() == [0.0, 0.5]
    assert seen[6] == "ones_like"
    del seen[:]
    x.log()
    assert seen == []


def test_the_key_is_on_inside_a_scope_only_and_for_its_thread_only():
    elsewhere = []
    assert not included()
    with torchnan.detect():
        assert included()
        thread = threading.Thread(target=lambda: elsewhere.append(included()))
        thread.start()
        thread.join()
    assert not included()
    assert elsewhere == [False]


def test_the_key_survives_inference_mode():
    with torchnan.detect(action="log") as watch:
        with torch.inference_mode():
            torch.log(torch.tensor(-1.0)).item()
        assert included()
    assert watch.first.op == "aten::log"


def test_the_backward_pass_carries_the_key_of_its_caller():
    x = torch.zeros(1, requires_grad=True)
    y = x.sqrt()
    with torchnan.detect(action="log") as watch:
        y.backward()
    assert watch.first.node == "SqrtBackward0"


def test_a_second_fallback_on_the_key_is_refused():
    library = torch.library.Library("_", "IMPL")
    with pytest.raises(RuntimeError, match="multiple backend fallbacks"):
        library.fallback(lambda *args: None, KEY)


def test_views_cost_nothing_and_composites_come_as_their_parts():
    x = torch.randn(4, 4, requires_grad=True)
    with torchnan.detect() as watch:
        x.view(-1)[2:].reshape(2, 7).t().detach()
        assert watch.stats()["ops"] == 0
        with torch.inference_mode():
            torch.nn.functional.linear(x, x)
    assert watch.stats()["ops"] == 1  # mm, not linear


def test_kernels_inside_kernels_are_not_seen():
    with torchnan.detect() as watch:
        torch.nn.functional.layer_norm(torch.randn(3, 4), (4,))
    assert watch.stats()["ops"] == 2  # randn, native_layer_norm: none of the empties and views inside


def test_the_sequence_number_identifies_the_node_of_a_forward_op():
    with torchnan.detect() as watch:
        w = torch.ones(3, requires_grad=True)
        (w * 2).exp().sum().backward()
        assert watch.stats()["call_sites"] >= 3


def test_higher_order_ops_let_the_key_pass():
    with torchnan.detect():
        assert torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),)).sum() == 4.0
