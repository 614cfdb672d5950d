"""The stages. `python -m benchmarks.gpu.stages NAME DEVICE OUT` runs one and writes its verdicts as JSON."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torchnan
from benchmarks import modes
from benchmarks.gpu import models
from benchmarks.gpu.verdict import Verdict, at_most, is_true
from benchmarks.workloads import Workload


@dataclasses.dataclass
class Bench:
    """The device, and whether its figures count."""

    machine: Any
    device: torch.device
    is_gpu: bool

    def workload(self, name: str) -> Workload:
        torch.manual_seed(0)
        return models.ALL[name](self.device, small=not self.is_gpu)


def origins(watch: torchnan.detect) -> list[str]:
    return [finding.op for finding in watch.findings if finding.level == "error"]


def smoke(bench: Bench) -> list[Verdict]:
    """A planted NaN is named, in forward, backward and under a stream."""
    x = torch.zeros(1000, device=bench.device)
    with torchnan.detect(action="log") as forward:
        (x / x).sum().item()
    with torchnan.detect(action="log") as backward:
        y = torch.zeros(8).to(bench.device).requires_grad_()
        y.sqrt().sum().backward()
        y.grad.sum().item()
    with torchnan.detect(action="log") as streamed:
        side = torch.Stream(device=bench.device)
        with side:
            bad = (x - 1).log()
        bench.machine.synchronize()
        bad.sum().item()
    return [
        is_true("forward: aten::div is named", origins(forward) == ["aten::div"]),
        is_true("backward: Inf is named in the backward phase", [f.phase for f in backward.findings] == ["backward"]),
        is_true("on another stream: aten::log is named", origins(streamed) == ["aten::log"]),
    ]


def manners(bench: Bench) -> list[Verdict]:
    """A clean training waits, copies and keeps memory as without torchnan."""
    found = [is_true("launches of torchnan's scan are seen by what counts", sees_scans(bench))]
    for name in models.ALL:
        workload = bench.workload(name)
        workload.step()
        plain = bench.machine.count(workload.step)
        with torchnan.detect(action="log") as watch:
            workload.step()
            workload.step()
            watched = bench.machine.count(workload.step)
        found += [
            at_most(f"{name}: waits of a step, more than without", watched[0] - plain[0], 0),
            at_most(f"{name}: copies to the host of a step, more than without", watched[1] - plain[1], 0),
            at_most(f"{name}: findings", len(watch.findings), 0),
            at_most(f"{name}: internal errors", watch.stats()["internal_errors"], 0),
        ]
        if bench.is_gpu:
            found.append(memory(name, workload))
    return found


def sees_scans(bench: Bench) -> bool:
    x = torch.ones(1000, device=bench.device)
    with torchnan.detect(action="log", rescan_every=1):
        return bool(bench.machine.sees_scans(lambda: (x + 1).sum().item()))


def memory(name: str, workload: Workload) -> Verdict:
    """The peak of allocated memory: tensors that wait for a launch are at most 64 MiB and one tensor."""

    def peak() -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        workload.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    plain = peak()
    with torchnan.detect():
        workload.step()
        watched = peak()
    return at_most(f"{name}: MiB allocated, more than without", (watched - plain) / 2**20, 512)


def time_step(bench: Bench, workload: Workload, mode: Callable[[Workload], Any]) -> float:
    """Milliseconds per step, after one that is not counted."""
    with mode(workload):
        workload.step()
        if not bench.is_gpu:
            return 1.0  # its time is meaningless
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(workload.repeat):
            workload.step()
        end.record()
        end.synchronize()
    return float(begin.elapsed_time(end)) / workload.repeat


LIMITS = {"gpt2": 1.04, "resnet50": 1.04, "mlp": 1.03}


def cost(bench: Bench) -> list[Verdict]:
    """The time of a step, relative to the plain one of the same round; the second plain one shows the noise."""
    found = []
    for name, limit in LIMITS.items():
        workload = bench.workload(name)
        rows = {"plain": modes.off, "A/A": modes.off, "detect": modes.ALL["detect()"], "guard": modes.ALL["StepGuard"]}
        ratios: dict[str, list[float]] = {row: [] for row in rows}
        for _ in range(9 if bench.is_gpu else 1):
            times = {row: time_step(bench, workload, rows[row]) for row in random.sample(list(rows), len(rows))}
            for row, milliseconds in times.items():
                ratios[row].append(milliseconds / times["plain"])
        median = {row: statistics.median(values) for row, values in ratios.items()}
        found.append(Verdict(f"{name}: plain step again (A/A)", median["A/A"]))
        found.append(at_most(f"{name}: detect()", median["detect"], limit, bench.is_gpu))
        found.append(at_most(f"{name}: StepGuard", median["guard"], 1.005, bench.is_gpu))
    return found


def graphs(bench: Bench) -> list[Verdict]:
    """A captured step, its replays, and `reduce-overhead`."""
    x = torch.ones(64).to(bench.device)
    side = torch.Stream(device=bench.device)
    bench.machine.synchronize()
    with torchnan.detect(action="log") as watch:
        with side:
            x.log().sum()  # one-time initialization
            bench.machine.synchronize()
            with bench.machine.capture(side) as graph:
                result = x.log().sum()
        clean = []
        for replay in range(5):
            if replay == 4:
                x.fill_(-1)
                bench.machine.synchronize()
            graph.replay()
            bench.machine.synchronize()
            clean += origins(watch)
        result.item()
    found = [
        at_most("findings of replays that are finite", len(clean), 0),
        is_true("the fifth replay is reported with the captured operation", origins(watch) == ["aten::log"]),
    ]
    if bench.is_gpu:
        compiled = torch.compile(lambda x: torch.tanh(x @ x).sum(), mode="reduce-overhead")
        given = torch.randn(64, 64, device=bench.device)
        with torchnan.detect(action="log") as watch:
            for _ in range(6):
                compiled(given).item()
        found.append(at_most("reduce-overhead: findings", len(watch.findings), 0))
    return found


def fsdp2(bench: Bench) -> list[Verdict]:
    """fully_shard() on a simulated process group of world size 8: its streams, its resize_(), its collectives."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    backends = f"cpu:fake,{bench.device.type}:fake"
    torch.distributed.init_process_group(backends, store=FakeStore(), rank=0, world_size=8)
    try:
        mesh = init_device_mesh(bench.device.type, (8,))
        model = models.GPT2(2, 64, 4, 256, 32).to(bench.device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(0, 256, (2, 32)).to(bench.device)

        def step() -> None:
            optimizer.zero_grad()
            model(ids).float().square().mean().backward()
            optimizer.step()

        step()
        plain = bench.machine.count(step)
        with torchnan.detect(action="log") as watch:
            step()
            watched = bench.machine.count(step)
    finally:
        torch.distributed.destroy_process_group()
    return [
        at_most("waits of a step, more than without", watched[0] - plain[0], 0),
        at_most("internal errors", watch.stats()["internal_errors"], 0),
        Verdict("findings (the group gathers nothing: its values are what was there)", len(watch.findings)),
    ]


def threads(bench: Bench) -> list[Verdict]:
    """Runs operations beside a thread that forks, and one that takes addresses: no deadlock."""
    x, y = torch.ones(64).to(bench.device), torch.ones(64).to(bench.device)
    bench.machine.synchronize()
    is_over = threading.Event()

    def fork() -> None:
        while not is_over.wait(0.005):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)

    def take_addresses() -> None:
        while not is_over.is_set():
            y.data_ptr()

    def add(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    workers = [threading.Thread(target=work, daemon=True) for work in (fork, take_addresses)]
    with torchnan.detect(action="log") as watch:
        for worker in workers:
            worker.start()
        for place in range(3000 if bench.is_gpu else 300):
            types.FunctionType(add.__code__.replace(co_filename=f"<place {place}>"), {})(x)
        is_over.set()
        for worker in workers:
            worker.join()
    return [at_most("findings", len(watch.findings), 0)]


def faults(bench: Bench) -> list[Verdict]:
    """A hundred NaNs, planted at random into a step: how many are named by operation and line."""
    model = models.GPT2(2, 64, 4, 256, 32).to(bench.device)
    ids = torch.randint(0, 256, (2, 32)).to(bench.device)
    wrong = 0
    count = 100 if bench.is_gpu else 10
    for seed in range(count):
        block = random.Random(seed).choice(list(model.blocks))

        def plant(module: torch.nn.Module, given: Any, result: torch.Tensor) -> torch.Tensor:
            return result + (result * 0).log() * (result * 0).abs().sqrt()  # 0 * -inf

        hook = block.register_forward_hook(plant)
        with torchnan.detect(action="log") as watch:
            model(ids).float().mean().backward()
            bench.machine.synchronize()
        hook.remove()
        model.zero_grad()
        wrong += origins(watch)[:1] != ["aten::log"]
    return [at_most(f"planted NaNs of {count} that are not named", wrong, 0)]


def sanitizer(bench: Bench) -> list[Verdict]:
    """compute-sanitizer over the kernels, with memory that the caching allocator does not round."""
    program = (
        "import torch, torchnan\n"
        "with torchnan.detect(action='log', rescan_every=1):\n"
        "    for size in (1, 3, 17, 4097, 70001):\n"
        "        x = torch.ones(size + 1, device='cuda')[1:]\n"
        "        (x * 2).cpu(); x[::2].clone().cpu()\n"
    )
    tool = shutil.which("compute-sanitizer")
    if not bench.is_gpu or tool is None:
        return [Verdict("compute-sanitizer is not there", 0)]
    command = [tool, "--error-exitcode=9", "--report-api-errors=no", sys.executable, "-c", program]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(ended.stdout, ended.stderr)
    return [at_most("exit status", ended.returncode, 0)]


def tests(bench: Bench) -> list[Verdict]:
    """The tests of tests/devices and tests/gpu, if pytest is installed."""
    if importlib.util.find_spec("pytest") is None:
        return [Verdict("pytest is not there", 0)]
    folders = ["tests/devices", "tests/gpu"] if bench.is_gpu else ["tests/devices/test_detection.py"]
    environment = os.environ | {"TEST_DEVICE": bench.device.type}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(ended.stdout, ended.stderr)
    return [at_most("exit status of pytest", ended.returncode, 0)]


@dataclasses.dataclass(frozen=True)
class Stage:
    run: Callable[[Bench], list[Verdict]]
    seconds: int  # time limit; 45 minutes in all
    allocator: str = ""  # for CUDA, if not the default one


STAGES = {
    "smoke": Stage(smoke, 120),
    "cost": Stage(cost, 600),
    "manners": Stage(manners, 240),
    "expandable": Stage(manners, 180, "expandable_segments:True"),
    "async": Stage(manners, 180, "backend:cudaMallocAsync"),
    "graphs": Stage(graphs, 240),
    "fsdp2": Stage(fsdp2, 120),
    "threads": Stage(threads, 120),
    "faults": Stage(faults, 180),
    "sanitizer": Stage(sanitizer, 240),
    "tests": Stage(tests, 480),
}


def main(name: str, device: str, out: str) -> None:
    """Runs a stage and writes its verdicts."""
    if device == "cuda":
        from tests.devices.cuda_device import Cuda

        bench = Bench(Cuda(), torch.device("cuda:0"), is_gpu=True)
    else:
        from tests.devices.lagging import Lagging

        bench = Bench(Lagging(), torch.device("lagging:0"), is_gpu=False)
    verdicts = STAGES[name].run(bench)
    Path(out).write_text(json.dumps([dataclasses.asdict(verdict) for verdict in verdicts]))


if __name__ == "__main__":
    main(*sys.argv[1:])
