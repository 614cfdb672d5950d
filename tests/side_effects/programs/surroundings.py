"""What surrounds a training: custom operators, profilers, processes, ranks, loaders, copies, autocast, errors."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import sys
import threading
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.side_effects.program import BAD, COMPILED, program


def factor(bad):
    return torch.tensor(0.0 if bad else 1.0)


class Model(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.factor = 0.0 if bad else 1.0

    def forward(self, x):
        return torch.log(self.fc(x).square() * self.factor).sum()


# -- custom operators and functions


@program()
def a_custom_operator_that_counts(record, bad):
    calls = []

    @torch.library.custom_op("harness::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        record.call("counted", threading.current_thread() is threading.main_thread())
        return x * len(calls)

    @counted.register_fake
    def _(x):
        return torch.empty_like(x)

    f = torch.compile(lambda x, k: torch.log(counted(x) * k).sum())
    for _ in range(3):
        record.value("result", f(torch.ones(4), factor(bad)))


@program()
def a_custom_operator_with_a_backward_pass(record, bad):
    @torch.library.custom_op("harness::root", mutates_args=())
    def root(x: torch.Tensor) -> torch.Tensor:
        record.call("root")
        return x.sqrt()

    @torch.library.custom_op("harness::root_backward", mutates_args=())
    def root_backward(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        record.call("root_backward")
        return gradient / (2 * y)

    root.register_fake(lambda x: torch.empty_like(x))
    root_backward.register_fake(lambda gradient, y: torch.empty_like(y))
    root.register_autograd(
        lambda ctx, gradient: root_backward(gradient, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    f = torch.compile(lambda x: root(x).sum())
    for _ in range(3):
        x = torch.full((4,), 0.0 if bad else 1.0, requires_grad=True)
        f(x).backward()
        record.value("gradient", x.grad)


@program()
def a_custom_operator_that_writes(record, bad):
    @torch.library.custom_op("harness::push", mutates_args=("queue",))
    def push(queue: torch.Tensor, x: torch.Tensor) -> None:
        record.call("push", x)
        queue.copy_(torch.roll(queue, 1, 0))
        queue[0] = x.sum()

    @torch.compile(backend="aot_eager")
    def f(queue, x, k):
        push(queue, x)
        return torch.log(queue * k).sum()

    queue = torch.ones(4)
    for i in range(3):
        record.value("result", f(queue, torch.full((2,), float(i + 1)), factor(bad)))
        record.value("queue", queue)


@program()
def a_custom_operator_that_prints_and_warns(record, bad):
    @torch.library.custom_op("harness::loud", mutates_args=())
    def loud(x: torch.Tensor) -> torch.Tensor:
        print("loud")
        warnings.warn("loud", stacklevel=1)
        return x.clone()

    loud.register_fake(torch.empty_like)
    f = torch.compile(lambda x, k: torch.log(loud(x) * k).sum())
    for _ in range(3):
        record.value("result", f(torch.ones(4), factor(bad)))


@program()
def a_function_with_a_backward_of_its_own(record, bad):
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.sqrt()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            record.call("backward")
            return gradient / (2 * ctx.saved_tensors[0])

    f = torch.compile(lambda x: (x * 2).sum())
    for _ in range(3):
        x = torch.full((4,), 0.0 if bad else 1.0, requires_grad=True)
        f(Root.apply(x)).backward()
        record.value("gradient", x.grad)


@program()
def a_file_that_a_region_writes(record, bad):
    """A custom operator appends a line for each call."""

    @torch.library.custom_op("harness::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        with open("notes.txt", "a") as file:
            print("called", file=file)
        return x.clone()

    noted.register_fake(torch.empty_like)
    f = torch.compile(lambda x, k: torch.log(noted(x) * k).sum())
    for _ in range(3):
        record.value("result", f(torch.ones(4), factor(bad)))
    with open("notes.txt") as file:
        record.value("lines", file.read().split())


# -- profilers


@program()
def a_profile(record, bad):
    model = torch.compile(Model(bad))
    model(torch.ones(2, 4)).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            with torch.profiler.record_function("step"):
                model(torch.ones(2, 4)).backward()
    counts = {event.key: event.count for event in profile.key_averages()}
    record.value("events", dict(sorted(counts.items())))


@program()
def a_profiler_of_python(record, bad):
    """Counts the calls of the functions of this file."""
    model = torch.compile(Model(bad), backend="aot_eager")
    counts = {}

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == __file__:
            counts[frame.f_code.co_name] = counts.get(frame.f_code.co_name, 0) + 1

    model(torch.ones(2, 4))
    sys.setprofile(count)
    for _ in range(3):
        model(torch.ones(2, 4)).backward()
    sys.setprofile(None)
    record.value("calls", dict(sorted(counts.items())))


@program()
def a_tracer_of_lines(record, bad):
    """Counts the lines of this file that are executed."""
    model = torch.compile(Model(bad), backend="aot_eager")
    lines = []

    def trace(frame, event, argument):
        if frame.f_code.co_filename != __file__:
            return None
        lines.append(f"{frame.f_code.co_name} {event}")
        return trace

    model(torch.ones(2, 4))
    sys.settrace(trace)
    for _ in range(2):
        model(torch.ones(2, 4)).backward()
    sys.settrace(None)
    record.value("lines", lines)


# -- processes, ranks and loaders


@program()
def a_forked_child(record, bad):
    """The child calls a region that its parent has compiled."""
    f = torch.compile(lambda x, k: torch.log(x * k).sum())
    record.value("result", f(torch.ones(4), factor(bad)))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        results = [f(torch.ones(n), factor(bad)).item() for n in (4, 4, 5)]
        os.write(writing, f"{results} {torch.rand(1).item()}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        record.value("in the child", file.read())
    record.value("status", os.waitpid(child, 0)[1])
    record.value("result", f(torch.ones(4), factor(bad)))


class Items(Dataset):
    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((4,), 0.0 if self.bad and i == 5 else float(i + 1)) + torch.rand(4) * 0


@program()
def workers_of_a_loader(record, bad):
    f = torch.compile(lambda x: torch.log(x).sum())
    context = multiprocessing.get_context("fork")
    for workers in (0, 2):
        loader = DataLoader(
            Items(bad),
            batch_size=2,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context=context if workers else None,
            worker_init_fn=None,
        )
        for x in loader:
            record.value("batch", x)
            record.value("loss", f(x))
    for thread in threading.enumerate():  # of the queues to the workers
        if thread is not threading.main_thread():
            thread.join()


@program()
def a_loader_that_pins_its_generator(record, bad):
    f = torch.compile(lambda x: torch.log(x).sum())
    generator = torch.Generator().manual_seed(2)
    for x in DataLoader(Items(bad), batch_size=2, shuffle=True, generator=generator):
        record.call("batch", x)
        record.value("loss", f(x))
    record.value("generator", torch.rand(2, generator=generator))


def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def train_ranks(record, model, steps=3):
    for step in range(steps):
        with record.catching(f"step {step}"):
            loss = model(torch.ones(2, 4))
            loss.backward()
            record.value("loss", loss)
    record.value("gradients", [parameter.grad for parameter in model.parameters()])
    dist.destroy_process_group()


def with_hook(record, model):
    def hook(state, bucket):
        record.call("communicate", bucket.index(), list(bucket.buffer().shape))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, hook)
    return model


@program()
def ranks_of_a_compiled_model(record, bad):
    one_rank()
    model = nn.parallel.DistributedDataParallel(torch.compile(Model(bad)))
    train_ranks(record, with_hook(record, model))


@program()
def a_compiled_model_of_ranks(record, bad):
    one_rank()
    model = with_hook(record, nn.parallel.DistributedDataParallel(Model(bad)))
    train_ranks(record, torch.compile(model))


@program()
def a_collective_in_a_region(record, bad):
    one_rank()

    @torch.compile
    def f(x, k):
        y = dist._functional_collectives.all_reduce(torch.log(x * k), "sum", dist.group.WORLD)
        return y.sum()

    for _ in range(3):
        record.value("result", f(torch.ones(4), factor(bad)))
    dist.destroy_process_group()


# -- copies


@program()
def copies_of_a_compiled_model(record, bad):
    compiled = torch.compile(Model(bad))
    loss = compiled(torch.ones(2, 4))
    copied = copy.deepcopy(compiled)
    saved = io.BytesIO()
    torch.save(compiled.state_dict(), saved)
    saved.seek(0)
    copied.load_state_dict(torch.load(saved))
    for model in (compiled, copied):
        loss = model(torch.ones(2, 4))
        loss.backward()
        record.value("loss", loss)
    record.value("attributes", sorted(vars(compiled)))


@program()
def a_saved_model(record, bad):
    compiled = torch.compile(Model(bad))
    compiled(torch.ones(2, 4)).backward()
    saved = io.BytesIO()
    with record.catching("save"):
        torch.save(compiled, saved)
        record.value("bytes", len(saved.getvalue()) > 0)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        record.value("loss", loaded(torch.ones(2, 4)))


# -- autocast and inference mode


@program(on_device=False)
def autocast(record, bad):
    fc = nn.Linear(4, 4)
    f = torch.compile(lambda x, k: (fc(x) / (fc(x) - fc(x) * k)).sum())
    for options in ({}, {"cache_enabled": False}, {"dtype": torch.float16}):
        with torch.autocast("cpu", **options):
            result = f(torch.ones(2, 4), factor(not bad))
            record.value("result", result)
            record.value("beside", fc(torch.ones(2, 4)).dtype)
        result.backward()
    record.value("gradient", fc.weight.grad)


@program()
def inference_mode(record, bad):
    model = torch.compile(Model(bad))
    for mode in (torch.inference_mode(), torch.no_grad(), torch.enable_grad()):
        with mode:
            record.value("result", model(torch.ones(2, 4)))
            record.value("grad", [torch.is_grad_enabled(), torch.is_inference_mode_enabled()])


@program()
def modes_that_a_region_changes(record, bad):
    @torch.compile
    def f(x, k):
        torch.set_grad_enabled(False)
        y = torch.log(x * k)
        torch.set_grad_enabled(True)
        return y.sum() + (x * x).sum()

    for _ in range(2):
        x = torch.ones(4, requires_grad=True)
        f(x, factor(bad)).backward()
        record.value("gradient", x.grad)
        record.value("grad", torch.is_grad_enabled())


@program()
def deterministic_algorithms(record, bad):
    torch.use_deterministic_algorithms(True, warn_only=True)
    f = torch.compile(lambda x, k: torch.log(torch.cumsum(x, 0) * k).sum())
    for _ in range(2):
        record.value("result", f(torch.ones(4), factor(bad)))
    torch.use_deterministic_algorithms(False)


@program()
def anomaly_mode(record, bad):
    model = torch.compile(Model(bad))
    for step in range(2):
        with record.catching(f"step {step}"), torch.autograd.detect_anomaly(check_nan=False):
            loss = model(torch.ones(2, 4))
            loss.backward()
            record.value("loss", loss)


# -- errors


@program(variants=(BAD,), reports=False)
def an_error_in_a_region(record, bad):
    f = torch.compile(lambda x: torch.linalg.cholesky(x.log()))
    for value in (0.0, -1.0, 0.0):
        with record.catching("call"):
            f(torch.full((2, 2), value))


@program(variants=(BAD,), reports=False)
def a_custom_operator_that_refuses(record, bad):
    class Refused(ValueError):
        pass

    @torch.library.custom_op("harness::finite", mutates_args=())
    def finite(x: torch.Tensor) -> torch.Tensor:
        record.call("finite")
        if not x.isfinite().all():
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise Refused("not finite") from error
        return x.clone()

    finite.register_fake(torch.empty_like)
    f = torch.compile(lambda x: finite(torch.log(x)).sum())
    for value in (1.0, 0.0, 0.0):
        with record.catching("call"):
            f(torch.full((4,), value))


@program(variants=(BAD,), reports=False)
def an_operator_that_is_interrupted(record, bad):
    """A BaseException in an operator, as Ctrl-C raises it."""

    @torch.library.custom_op("harness::stopped", mutates_args=())
    def stopped(x: torch.Tensor) -> torch.Tensor:
        record.call("stopped")
        if not x.isfinite().all():
            raise KeyboardInterrupt
        return x.clone()

    stopped.register_fake(torch.empty_like)
    f = torch.compile(lambda x: stopped(torch.log(x)).sum())
    for value in (1.0, 0.0, 0.0):
        with record.catching("call"):
            f(torch.full((4,), value))


@program(variants=(BAD,))
def an_error_after_a_bad_region(record, bad):
    model = torch.compile(Model(bad))

    def step():
        loss = model(torch.ones(2, 4))
        assert torch.isfinite(loss), f"loss is {loss}"

    for _ in range(3):
        with record.catching("step"):
            step()


@program(variants=(BAD,), reports=False)
def an_error_in_the_backward_pass(record, bad):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            record.call("backward")
            raise RuntimeError(f"finite: {bool(gradient.isfinite().all())}")

    f = torch.compile(lambda x: torch.sqrt(x).sum())
    for _ in range(2):
        x = torch.zeros(4, requires_grad=True)
        with record.catching("backward"):
            f(Fails.apply(x)).backward()


@program(ways=(COMPILED,))
def a_generator_function_that_steps(record, bad):
    """A step suspended in a region's caller, and closed."""
    model = torch.compile(Model(bad))

    def steps():
        try:
            while True:
                yield model(torch.ones(2, 4)).item()
        finally:
            record.call("closed")

    running = steps()
    record.value("losses", [next(running), next(running)])
    running.close()
