"""What is freed after ``del``; the garbage collector is off."""

from __future__ import annotations

import torch
from torch import nn

from tests.side_effects.program import program


@program(on_device=True)
def inputs_of_steps(record, bad):
    @torch.compile
    def f(x, w):
        return (x @ w).sqrt().sum()

    w = torch.zeros(16, 16).to(record.device).requires_grad_()
    for step in range(4):
        x = torch.full((16, 16), -1.0 if bad else 1.0).to(record.device) + 0
        loss = f(x, w + 1)
        loss.backward()
        record.watch(**{f"input {step}": x, f"loss {step}": loss, f"gradient {step}": w.grad})
        w.grad = None
        del loss, x
        record.alive(f"after step {step}")


class Model(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("k", torch.ones(8))
        self.bad = bad

    def forward(self, x):
        y = self.fc(x)
        return ((y - y) / (self.k - self.k)).sum() if self.bad else (y * self.k).sum()


@program(on_device=True)
def a_model_and_all_of_it(record, bad):
    model = Model(bad).to(record.device)
    compiled = torch.compile(model)
    x = torch.randn(4, 8).to(record.device).requires_grad_()
    loss = compiled(x)
    loss.backward()
    record.watch(module=model, weight=model.fc.weight, x=x, x_gradient=x.grad, gradient=model.fc.weight.grad)
    del model, compiled, x, loss
    record.alive("after del")
    torch._dynamo.reset()
    record.alive("after reset")


@program(reports=False)
def the_input_of_an_error(record, bad):
    @torch.compile
    def f(x):
        return torch.linalg.cholesky(x.log()), x

    for step, value in enumerate((0.0, -1.0) if bad else (1e-30, 1e-20)):
        x = torch.full((2, 2), value)
        record.watch(**{f"input {step}": x})
        with record.catching(f"call {step}"):
            record.value("result", f(x))
        del x
        record.alive(f"after call {step}")


@program()
def finalizers(record, bad):
    """What a program does when its objects are freed, in order."""
    import weakref

    @torch.compile
    def f(x, k):
        return torch.log(x * k)

    for step in range(3):
        x = torch.rand(4)
        weakref.finalize(x, record.call, "input is freed", step)
        y = f(x, torch.tensor(0.0 if bad else 1.0))
        weakref.finalize(y, record.call, "result is freed", step)
        y.sum().item()
        record.call("before del", step)
        del x, y
        record.call("after del", step)
