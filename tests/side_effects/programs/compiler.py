"""What users do with torch.compile: resets, breaks, dynamic shapes, limits, stances, passes, backends and logs."""

from __future__ import annotations

import contextlib
import logging

import torch
import torch._dynamo.callback
import torch._inductor.config
import torch._logging
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from tests.side_effects.program import COMPILED, program

VARIANTS = ["a" * i for i in range(1, 6)]  # five graphs, below the limit of eight


def factor(bad):
    return torch.tensor(0.0 if bad else 1.0)


@program()
def reset_between_forward_and_backward(record, bad):
    model = torch.compile(nn.Linear(4, 4))
    for _ in range(2):
        loss = (model(torch.ones(2, 4)).square() * factor(bad)).log().sum()
        inner = torch.compile(lambda x, k: torch.sqrt(x * k).sum())(torch.ones(4, requires_grad=True), factor(bad))
        torch._dynamo.reset()
        loss.backward()
        inner.backward()
        record.value("loss", loss)
        record.counters("after a step")


@program(on_device=True)
def graph_breaks(record, bad):
    seen = []

    @torch.compile
    def f(x, k):
        y = torch.relu(x) + 1
        seen.append("first")
        print("between")
        y = torch.log(y * k)
        torch._dynamo.graph_break()
        seen.append("last")
        return y.sum()

    x = torch.ones(4).to(record.device).requires_grad_()
    for _ in range(3):
        loss = f(x, factor(bad).to(record.device))
        loss.backward()
        record.value("loss", loss)
    record.value("seen", seen)


@program(on_device=True)
def dynamic_shapes(record, bad):
    f = torch.compile(lambda x, k: torch.log(x * k).sum())
    for n in (3, 4, 5, 9, 4):
        x = torch.ones(n).to(record.device).requires_grad_()
        loss = f(x, factor(bad).to(record.device))
        loss.backward()
        record.value(f"gradient of {n}", x.grad)
        record.counters(f"after {n}")


@program(ways=(COMPILED,))
def marked_dynamic(record, bad):
    f = torch.compile(lambda x, k: torch.log(x * k / x.shape[0]).sum(), fullgraph=True)
    for n in (3, 7, 8):
        x = torch.ones(n, 2)
        torch._dynamo.mark_dynamic(x, 0)
        record.value("result", f(x, factor(bad)))


@program()
def the_limit_of_recompilations(record, bad):
    """The tenth variant runs as it is written."""

    @torch.compile(backend="aot_eager")
    def f(x, k, text):
        return torch.log(x * k) * len(text)

    for i in range(12):
        record.value("result", f(torch.ones(3), factor(bad), "a" * i).sum())
        record.counters(f"after {i}")


def variants_compiled_before(record, bad, then=contextlib.nullcontext, **options):
    @torch.compile(backend="aot_eager", **options)
    def f(x, k, text):
        return torch.log(x * k) * len(text)

    for text in VARIANTS:
        f(torch.ones(3), torch.tensor(1.0), text)
    with then():
        with record.detection(), record.catching("under detection"):
            for text in VARIANTS:
                record.value("result", f(torch.ones(3), factor(bad), text))
        with record.catching("afterwards"):
            for text in VARIANTS:
                record.value("result", f(torch.ones(3), factor(bad), text))


@program(places_detection=True)
def detection_begins_below_the_limit(record, bad):
    variants_compiled_before(record, bad)


@program(places_detection=True, ways=(COMPILED,))
def detection_begins_with_full_graphs(record, bad):
    variants_compiled_before(record, bad, fullgraph=True)


@program(places_detection=True)
def detection_begins_where_recompiling_fails(record, bad):
    def stance():
        return torch.compiler.set_stance("fail_on_recompile")

    variants_compiled_before(record, bad, stance)


@program(places_detection=True)
def detection_begins_where_recompiling_is_an_error(record, bad):
    def forbidden():
        return torch._dynamo.config.patch(error_on_recompile=True)

    variants_compiled_before(record, bad, forbidden)


@program(places_detection=True, ways=(COMPILED,))
def detection_begins_and_ends_again_and_again(record, bad):
    @torch.compile
    def f(x, k):
        return torch.log(x * k).sum()

    for step in range(4):
        record.value("outside", f(torch.ones(4), factor(False)))
        with record.detection():
            record.value("inside", f(torch.ones(4), factor(bad)))
        record.counters(f"after {step}")


@program()
def stances(record, bad):
    @torch.compile
    def f(x, k):
        return torch.log(x * k).sum()

    for stance in ("default", "force_eager", "eager_on_recompile", "fail_on_recompile"):
        with torch.compiler.set_stance(stance), record.catching(stance):
            record.value(stance, f(torch.ones(4), factor(bad)))
            record.value(stance, f(torch.ones(4, dtype=torch.double), factor(bad)))
        record.counters(stance)


@program()
def callbacks_of_compilations(record, bad):
    handler = torch._dynamo.callback.callback_handler
    handler.register_start_callback(lambda *args: record.call("compilation starts"))
    handler.register_end_callback(lambda *args: record.call("compilation ends"))
    f = torch.compile(lambda x, k: torch.log(x * k).sum())
    for _ in range(3):
        x = torch.ones(4, requires_grad=True)
        f(x, factor(bad)).backward()
        record.value("gradient", x.grad)


class CountedPass(CustomGraphPass):
    def __init__(self, record, name):
        self.record, self.name = record, name

    def __call__(self, graph):
        self.record.call(self.name, len(graph.nodes))

    def uuid(self):
        return self.name


@program(ways=(COMPILED,), generates_code=True)
def passes_of_the_program(record, bad):
    config = torch._inductor.config
    config.fx_graph_cache = False
    for name in ("post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_post_pass"):
        setattr(config, name, CountedPass(record, name))

    def pre_grad(graph):
        record.call("pre_grad", len(graph.nodes))

    config.pre_grad_custom_pass = pre_grad
    f = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5) @ x)
    for value in (1.0, 1e30 if bad else 1.0, 1e30 if bad else 1.0):
        f(torch.full((8, 8), value)).sum().item()


@program()
def a_backend_of_the_program(record, bad):
    def backend(graph, inputs):
        record.call("backend", len(graph.graph.nodes), [type(x).__name__ for x in inputs])

        def run(*args):
            record.call("graph")
            return graph(*args)

        return run

    f = torch.compile(lambda x, k: torch.log(x * k).sum(), backend=backend)
    for n in (3, 3, 4):
        record.value("result", f(torch.ones(n), factor(bad)))


@program()
def a_backend_that_wraps_inductor(record, bad):
    from torch._inductor.compile_fx import compile_fx

    def backend(graph, inputs):
        record.call("backend", len(graph.graph.nodes))
        compiled = compile_fx(graph, inputs)

        def run(*args):
            record.call("graph")
            return compiled(*args)

        return run

    f = torch.compile(lambda x, k: torch.log(x * k).sum(), backend=backend)
    x = torch.ones(4, requires_grad=True)
    for _ in range(3):
        f(x, factor(bad)).backward()
        record.value("gradient", x.grad)


@program()
def logs_of_the_compiler(record, bad):
    """What a program asks to be logged goes to stderr, and to its own handler."""

    class Handler(logging.Handler):
        def emit(self, entry):
            record.call("logged", entry.name, entry.getMessage().splitlines()[0][:60])

    torch._logging.set_logs(recompiles=True, graph_breaks=True, graph_code=True)
    handler = Handler()
    logging.getLogger("torch._dynamo").addHandler(handler)
    f = torch.compile(lambda x, k: torch.log(x * k).sum())
    for n in (3, 4, 5):
        record.value("result", f(torch.ones(n), factor(bad)))
    logging.getLogger("torch._dynamo").removeHandler(handler)
    torch._logging.set_logs()


@program()
def an_explanation_of_dynamo(record, bad):
    def f(x, k):
        y = x + 1
        torch._dynamo.graph_break()
        return torch.log(y * k)

    explained = torch._dynamo.explain(f)(torch.ones(3), factor(bad))
    record.value("graphs", explained.graph_count)
    record.value("breaks", explained.graph_break_count)
    record.value("result", f(torch.ones(3), factor(bad)).sum().item())


@program()
def an_exported_program(record, bad):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x, k):
            return torch.log(self.fc(x).square() * k).sum()

    exported = torch.export.export(Model(), (torch.ones(2, 4), factor(bad)))
    compiled = torch.compile(exported.module())
    for _ in range(2):
        loss = compiled(torch.ones(2, 4), factor(bad))
        loss.backward()
        record.value("loss", loss)


@program()
def compiled_autograd(record, bad):
    w = torch.ones(4, requires_grad=True)

    def step(k):
        loss = torch.compile(lambda w: torch.sqrt(w * k).sum())(w)
        loss.backward()
        return loss

    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(step)
        for _ in range(2):
            record.value("loss", compiled(factor(bad)))
            record.value("gradient", w.grad)


@program()
def functions_that_are_not_compiled(record, bad):
    @torch._dynamo.disable
    def beside(x):
        record.call("beside", x)
        return x + 1

    @torch._dynamo.assume_constant_result
    def constant():
        record.call("constant")
        return 2

    @torch.compile
    def f(x, k):
        return torch.log(beside(x * k) * k * constant()).sum()

    for _ in range(3):
        record.value("result", f(torch.ones(4), factor(bad)))


@program()
def control_flow(record, bad):
    @torch.compile
    def f(x, k):
        def zero(x):
            return torch.log(x * k)

        def other(x):
            return torch.exp(x)

        y = torch.cond(k.sum() < 2, zero, other, (x,))
        _, z = torch._higher_order_ops.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * 2), (torch.tensor(0), y))
        return z.sum()

    for _ in range(2):
        with record.catching("call"):
            record.value("result", f(torch.ones(4), factor(bad)))


@program()
def code_that_is_compiled_in_a_compiled_region(record, bad):
    inner = torch.compile(lambda x, k: torch.log(x * k))
    outer = torch.compile(lambda x, k: inner(x, k).sum())
    for _ in range(2):
        record.value("inner", inner(torch.ones(3), factor(bad)))
        record.value("outer", outer(torch.ones(3), factor(bad)))


@program()
def transforms_of_functions(record, bad):
    def loss(w, x, k):
        return torch.sqrt(w * x * k).sum()

    gradient = torch.compile(torch.func.grad(loss))
    rows = torch.compile(torch.func.vmap(loss, in_dims=(None, 0, None)))
    w, x = torch.ones(4), torch.ones(3, 4)
    for _ in range(2):
        record.value("gradient", gradient(w, x, factor(bad)))
        record.value("rows", rows(w, x, factor(bad)))


@program()
def arguments_that_are_overwritten(record, bad):
    @torch.compile
    def f(x, state, k):
        state.mul_(0.5).add_(x * 0.5)
        x.div_(state * k)
        return x.sum()

    state = torch.ones(4)
    for _ in range(3):
        x = torch.ones(4)
        record.value("result", f(x, state, factor(bad)))
        record.value("overwritten", [x, state])


@program()
def batch_normalization(record, bad):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    compiled = torch.compile(model)
    for step in range(3):
        loss = torch.log(compiled(torch.randn(8, 4)).square() * factor(bad) + (1 - bad)).sum()
        loss.backward()
        x = torch.full((8, 4), float("inf")) if bad and step == 1 else torch.ones(8, 4)
        with torch.no_grad():
            record.value("normalized", compiled(x))
        record.value("statistics", dict(model[1].named_buffers()))


@program(ways=(COMPILED,), generates_code=True)
def generated_kernels(record, bad):
    f = torch.compile(lambda x, k: (torch.log(x * k) + torch.rand_like(x)).sum())
    x = torch.ones(8, requires_grad=True)
    for _ in range(2):
        f(x, factor(bad)).backward()
        record.value("gradient", x.grad)
