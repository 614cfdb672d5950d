"""A program may go wrong for as long as it runs: memory stays flat, a finding stays small, nothing is kept alive."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import torchnan
from benchmarks.allocator import heap
from tests.support.processes import REPOSITORY, run

pytestmark = pytest.mark.guarantee(14)
needs_heap_size = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 or later")

PROGRAMS = Path(__file__).with_name("programs") / "endless_programs.py"
MASKED_ATTENTION = [sys.executable, "-m", "tests.guarantees.programs.masked_attention"]
MB = 2**20
LINE = 16 * 1024


@dataclasses.dataclass(frozen=True)
class Measured:
    """Resident bytes at twenty moments, evenly apart, and what a detection counted."""

    memory: list[int]
    stats: dict[str, int]

    @property
    def growth(self) -> int:
        """The growth from the first to the last moment, or to the maximum in between."""
        return max(self.memory) - self.memory[0]

    @property
    def growth_after_warm_up(self) -> int:
        return max(0, self.memory[-1] - self.memory[9])


def measured(program: str, steps: int, watched: str, log: Path) -> Measured:
    ended = run([sys.executable, str(PROGRAMS), program, str(steps), watched, str(log)], OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stderr[-3000:]
    return Measured(**json.loads(ended.stdout))


@dataclasses.dataclass(frozen=True)
class Case:
    """The number of steps of a program, and the number after which it is warmed up."""

    short: int
    long: int


CASES = {
    "nan_everywhere": Case(300, 10_000),
    "new_models": Case(40, 600),
    "new_places": Case(1_000, 60_000),
    "new_threads": Case(100, 5_000),
    "new_operators": Case(200, 10_000),
    "bad_steps": Case(10, 1_000),
}


@pytest.mark.breadth(2)
@pytest.mark.parametrize("program", CASES)
def test_memory_is_flat(program, soak, tmp_path, figure):
    """Fails when Lineage::remember() does not take_dead(): 33 KB a step; when call site rings are calloc()ed: 70 MB of
    ended threads; when a plan outlives its operator: another's name."""
    steps = CASES[program].long if soak else CASES[program].short
    alone = measured(program, steps, "off", tmp_path / "off")
    watched = measured(program, steps, "on", tmp_path / "on")
    more = watched.growth - alone.growth
    each_step = (watched.growth_after_warm_up - alone.growth_after_warm_up) / (steps / 2)
    noise = 0 if soak else MB / (steps / 2)  # for the allocator: a chunk or two
    assert more < 64 * MB, watched
    assert each_step < 1024 + noise, watched
    lines = (tmp_path / "on").read_bytes().splitlines() if (tmp_path / "on").exists() else []
    assert all(len(line) < LINE for line in lines)
    told = watched.stats.get("findings", 0) + watched.stats.get("repeats", 0) + watched.stats.get("dropped", 0)
    assert told >= (100 * steps if program == "nan_everywhere" else 0)
    figure(f"{program}, {steps:,} steps, {told:,} findings: {more / MB:+.1f} MB, {max(0, each_step):.0f} bytes a step")


# -- freed memory is used again


def heap_of_masked_attention(watched: str) -> int:
    """Returns the median of three processes: without detection they end between 184 and 340 MB."""
    heaps = []
    for _ in range(3):
        ended = run([*MASKED_ATTENTION, watched], cwd=REPOSITORY, OMP_NUM_THREADS="1")
        assert ended.returncode == 0, ended.stderr[-3000:]
        heaps.append(int(ended.stdout))
    return sorted(heaps)[1]


@needs_heap_size
def test_records_of_masks_do_not_split_the_heap(figure):
    """Fails when the registry keeps 256 records of freed storages: a heap of 485 to 501 MB, not 235 to 313."""
    alone, watched = heap_of_masked_attention("off"), heap_of_masked_attention("on")
    assert watched < 1.4 * alone
    figure(f"heap of masked attention: {alone / MB:.0f} MB alone, {watched / MB:.0f} MB watched")


@needs_heap_size
def test_call_sites_are_not_kept_on_the_users_heap(figure):
    """Fails when the tables of StackTable use malloc: more than a kilobyte for each of the call sites."""
    sites = 2000
    text, names = "x.exp()\n" * sites, {"x": torch.ones(2, requires_grad=True)}
    first, other = (types.FunctionType(compile(text, f"<{name}>", "exec"), names) for name in ("first", "other"))
    with torchnan.detect():
        first()
        before = heap().uordblks
        other()
        more = heap().uordblks - before
    assert more < 100 * sites
    figure(f"{sites:,} call sites: {max(0, more):,} bytes more on the heap of the program")


# -- a finding is small

LONG = "name" * 2500


class Endless(nn.Module):
    """Calls itself through ever longer functions, and then takes the logarithm of a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(LONG, nn.Module())
        self._modules[LONG].forward = self.descend
        self.register_parameter(LONG + "weight", nn.Parameter(-torch.ones([1] * 60)))

    def descend(self, depth: int) -> torch.Tensor:
        return self.longer(depth - 1) if depth else torch._foreach_log([self.get_parameter(LONG + "weight")] * 2000)[-1]

    def longer(self, depth: int) -> torch.Tensor:
        """A file and a function with unique names."""
        code = Endless.descend.__code__.replace(co_filename=f"/{LONG}.py", co_name=LONG)
        return type(Endless.descend)(code, globals())(self, depth)

    def forward(self) -> torch.Tensor:
        return self._modules[LONG](80)


def bad_in_backward(name: str) -> torch.Tensor:
    function = type(name, (torch.autograd.Function,), {})
    function.forward = staticmethod(lambda ctx, x: x * 1)
    function.backward = staticmethod(lambda ctx, gradient: (gradient - 1).log())
    x = torch.ones(3, requires_grad=True)
    function.apply(x).sum().backward()
    return x.grad


def through_many_operations(x: torch.Tensor) -> torch.Tensor:
    for _ in range(1000):
        x = x * 1
    return x


def bad_operator() -> torch.Tensor:
    with torch.library._scoped_library("lengthy", "FRAGMENT") as library:
        library.define(f"{LONG}(Tensor x) -> Tensor")
        library.impl(LONG, torch.log, "CPU")
        return getattr(torch.ops.lengthy, LONG)(-torch.ones(3))


LENGTHY = {
    "modules, functions, files, lists": lambda: Endless()().sum().item(),
    "a node": lambda: bad_in_backward(LONG),
    "an operator": lambda: bad_operator().sum().item(),
    "a guard": lambda: torchnan.guard(torch.zeros(3).log(), LONG * 100),
    "a way": lambda: through_many_operations(torch.zeros(3).log()).sum().item(),
    "dimensions": lambda: torch.zeros([1] * 60 + [2]).transpose(0, -1).log().sum().item(),
    "a concatenation": lambda: (torch.cat([torch.zeros(3)] * 2000) / 0).sum().item(),
}


@pytest.mark.parametrize("program", LENGTHY)
def test_a_line_is_short_for_any_long_field(program, tmp_path, figure):
    """Fails when to_json() does not shorten."""
    log = tmp_path / "log"
    with torchnan.detect(action="log", log=log) as watch:
        held = LENGTHY[program]()
    del held
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(watch.findings) >= 1
    for line, finding in zip(lines, watch.findings, strict=True):
        assert len(line) < LINE
        assert json.loads(line)["op"]
        assert len(str(finding)) < LINE
    longest = max(map(len, lines))
    figure(f"{program}: a line of {longest:,} bytes")


# -- nothing is kept alive


class Canary:
    """Stored in a node of a graph, it lives as long as the node."""


def graph_of(x: torch.Tensor) -> tuple[torch.Tensor, Canary]:
    canary = Canary()
    x.grad_fn.metadata["canary"] = canary
    return x, canary


def leaf() -> torch.Tensor:
    return torch.zeros(3, requires_grad=True)


BAD = {
    "made": lambda: graph_of(leaf().log()),
    "of a constant": lambda: graph_of(leaf() * float("nan")),
    "a view": lambda: graph_of(leaf().log()[1:].view(2, 1)),
    "in place": lambda: graph_of((leaf() * 1).log_()),
    "after a backward pass": lambda: (*graph_of(leaf().log()), leaf().sqrt().sum().backward()),
    "sparse": lambda: (torch.eye(3).to_sparse() / 0, (torch.eye(3).to_sparse() / 0).coalesce()),
    "a weight": lambda: (nn.Linear(2, 2).requires_grad_(False).weight.div_(0),),
    "many": lambda: tuple(torch.zeros(i).log() for i in range(1, 1000)),
    "read": lambda: (x := torch.zeros(3).log(), x.tolist())[:1],
}


@pytest.mark.filterwarnings("ignore:.*nothing used it")
@pytest.mark.parametrize("when", ["harm", "origin"])
@pytest.mark.parametrize("bad", BAD)
def test_values_that_the_program_releases_are_freed(bad, when):
    """Fails when a region of the lineage holds its tensor by a strong reference."""
    told: list[torchnan.Finding] = []
    with torchnan.detect(action=told.append, when=when):
        things = [thing for thing in BAD[bad]() if thing is not None]
        references = [weakref.ref(thing) for thing in things]
        storages = [weakref.ref(t.untyped_storage()) for t in things if getattr(t, "layout", None) is torch.strided]
        things.clear()
        assert [reference() for reference in references + storages] == [None] * len(references + storages)
