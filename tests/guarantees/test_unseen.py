"""Observers of operations do not see torchnan, even when it finds something: PyTorch's recorder, which gets every call
that passes the dispatcher, and a program's own modes and subclasses.

Fails when an inspection is a call: with `found != 0` in optimizer_hooks._scaler_skips, `tensor._values()` or no
DisableTorchFunction in _program.held, or hooks on methods that call them without handle_torch_function.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import torchnan
from tests.support.call_comparison import modes, recorder

NAN = float("nan")


def train(make_optimizer, gradient=None):
    """Two steps of a model whose loss turns NaN."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    optimizer = make_optimizer(model.parameters())
    for factor in (1.0, 0.0):
        optimizer.zero_grad()
        ((model(torch.ones(2, 3)) * factor).sqrt() / factor).sum().backward()
        optimizer.step()
    return list(model.parameters())


def scaled():
    weight = torch.ones(3, requires_grad=True)
    optimizer, scaler = torch.optim.Adam([weight], fused=True), torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return weight.log().sub(5).log().tolist()


def skipped_by_the_optimizer():
    """As GradScaler tells a fused optimizer to skip this step."""
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight], fused=True)
    (weight * NAN).sum().backward()
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    return weight.sub(5).log().tolist()


def sparse_gradient():
    table = nn.Embedding(4, 2, sparse=True)
    (table(torch.tensor([0, 2])) * 0).sqrt().sum().backward()
    torch.optim.SparseAdam(table.parameters()).step()
    return table.weight.grad, table.weight


def sparse():
    coo = torch.eye(3).to_sparse()
    return coo.div_(0), (-torch.eye(3)).to_sparse_csr().sqrt(), (coo * 2).to_dense().tolist()


def reads():
    x = torch.zeros(2, requires_grad=True)
    y = x.log() - x.log()
    return y.tolist(), y.detach().numpy(), y.sum().item(), repr(y), bool((y > 0).any())


def outside_values():
    model = nn.BatchNorm1d(3).eval()
    model.running_mean.fill_(NAN)
    model(torch.ones(2, 3)).sum().backward()
    return torch.empty(3).fill_(NAN).add_(1).tolist()


def double_backward():
    x = torch.zeros(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x * x).sqrt().sum(), x, create_graph=True)
    gradient.sum().backward()
    return x.grad


# Each of these has a finding.
PROGRAMS = {
    "training": lambda: train(lambda p: torch.optim.AdamW(p, foreach=False)),
    "training, foreach": lambda: train(lambda p: torch.optim.AdamW(p, foreach=True)),
    "training, fused": lambda: train(lambda p: torch.optim.AdamW(p, fused=True)),
    "loss scaling": scaled,
    "a step that does not count": skipped_by_the_optimizer,
    "sparse gradient": sparse_gradient,
    "sparse": sparse,
    "nested": lambda: torch.nested.nested_tensor([-torch.ones(2), -torch.ones(3)]).sqrt().unbind(),
    "reads": reads,
    "values from outside": outside_values,
    "double backward": double_backward,
    "complex": lambda: (torch.complex(torch.zeros(2), torch.zeros(2)).conj() / 0).abs().tolist(),
    "unused": lambda: torch.zeros(3).log().numel(),
}

OPTIONS = {
    "log": {"action": "log"},
    "warn": {"action": "warn"},
    "callback": {"action": lambda finding: str(finding)},
    "origin": {"action": "log", "when": "origin"},
    "exact": {"action": "log", "rescan_every": 1},
    "proofs alone": {"action": "log", "rescan_every": 0},
    "headroom": {"action": "log", "headroom": True},
}


def operations(program, observer, scope):
    seen = []
    with observer(seen), scope:
        held = program()
    del held
    return seen


@pytest.mark.breadth(8)
@pytest.mark.guarantee(6)
@pytest.mark.filterwarnings("ignore::torchnan.NonFiniteWarning", "ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_finding_dispatches_nothing(name, options, figure):
    program, count, findings = PROGRAMS[name], 0, 0
    program()  # PyTorch's one-time work is done
    for observer in (modes, recorder):
        watch = torchnan.detect(**OPTIONS[options])
        off = operations(program, observer, contextlib.nullcontext())
        assert operations(program, observer, watch) == off
        assert watch.findings
        assert watch.stats()["internal_errors"] == 0
        count, findings = count + len(off), findings + len(watch.findings)
    figure(
        "{findings:,} findings in programs of {operations:,} operations, 0 operations more",
        findings=findings,
        operations=count,
    )


@pytest.mark.guarantee(6)
def test_subclasses_and_modes_see_pytorchs_own_functions():
    """A table of overrides that was made before the detection still has its entries."""
    told = []

    class Overriding(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            told.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    methods = [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.data_ptr, torch.Tensor.untyped_storage]
    x = torch.ones(2).as_subclass(Overriding)
    with torchnan.detect(action="log") as watch:
        for method in ("tolist", "numpy", "data_ptr", "untyped_storage"):
            getattr(x, method)()
        held = torch.zeros(2).log()  # found among all tensors of the program, like any other
        held.tolist()
    assert told == methods
    assert len(watch.findings) == 1
