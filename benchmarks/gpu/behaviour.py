"""What detection finds on the device, and what it leaves alone."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import torchnan
from benchmarks.gpu import models
from benchmarks.gpu.bench import Bench, origins
from benchmarks.gpu.verdict import Verdict, at_most, is_true
from tests.devices import zoo_adapter
from tests.devices.zoo_adapter import cannot_be_run, is_wrong
from tests.zoo.framework import PROGRAMS
from tests.zoo.run_score import score

PROCESSES = 8  # that use the GPU at the same time
SMALL_TESTS = "tests/devices/test_safety_net_on_device.py"  # for the simulated device


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


def tests(bench: Bench, *paths: str) -> Iterator[Verdict]:
    """Tests, by pytest. The simulated device tries the stage with a few of its own."""
    options = ["-vv", "-p", "no:cacheprovider", "--color=no", "--tb=short"]
    if bench.is_gpu:
        options += ["-n", str(PROCESSES), "--dist", "worksteal"]
    command = [sys.executable, "-m", "pytest", *options, *(paths if bench.is_gpu else [SMALL_TESTS])]
    environment = os.environ | {"TEST_DEVICE": bench.device.type, "PYTHONUNBUFFERED": "1"}
    tests_by: dict[str, set[str]] = {"PASSED": set(), "FAILED": set(), "ERROR": set(), "SKIPPED": set()}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        for line in run.stdout or ():
            print(line, end="", flush=True)
            words = line.split()
            test = next((word for word in words if "::" in word), None)
            outcome = next((word for word in words if word in tests_by), None)
            if test and outcome:
                tests_by[outcome].add(test)
                bad = tests_by["FAILED"] | tests_by["ERROR"]
                counts = f"{len(tests_by['PASSED'])} passed, {len(tests_by['SKIPPED'])} skipped"
                yield at_most("tests that failed", len(bad), 0, detail=", ".join([counts, *sorted(bad)[:5]]))
    yield at_most("exit status of pytest", run.returncode, 0)


def zoo(bench: Bench, *folders: str) -> Iterator[Verdict]:
    """Programs with a known origin: those that run on the device are reported as on the host."""
    files = [file for folder in folders for file in sorted((PROGRAMS / folder).glob("[!_]*.py"))]
    if not bench.is_gpu:
        files = files[:1]
    wrong: list[str] = []
    elsewhere = exact = 0
    os.environ["TEST_DEVICE"] = bench.device.type  # for the adapter
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(PROCESSES) as pool:
        for scored in as_completed([pool.submit(score_file, file, Path(scratch)) for file in files]):
            for row in scored.result():
                elsewhere += cannot_be_run(row)
                exact += row["exact"]
                wrong += [row["id"]] if is_wrong(row) else []
            detail = ", ".join([f"{exact} as on the host, {elsewhere} cannot be run on the device", *wrong[:5]])
            yield at_most("programs that are reported differently", len(wrong), 0, detail=detail)
    yield at_most("share of the programs that cannot be run there", elsewhere / max(1, elsewhere + exact), 0.5)


def score_file(file: Path, scratch: Path) -> list[dict[str, Any]]:
    folder = scratch / "-".join(file.relative_to(PROGRAMS).parts)
    folder.mkdir()
    ended, rows = score(file, Path(zoo_adapter.__file__), folder)
    print(ended.stdout, flush=True)
    return rows
