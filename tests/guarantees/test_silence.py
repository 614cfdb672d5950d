"""A correct program causes no report, whatever its uninitialized memory contains."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torchnan
from tests.support.clean_programs import COPIES, FACTORIES, FAMILIES, WRITERS, soiled_memory, trained, written
from tests.support.forked_python import run_forked_ranks

pytestmark = [
    pytest.mark.guarantee(4),
    pytest.mark.filterwarnings("ignore:.*prototype", "ignore:.*deterministic", "ignore:The PyTorch API of nested"),
]

PROGRAMS = [
    pytest.param(program, id=f"{family}-{i}-{program.__name__}")
    for family, programs in FAMILIES.items()
    for i, program in enumerate(programs)
]


def tensors_in(held: object) -> list[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        return [held]
    return list(itertools.chain(*map(tensors_in, held))) if isinstance(held, list | tuple) else []


@pytest.mark.breadth(6)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_all_right_is_met_with_silence(program):
    with soiled_memory(), torchnan.detect() as watch:
        held = program()
        for tensor in tensors_in(held):
            assert torch.isfinite(tensor).all(), "the program is not all right"
            tensor.tolist()
    assert watch.findings == []
    assert watch.stats()["internal_errors"] == 0


@pytest.mark.slow
def test_any_way_to_allocate_and_to_write_memory_is_silent(figure):
    taken_out = {(copy, "numpy") for copy in COPIES}  # taking a computed value out of PyTorch reads it
    pairs = set(itertools.product(FACTORIES, WRITERS)) - taken_out
    for factory, writer in pairs:
        with soiled_memory(), torchnan.detect() as watch:
            written(factory, writer).tolist()
        assert watch.findings == [], f"{writer} into {factory}"
    figure(f"{len(PROGRAMS)} programs, and {len(pairs)} ways to get memory full of NaN and write it: 0 findings")


class Samples(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": torch.empty(3).fill_(i), "y": torch.empty(2, dtype=torch.float64).normal_()}


def padded(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Into private shared memory, of which only a part is ever written."""
    batch = torch.empty(len(samples), 100).share_memory_()
    for row, sample in zip(batch, samples, strict=True):
        row[:3] = sample["x"]
    return {"x": batch[:, :3]}


@pytest.mark.filterwarnings("ignore:.*pin_memory")
@pytest.mark.parametrize("options", [{}, {"pin_memory": True}, {"collate_fn": padded}], ids=["plain", "pinned", "own"])
def test_batches_from_other_processes(options):
    with soiled_memory(), torchnan.detect() as watch:
        for batch in DataLoader(Samples(), batch_size=2, num_workers=2, **options):
            trained(batch["x"]).tolist()
    assert watch.findings == []


RANKS = """
import os
import torch, torch.distributed as dist
import torchnan
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.use_deterministic_algorithms(True)  # empty() is full of NaN

def mine():
    return torch.full((4,), rank + 1.0)

def nothing(*shape):
    return torch.empty(*shape)

def wait(work):
    if isinstance(work, dist.Work):
        work.wait()

def received(begin, *buffers):
    wait(begin(*buffers))
    return sum(buffer.sum().item() for buffer in buffers)

def broadcast(asynchronous):
    return received(lambda b: dist.broadcast(b, 0, async_op=asynchronous), mine() if rank == 0 else nothing(4))

def scatter(asynchronous):
    parts = [mine(), mine()] if rank == 0 else None
    return received(lambda b: dist.scatter(b, parts, 0, async_op=asynchronous), nothing(4))

def gather(asynchronous):
    buffers = [nothing(4), nothing(4)] if rank == 0 else []
    return received(lambda *b: dist.gather(mine(), list(b) or None, 0, async_op=asynchronous), *buffers)

def reduce(asynchronous):
    sums = mine()
    wait(dist.reduce(sums, 0, async_op=asynchronous))
    return sums.sum().item() if rank == 0 else 0.0

def all_gather(asynchronous):
    return received(lambda *b: dist.all_gather(list(b), mine(), async_op=asynchronous), nothing(4), nothing(4))

def all_gather_into(asynchronous):
    return received(lambda b: dist.all_gather_into_tensor(b, mine(), async_op=asynchronous), nothing(8))

def reduce_scatter(asynchronous):
    return received(lambda b: dist.reduce_scatter_tensor(b, mine(), async_op=asynchronous), nothing(2))

def all_reduce(asynchronous):
    return received(lambda b: dist.all_reduce(b, async_op=asynchronous), nothing(4).fill_(1.0))

def send_and_receive(asynchronous):
    if rank == 0:
        wait((dist.isend if asynchronous else dist.send)(mine(), 1))
        return 0.0
    return received(lambda b: (dist.irecv if asynchronous else dist.recv)(b, 0), nothing(4))

def objects(asynchronous):
    given = [{"x": mine()}] if rank == 0 else [None]
    dist.broadcast_object_list(given, 0)
    return given[0]["x"].sum().item()

collectives = [broadcast, scatter, gather, reduce, all_gather, all_gather_into, reduce_scatter, all_reduce,
               send_and_receive, objects]
for collective in collectives:
    for asynchronous in (False, True):
        with torchnan.detect(action="log") as watch:
            result = collective(asynchronous)
        assert result == result and abs(result) < 100, collective.__name__
        assert not watch.findings, (rank, collective.__name__, asynchronous, watch.report())
print("silent:", len(collectives), flush=True)
dist.barrier()
dist.destroy_process_group()
# PyTorch 2.13 aborts now and then, torchnan or not, if gloo's thread is the one to let go of a tensor that Python knew
# while Python ends: so it does not end, it stops.
os._exit(0)
"""


def test_buffers_of_collectives(tmp_path):
    """Two ranks; the receive buffer of one was full of NaN, and memory that no rank should read is left alone."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    ended = run_forked_ranks(script, 2)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("silent: 10") == 2
