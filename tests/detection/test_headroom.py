"""How close results are to the end of their range: right names, right values, and nothing from freed models."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import torchnan
from tests.support.forked_python import run_forked
from torchnan.detection.errors import DetectorWarning

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def outputs(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """The largest magnitude in the output of each Linear."""
    largest: dict[str, float] = {}
    hooks = [
        module.register_forward_hook(lambda _m, _i, y, name=name: largest.update({name: y.abs().max().item()}))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    return largest


def linears(told: list[torchnan.Headroom]) -> dict[str, float]:
    return {h.module: h.absmax for h in told if h.module and h.op in ("aten::mm", "aten::addmm")}


def only(told: list[torchnan.Headroom], module: str | None) -> torchnan.Headroom:
    (found,) = [h for h in told if h.module == module]
    return found


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"stacks": False}, {"backward": False}, {"rescan_every": 1}], ids=str)
def test_scanned_values_are_reported_exactly_and_under_their_module(dtype, grad, options):
    """Fails when the call site of the previous operation is used, or a bound instead of a measured value."""
    model, x = Model().to(dtype), torch.randn(8, 16).to(dtype)
    expected = outputs(model, x)
    with torchnan.detect(headroom=True, **{"rescan_every": 0, **options}) as watch, torch.set_grad_enabled(grad):
        model(x)
        told = watch.headroom()
    assert linears(told) == expected
    assert set(expected) == {f"layers.{i}.{name}" for i in range(2) for name in ("up", "down")}
    assert all(h.exact and h.absmax == h.bound for h in told)
    assert {(h.dtype, h.limit) for h in told} == {(str(dtype).removeprefix("torch."), torch.finfo(dtype).max)}
    assert {h.module: h.op for h in told if h.op == "aten::relu"} == {f"layers.{i}": "aten::relu" for i in range(2)}
    assert [h.used for h in told] == sorted((h.used for h in told), reverse=True)


def test_values_near_the_end_of_float16_are_measured():
    """Bounds prove nothing there. Fails when a scanned value is recorded as a proved one."""
    model, x = Model(128).half(), torch.randn(64, 128).half()
    with torch.no_grad():
        model.layers[1].down.weight.mul_(2000)
    with torchnan.detect(headroom=True, rescan_every=0) as watch:
        y = model(x)
        told = watch.headroom()
    first = told[0]
    assert (first.module, first.exact) == ("layers.1.down", True)
    assert first.absmax == y.abs().max().item() > 300
    assert first.used == first.absmax / 65504
    assert str(first) == f"layers.1.down (aten::mm) reached {first.absmax:.6g}, {first.used:.2g} of float16's range"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_proved_values_are_reported_by_their_bound(dtype):
    """Fails when note_proved() records nothing, and when bounds come before scanned values."""
    x = torch.rand(100, 100).to(dtype)
    with torchnan.detect(headroom=True, rescan_every=0) as watch:
        y = x.sigmoid()
        watch.headroom()
        z = y.tanh()
        small = y[0] * 1e-3
        told = watch.headroom()
    assert [(h.op, h.exact) for h in told] == [("aten::mul", True), ("aten::tanh", False)]
    assert told[0].absmax == small.abs().max().item()
    assert z.abs().max().item() <= told[1].absmax == told[1].bound < 1.1
    assert "is within" in str(told[1])


def test_a_measure_is_preferred_to_a_larger_bound():
    """For one module. Fails when the larger of both is reported."""

    class Both(nn.Module):
        def forward(self, x):
            return x.mm(x)[0] * 0.5

    model, x = Both(), torch.full((100, 100), 3.0)
    with torchnan.detect(headroom=True, rescan_every=0) as watch:
        model(x.clone())
        (told,) = [h for h in watch.headroom() if h.module == ""]
    assert (told.op, told.exact, told.absmax) == ("aten::mul", True, 450)
    assert 900 <= told.bound < 1.1 * 900


def test_a_sampling_watch_measures_everything_in_turn():
    """Fails when a sampled result is recorded by its bound."""
    x = torch.rand(100, 100)
    with torchnan.detect(headroom=True, rescan_every=3) as watch:
        for step in range(1, 4):
            watch.mark_step(step)
            y = x.sigmoid()
        (told,) = watch.headroom()
    assert (told.exact, told.absmax) == (True, y.abs().max().item())


def test_growth_is_seen_and_each_answer_covers_the_time_since_the_last():
    """Fails when headroom() does not clear the values that it has returned."""
    model, x = Model().half(), torch.randn(8, 16).half()
    weight = model.layers[1].down.weight
    with torchnan.detect(headroom=True, rescan_every=0) as watch:
        for factor in (2, 2, 0.25, 2):
            y = model(x)
            told = only(watch.headroom(), "layers.1.down").absmax
            assert watch.headroom() == []
            assert told == y.abs().max().item()
            with torch.no_grad():
                weight.mul_(factor)
            watch.headroom()


def test_only_the_forward_pass_is_reported():
    """Neither gradients nor an optimizer's arithmetic count. Fails when optimizer call sites are kept, or the graph
    task is not checked."""
    model, x = Model(), torch.randn(8, 16)
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
        with torchnan.detect(headroom=True, rescan_every=0) as watch:
            loss, one = model(x).square().mean(), torch.tensor(1.0)
            watch.headroom()
            loss.backward(one)
            assert watch.headroom() == []
            optimizer.step()
            optimizer.step(lambda: model(x).sum())  # a closure's is a forward pass
            told = watch.headroom()
        assert {h.module for h in told} == {f"layers.{i}{part}" for i in range(2) for part in ("", ".up", ".down")} | {
            None
        }
        assert [h.op for h in told if h.module is None] == ["aten::sum"]


def test_a_checkpoint_is_reported_once():
    """Recomputation in the backward pass was already reported in the forward pass."""
    model, x = Model(), torch.randn(8, 16, requires_grad=True)
    with torchnan.detect(headroom=True, rescan_every=0) as watch:
        y, one = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum(), torch.tensor(1.0)
        assert len(linears(watch.headroom())) == 4
        y.backward(one)
        assert watch.headroom() == []


def test_a_nonfinite_value_is_a_finding_and_has_no_headroom():
    """Fails when infinity is the largest."""
    with torchnan.detect(headroom=True, action="log") as watch:
        x = torch.ones(4).half() * 60000
        (x * 2).sum().item()
        told = watch.headroom()
    assert watch.first.op == "aten::mul"
    assert max(h.absmax for h in told) == 60000


def test_threads_are_reported_together():
    """Each runs a different model. Fails when call sites are not distinguished."""
    models = [Model().half() for _ in range(4)]
    inputs = [torch.randn(8, 16).half() * (i + 1) for i in range(4)]
    expected = [outputs(model, x) for model, x in zip(models, inputs, strict=True)]
    watch = torchnan.detect(headroom=True, rescan_every=0)

    def work(i: int) -> None:
        with watch:
            for _ in range(50):
                models[i](inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = {name: max(one[name] for one in expected) for name in expected[0]}
    assert linears(watch.headroom()) == together


def test_names_of_freed_modules_are_not_reused():
    """Many modules, each at the address of the previous one. Fails when has_modules_of() in stack_table.cpp does not
    check whether the modules of a site are alive."""

    class Parent(nn.Module):
        def forward(self, x):
            return self._modules[self.name](x)

    addresses = set()
    x, parent = torch.randn(4, 16), Parent()
    with torchnan.detect(headroom=True, rescan_every=0) as watch:
        for i in range(100):  # Python gives an address away again sooner or later
            parent.name = f"part{i}"
            parent.add_module(parent.name, nn.Linear(16, 4))
            addresses.add(id(parent._modules[parent.name]))
            parent(x)
            assert {h.module for h in watch.headroom() if h.module is not None} == {parent.name}
            parent(x)
            del parent._modules[parent.name]
            assert {h.module for h in watch.headroom() if h.module is not None} == {""}  # the parent's: it called
    assert len(addresses) < 100


def test_a_full_table_is_counted_and_reported():
    """Fails when the results without room are not counted."""

    class Neg(nn.Module):
        def forward(self, x):
            return x.neg()

    many = nn.Sequential(*(Neg() for _ in range(20000)))  # call sites are distinguished by the module, too
    with torchnan.detect(headroom=True, rescan_every=0) as watch:
        x = torch.ones(2)
        assert watch.stats()["headroom_dropped"] == 0
        many(x)
        missed = watch.stats()["headroom_dropped"]
        assert 20000 - 2**14 <= missed < 20000
        with pytest.warns(DetectorWarning, match="has no room for more call sites"):
            told = watch.headroom()
    assert len([h for h in told if h.module]) == 20000 - missed


def test_nothing_is_kept_unless_it_is_asked_for():
    """Fails when headroom() answers without the option."""
    with torchnan.detect(rescan_every=0) as watch:
        torch.ones(4) * 2
        with pytest.raises(RuntimeError, match=r"because the option was off: use detect\(headroom=True\)"):
            watch.headroom()
        assert watch.stats()["headroom_dropped"] == 0


def test_it_can_be_asked_after_the_end():
    with torchnan.detect(headroom=True, rescan_every=0) as watch:
        torch.ones(4) * 2
    assert max(h.absmax for h in watch.headroom()) == 2


def test_where_all_is_switched_off_there_is_none():
    code = """
import torch, torchnan
with torchnan.detect(headroom=True, rescan_every=0) as watch:
    torch.ones(4) * 2
print(watch.headroom())
"""
    ended = run_forked(code, TORCHNAN="0")
    assert ended.stdout == "[]\n", ended.stderr


def test_the_environment_asks_for_it():
    """Fails when the option does not reach the core."""
    code = """
import torch, torchnan
torch.ones(4) * 2
print(torchnan.detection.session._program_wide.headroom()[0].absmax)
"""
    ended = run_forked(code, TORCHNAN="raise", TORCHNAN_HEADROOM="1")
    assert ended.stdout == "2.0\n", ended.stderr
