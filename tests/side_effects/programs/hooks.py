"""Hooks of modules, tensors, optimizers and state dicts, and function and dispatch modes."""

from __future__ import annotations

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.side_effects.program import BAD, program


class Model(nn.Module):
    """The logarithm of a layer, of zeros if it is bad."""

    def __init__(self, bad):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.factor = 0.0 if bad else 1.0

    def forward(self, x):
        return self.last(torch.log(self.first(x).square() * self.factor)).mean()


def train(record, model, steps=3, x=None):
    x = torch.linspace(0.5, 1, 8).reshape(2, 4) if x is None else x
    for step in range(steps):
        loss = model(x)
        loss.backward()
        record.value(f"loss {step}", loss)


@program()
def hooks_on_a_compiled_module(record, bad):
    compiled = torch.compile(Model(bad))
    compiled.register_forward_pre_hook(lambda *_: record.call("before"))
    compiled.register_forward_hook(lambda *_: record.call("after"))
    compiled.register_full_backward_hook(lambda *_: record.call("backward"))
    train(record, compiled)


@program()
def hooks_inside_a_compiled_module(record, bad):
    """Dynamo compiles those of modules into the graph; those of parameters run in the backward pass."""
    model = Model(bad)
    counts = {"forward": 0, "backward": 0}

    def count(name):
        counts[name] += 1

    model.first.register_forward_hook(lambda *_: count("forward"))
    model.last.register_full_backward_hook(lambda *_: count("backward"))
    model.first.weight.register_hook(lambda gradient: record.call("gradient", list(gradient.shape)))
    model.first.bias.register_post_accumulate_grad_hook(lambda parameter: record.call("accumulated", parameter.grad))
    train(record, torch.compile(model))
    record.value("counts", counts)


@program()
def hooks_of_all_modules(record, bad):
    model = Model(bad)
    inner = torch.compile(model.first)
    model.first = inner
    handles = [
        nn.modules.module.register_module_forward_hook(lambda m, *_: record.call("forward", type(m).__name__)),
        nn.modules.module.register_module_full_backward_hook(lambda m, *_: record.call("backward", type(m).__name__)),
    ]
    train(record, model)
    for handle in handles:
        handle.remove()


@program(reports=False)
def a_hook_that_cleans_a_gradient(record, bad):
    """The values end there: nothing is reported."""
    w = torch.full((4,), 0.0 if bad else 1.0, requires_grad=True)

    def clean(gradient):
        record.call("clean")
        return gradient.nan_to_num(0.0, 0.0, 0.0)

    w.register_hook(clean)
    loss = torch.compile(lambda w: torch.sqrt(w).sum())
    for _ in range(3):
        loss(w).backward()
        record.value("gradient", w.grad)


@program()
def hooks_of_results(record, bad):
    model = torch.compile(Model(bad))
    for _ in range(2):
        loss = model(torch.ones(2, 4))
        loss.register_hook(lambda gradient: record.call("root", gradient))
        loss.grad_fn.register_hook(lambda *_: record.call("node"))
        loss.grad_fn.register_prehook(lambda *_: record.call("before node"))
        loss.backward()


@program()
def a_multi_gradient_hook(record, bad):
    model = Model(bad)
    torch.autograd.graph.register_multi_grad_hook(
        list(model.parameters()), lambda gradients: record.call("all gradients", [g is None for g in gradients])
    )
    train(record, torch.compile(model))


@program()
def hooks_of_state_dicts(record, bad):
    model = Model(bad)
    model.register_state_dict_pre_hook(lambda *_: record.call("before saving"))
    model.register_state_dict_post_hook(lambda *_: record.call("after saving"))
    model.register_load_state_dict_pre_hook(lambda *_: record.call("before loading"))
    compiled = torch.compile(model)
    train(record, compiled)
    compiled.load_state_dict(compiled.state_dict())
    train(record, compiled)


@program()
def hooks_of_an_optimizer(record, bad):
    model = Model(bad)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda *_: record.call("before the step"))
    optimizer.register_step_post_hook(lambda *_: record.call("after the step"))
    compiled = torch.compile(model)
    for _ in range(3):
        optimizer.zero_grad()
        train(record, compiled, steps=1)
        optimizer.step()
    record.value("weights", list(model.parameters()))


@program()
def a_compiled_optimizer(record, bad):
    model = Model(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), eps=0.0 if bad else 1e-8)
    step = torch.compile(optimizer.step)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.ones(2, 4)
        x[:, 0] = 0
        model(x).backward()
        step()
    record.value("weights", list(model.parameters()))


class CountedFunctions(TorchFunctionMode):
    def __init__(self, record):
        super().__init__()
        self.record = record

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.record.call("function", getattr(func, "__name__", func))
        return func(*args, **(kwargs or {}))


class CountedOperations(TorchDispatchMode):
    def __init__(self, record):
        super().__init__()
        self.record = record

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.record.call("operation", func)
        return func(*args, **(kwargs or {}))


@program()
def a_function_mode(record, bad):
    model = torch.compile(Model(bad))
    with CountedFunctions(record):
        train(record, model, steps=2)


@program()
def a_function_mode_around_the_backward_pass(record, bad):
    model = torch.compile(Model(bad))
    loss = model(torch.ones(2, 4))
    with CountedFunctions(record):
        loss.backward()
    record.value("loss", loss)


@program()
def a_dispatch_mode(record, bad):
    model = torch.compile(Model(bad))
    with CountedOperations(record):
        train(record, model, steps=2)


@program()
def a_dispatch_mode_around_the_backward_pass(record, bad):
    model = torch.compile(Model(bad))
    loss = model(torch.ones(2, 4))
    with CountedOperations(record):
        loss.backward()
    record.value("loss", loss)


@program()
def floating_point_operations_are_counted(record, bad):
    model = torch.compile(Model(bad), backend="aot_eager")
    train(record, model, steps=1)
    with FlopCounterMode(display=False) as counter:
        train(record, model, steps=2)
    record.value("operations", counter.get_total_flops())


@program()
def a_default_device(record, bad):
    model = torch.compile(Model(bad))
    with torch.device("cpu"):
        train(record, model)
    torch.set_default_device("cpu")
    train(record, model)
    torch.set_default_device(None)


@program(variants=(BAD,))
def a_hook_that_raises(record, bad):
    model = Model(bad)

    def refuse(gradient):
        record.call("refuse")
        if not torch.isfinite(gradient).all():
            raise ValueError("a gradient is not finite")

    model.first.weight.register_hook(refuse)
    compiled = torch.compile(model)
    for step in range(3):
        with record.catching(f"step {step}"):
            compiled(torch.ones(2, 4)).backward()


@program()
def a_subclass_of_tensor(record, bad):
    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            record.call("function", getattr(func, "__name__", func))
            return super().__torch_function__(func, types, args, kwargs or {})

    f = torch.compile(lambda x, k: torch.log(x * k).sum(), backend="aot_eager")
    x = torch.ones(4).as_subclass(Named)
    for _ in range(2):
        with record.catching("call"):
            record.value("result", f(x, torch.tensor(0.0 if bad else 1.0)).item())
