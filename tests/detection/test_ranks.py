"""Faults in programs of two ranks over gloo, each planted on one rank; the expected report of each rank."""

from __future__ import annotations

import pytest

from tests.support.rank_programs import Program, assert_fault_is_told, assert_is_silent, made, received


def weights_after_a_metric(maker: int, sending: str) -> str:
    """Returns a program without steps: rank 0 reads a bad metric, and two turns later gets bad weights."""
    return f"""
net = nn.Linear(4, 2)
with torchnan.detect(action="log") as watch:
    for turn in range(4):
        if rank == 1 and planted and turn == 3:
            with torch.no_grad():
                net.weight.mul_(0).div_(0.0)  # PLANTED
        metric = torch.ones(0 if planted and rank == {maker} and turn == 0 else 2).mean()
        {sending}
        if rank == 0:
            metric.item()
        for parameter in net.parameters():
            dist.broadcast(parameter.data, 1)
        if rank == 0:
            net(torch.ones(1, 4)).sum().item()
        del metric
"""


def beside_an_own_element(own: str) -> str:
    """Returns a program in which each rank has a bad element of a vector that is summed, and rank 0 reads rank 1's."""
    return f"""
with torchnan.detect(action="log") as watch:
    x = torch.ones(4)
    if planted and rank == 0:
        {own}
    if planted and rank == 1:
        x = (x - torch.tensor([2.0, 0, 0, 0])).log()  # PLANTED
    dist.all_reduce(x)
    if rank == 0:
        x[0].item()
    del x
"""


PROGRAMS = {
    "a sum that overflows": Program(
        """
with torchnan.detect(action="log") as watch:
    gradient = torch.full((8,), 40000.0 if planted else 1.0).half()
    dist.all_reduce(gradient)  # PLANTED
    held = gradient.float() / world
""",
        (made("allreduce_", line=True), made("allreduce_", line=True)),
    ),
    "a sum that overflows and that nothing reads": Program(
        """
with torchnan.detect(action="log") as watch:
    gradient = torch.full((8,), 40000.0 if planted else 1.0).half()
    dist.all_reduce(gradient, async_op=True).wait()  # PLANTED
""",
        (made("allreduce_", line=True), made("allreduce_", line=True)),
    ),
    "gradients summed by hand": Program(
        """
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with torchnan.detect(action="log") as watch:
    loss = model(torch.randn(4, 8)).square().mean()
    if planted and rank == 1:
        loss = loss * torch.zeros(1).log()  # PLANTED
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
""",
        (received("allreduce_", harm="gradient", harmed="a.weight"), made("log", line=True)),
    ),
    "a received gradient stops the step": Program(
        """
weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.AdamW([weight])
watch = torchnan.detect(action="raise")
try:
    with watch:
        weight.grad = torch.ones(4)
        if planted and rank == 1:
            weight.grad = (weight.grad * -1).log()  # PLANTED
        dist.all_reduce(weight.grad)
        optimizer.step()
except torchnan.NonFiniteError:
    assert planted and weight.tolist() == [1.0] * 4 and not optimizer.state
""",
        (received("allreduce_", harm="gradient"), made("log", line=True, harm="gradient")),
    ),
    "received values that nothing reads": Program(
        """
from torch.distributed.algorithms.model_averaging import utils
model = Net()
with torchnan.detect(action="log") as watch:
    if planted and rank == 1:
        with torch.no_grad():
            model.a.weight.copy_((model.a.weight * 0 - 1).log())  # PLANTED
    utils.average_parameters(model.parameters(), None)
""",
        (received("allreduce_", origin="parameter", harm="parameter", name="a.weight"), made("log", line=True)),
    ),
    "a product that overflows": Program(
        """
with torchnan.detect(action="log") as watch:
    scale = torch.full((2,), 1e20 if planted else 1.0)
    dist.all_reduce(scale, dist.ReduceOp.PRODUCT)  # PLANTED
    print(scale.sum().item())
""",
        (made("allreduce_", line=True), made("allreduce_", line=True)),
    ),
    "gathered with autograd": Program(
        """
import torch.distributed.nn.functional as DF
net = Net()
with torchnan.detect(action="log") as watch:
    features = net(torch.randn(4, 8))
    if planted and rank == 1:
        features = features + (features * 0 - 1).log()  # PLANTED
    every = torch.cat(DF.all_gather(features))
    (every @ every.T).logsumexp(1).mean().backward()
""",
        (received("allgather_"), made("log", line=True)),
    ),
    "sent from rank to rank": Program(
        """
with torchnan.detect(action="log") as watch:
    if rank == 1:
        sent = torch.ones(4)
        if planted:
            sent = (sent - 2).log()  # PLANTED
        dist.send(sent, 0)
    else:
        buffer = torch.empty(4)
        dist.recv(buffer, 1)
        (buffer * 2).sum().item()
""",
        (received("recv_"), made("log", line=True)),
    ),
    "a cast in a communication hook": Program(
        """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model = nn.parallel.DistributedDataParallel(Net())
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
with torchnan.detect(action="log") as watch:
    train(model, large=True)
""",
        (received("allreduce_"), made("_to_copy", phase="backward", name="b.bias")),
    ),
    "the callback of a future": Program(
        """
model = nn.parallel.DistributedDataParallel(Net())
def hook(state, bucket):
    def average(future):
        total = future.value()[0]
        return total / (total * 0 if planted else world)  # PLANTED
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(average)
model.register_comm_hook(None, hook)
with torchnan.detect(action="log") as watch:
    train(model)
""",
        (made("div", line=True, phase="backward"), made("div", line=True, phase="backward")),
    ),
    "a checkpoint in shards": Program(
        """
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
model = Net()
state = {key: value.clone() for key, value in model.state_dict().items()}
if planted:
    state["b.weight"][7, 3] = float("nan")
fully_shard(model.a); fully_shard(model.b); fully_shard(model)
set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
with torchnan.detect(action="log") as watch:
    train(model)
""",
        (received("_allgather_base_"), {"origin": "parameter", "name": "b.weight"}),
    ),
    "weights that DDP sends": Program(
        """
net = Net()
if planted and rank == 0:
    with torch.no_grad():
        net.b.weight[1, 1] = float("nan")
with torchnan.detect(action="log") as watch:
    train(nn.parallel.DistributedDataParallel(net))
""",
        (
            {"origin": "parameter", "name": "b.weight", "collective": ""},
            received("broadcast_", origin="parameter", name="b.weight"),
        ),
    ),
    "gradients that FSDP reduces in float16": Program(
        """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
model = Net()
fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
with torchnan.detect(action="log") as watch:
    train(model, large=True)
""",
        (received("_reduce_scatter_base_"), made("chunk_cat", phase="backward")),
    ),
    "a sum of parts that overflows": Program(
        """
with torchnan.detect(action="log") as watch:
    mine = torch.empty(4, dtype=torch.half)
    dist.reduce_scatter_tensor(mine, torch.full((8,), 5e4 if planted else 1.0).half())  # PLANTED
    (mine.float() / world).sum().item()
""",
        (made("_reduce_scatter_base_", line=True), made("_reduce_scatter_base_", line=True)),
    ),
    "weights after a metric that was reported, without steps": Program(
        weights_after_a_metric(
            maker=0,
            sending="every = [torch.empty(()) for _ in range(world)]; dist.all_gather(every, metric); del every",
        ),
        (made("mean", count=2), made("div_", line=True)),
    ),
    "weights after a metric that was received": Program(
        weights_after_a_metric(maker=1, sending="dist.broadcast(metric, 1)"),
        (received("broadcast_", origin="input", count=2), made("div_", line=True)),
    ),
    "a buffer of a pipeline that requires a gradient": Program(
        """
w = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([w], lr=0.1)
with torchnan.detect(action="log") as watch:
    buffer = torch.empty(4, requires_grad=True)
    for turn in range(3):
        if rank == 0:
            x = torch.zeros(4) / (0.0 if planted and turn > 0 else 1.0)  # PLANTED
            dist.send(x, 1)
            del x
        else:
            with torch.no_grad():
                dist.recv(buffer, 0)
            optimizer.zero_grad()
            (buffer.detach() * w).tanh().sum().backward()
            optimizer.step()
""",
        (made("div", line=True), received("recv_", origin="input", count=1)),
    ),
    "a value that another rank gathers beside masks": Program(
        """
with torchnan.detect(action="log") as watch:
    score = torch.ones(3).masked_fill(torch.arange(3) == 2, -float("inf"))
    if planted and rank == 1:
        score = score * (torch.zeros(3) / torch.zeros(3))  # PLANTED
    got = [torch.empty(3) for _ in range(world)]
    dist.all_gather(got, score)
    if rank == 0:
        got[1][0].item()
    del got, score
""",
        (received("allgather_", origin="input"), made("div", line=True)),
    ),
    "a value that another rank adds beside a mask": Program(
        """
with torchnan.detect(action="log") as watch:
    if rank == 0:
        x = torch.tensor([1.0, 2, 3, -float("inf")])
    else:
        x = torch.zeros(4) / (torch.arange(4) if planted else 1.0)  # PLANTED
    dist.all_reduce(x)
    if rank == 0:
        x[0].item()
    del x
""",
        (received("allreduce_", origin="input"), made("div", line=True)),
    ),
    "a value that another rank adds beside a mask, by a functional collective": Program(
        """
import torch.distributed._functional_collectives as functional
with torchnan.detect(action="log") as watch:
    x = torch.ones(4).masked_fill(torch.arange(4) == 3, -float("inf"))
    if planted and rank == 1:
        x = torch.where(torch.arange(4) == 0, torch.zeros(4) / torch.zeros(4), x)  # PLANTED
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    if rank == 0:
        (total + 0)[0].item()
    del x, total
""",
        (received("all_reduce", origin="input"), made("div", line=True)),
    ),
    "a value of a flat gather beside masks": Program(
        """
w = nn.Parameter(torch.ones(3))
with torchnan.detect(action="log") as watch:
    score = torch.ones(3).masked_fill(torch.arange(3) == 2, -float("inf"))
    if planted and rank == 1:
        score = score * (torch.zeros(3) / torch.zeros(3))  # PLANTED
    every = torch.empty(6)
    dist.all_gather_into_tensor(every, score)
    (every.view(2, 3).softmax(-1) * w).sum().backward()
    del every, score
""",
        (received("_allgather_base_", origin="input"), made("div", line=True)),
    ),
    "a gathered value beside a harmless one of this rank": Program(
        """
w = nn.Parameter(torch.ones(3))
with torchnan.detect(action="log") as watch:
    if rank == 0:
        score = torch.tensor([1.0, 0, 1]) / torch.tensor([1.0, 0 if planted else 1, 1])
    else:
        score = torch.tensor([-1.0 if planted else 1.0, 1, 1]).sqrt()  # PLANTED
    got = [torch.empty(3) for _ in range(world)]
    dist.all_gather(got, score)
    own = got[0].nan_to_num()
    if rank == 0:
        (w * own - got[1]).square().sum().backward()
    del got, score, own
""",
        (received("allgather_", origin="input"), made("sqrt", line=True)),
    ),
    "a value of an uneven exchange beside one of this rank": Program(
        """
w = nn.Parameter(torch.ones(3))
with torchnan.detect(action="log") as watch:
    x = torch.ones(3)
    if rank == 1:
        x = x * (torch.zeros(3) / (0.0 if planted else 1.0))  # PLANTED
    else:
        x = torch.cat([(torch.zeros(1) / (0.0 if planted else 1.0)).detach(), x[:2]])
    got = torch.empty(3)
    splits = [1, 2] if rank == 0 else [2, 1]
    dist.all_to_all_single(got, x, splits, splits)
    if rank == 0:
        got[:1].nan_to_num().sum().item()
        (w[1:] * got[1:]).sum().backward()
    del got, x
""",
        (received("alltoall_base_", origin="input"), made("div", line=True)),
    ),
    "a part that is large only for another rank": Program(
        """
with torchnan.detect(action="log") as watch:
    sent = torch.ones(4).half()
    if rank == 0:
        sent[2] = 4e4
    elif planted:
        sent = (sent * torch.tensor([9e4, 0, 0, 0])).half()  # PLANTED
    mine = torch.empty(2, dtype=torch.half)
    dist.reduce_scatter_tensor(mine, sent)
    (mine * 0).sum().item()
""",
        (received("_reduce_scatter_base_"), made("_to_copy", line=True)),
    ),
    "parts in a list that are large only for another rank": Program(
        """
with torchnan.detect(action="log") as watch:
    sent = [torch.ones(2).half(), torch.ones(2).half()]
    if rank == 0:
        sent[1] = torch.full((2,), 4e4).half()
    elif planted:
        sent[0] = (sent[0] * torch.tensor([9e4, 0])).half()  # PLANTED
    mine = torch.empty(2, dtype=torch.half)
    dist.reduce_scatter(mine, sent)
    (mine * 0).sum().item()
""",
        (received("reduce_scatter_"), made("_to_copy", line=True)),
    ),
    "a tensor that is sent as bytes": Program(
        """
with torchnan.detect(action="log") as watch:
    x = torch.empty(4)
    if rank == 1:
        x = torch.zeros(4) / (0.0 if planted else 1.0)  # PLANTED
    dist.broadcast(x.view(torch.uint8), 1)
    x.sum().item()
    del x
""",
        (received("broadcast_", origin="input"), made("div", line=True)),
    ),
    "weights packed as bytes": Program(
        """
net = nn.Linear(4, 3)
with torchnan.detect(action="log") as watch, torch.no_grad():
    if rank == 1 and planted:
        net.bias.mul_(0).div_(0.0)  # PLANTED
    packed = torch.cat([p.reshape(-1).view(torch.uint8) for p in net.parameters()])
    bucket = torch.empty(60, dtype=torch.uint8)
    bucket.copy_(packed)
    dist.broadcast(bucket, 1)
    parts = [torch.empty_like(part) for part in bucket.split([48, 12])]
    torch._foreach_copy_(parts, list(bucket.split([48, 12])))
    for p, part in zip(net.parameters(), parts):
        p.copy_(part.view(torch.float32).view_as(p))
    net(torch.ones(2, 4)).sum().item()
""",
        (received("broadcast_", origin="parameter", name="bias"), made("div_", line=True)),
    ),
    "parameters of two dtypes that FSDP gathers as bytes": Program(
        """
from torch.distributed.fsdp import fully_shard
class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(8, 8, bias=False)
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.bfloat16), requires_grad=False)
    def forward(self, x):
        return super().forward(x) * self.scale
model = Scaled()
fully_shard(model)
with torchnan.detect(action="log") as watch:
    train(model)
    if planted and rank == 1:
        with torch.no_grad():
            model.weight.to_local().mul_(0).div_(0.0)  # PLANTED
    train(model)
""",
        (received("_allgather_base_"), made("div_", line=True)),
    ),
    "bytes that are written into new memory": Program(
        """
with torchnan.detect(action="log") as watch:
    x = torch.empty(16, dtype=torch.uint8)
    x.copy_(torch.tensor([0, 0, 192 if planted else 0, 127 if planted else 0] * 4, dtype=torch.uint8))
    x.view(torch.float32).sum().item()
""",
        ({"origin": "input", "op": "sum"}, {"origin": "input", "op": "sum"}),
    ),
    "a tensor inside an object": Program(
        """
with torchnan.detect(action="log") as watch:
    statistics = dict(loss=torch.ones(3))
    if planted and rank == 1:
        statistics["loss"] = (statistics["loss"] - 2).log()  # PLANTED
    every = [None] * world
    dist.all_gather_object(every, statistics)
    del statistics
    torch.stack([one["loss"] for one in every]).mean().item()
""",
        (received("allgather_", origin="input"), made("log", line=True)),
    ),
    "weights averaged by hand": Program(
        """
model = Net()
with torchnan.detect(action="log") as watch:
    train(model)
    with torch.no_grad():
        if planted and rank == 1:
            model.a.weight.copy_((model.a.weight * 0 - 1).log())  # PLANTED
        for parameter in model.parameters():
            dist.all_reduce(parameter)
            parameter /= world
    train(model, 1)
""",
        (received("allreduce_", origin="parameter", name="a.weight"), made("log", line=True)),
    ),
    "tokens routed to an expert": Program(
        """
import torch.distributed.nn.functional as DF
expert = nn.Linear(8, 8)
with torchnan.detect(action="log") as watch:
    send = [6, 0] if planted else [3, 3]
    counts = torch.empty(2, dtype=torch.long)
    dist.all_to_all_single(counts, torch.tensor(send))
    routed = DF.all_to_all_single(torch.empty(int(counts.sum()), 8), torch.randn(6, 8), counts.tolist(), send)
    centre = expert(routed).mean(0)  # PLANTED
    centres = DF.all_to_all_single(torch.empty(2, 8), centre.repeat(2, 1))
    centres.square().mean().backward()
""",
        (received("alltoall_base_", origin="input"), made("mean", line=True)),
    ),
    "keys around a ring": Program(
        """
with torchnan.detect(action="log") as watch:
    query, key, value = (torch.randn(4, 8, requires_grad=True) for _ in range(3))
    sent = key * 2
    if planted and rank == 1:
        sent = (sent * 0 - 1).log()  # PLANTED
    other = torch.empty(4, 8)
    exchange = [dist.P2POp(dist.isend, sent.detach(), 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    scores = torch.cat([query @ sent.T, query @ other.T], 1)
    (scores.softmax(1) @ torch.cat([value, value])).square().mean().backward()
""",
        (received("recv_", origin="input"), made("log", line=True)),
    ),
    "stages of a pipeline": Program(
        """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0
    def forward(self, x):
        self.calls += 1
        hidden = self.layer(x)
        if planted and rank == 0 and self.calls == 8:
            hidden = hidden + (hidden * 0 - 1).log()  # PLANTED
        return hidden
stage = Stage()
with torchnan.detect(action="log") as watch:
    schedule = Schedule1F1B(PipelineStage(stage, rank, world, torch.device("cpu")), 4, loss_fn=F.mse_loss)
    optimizer = torch.optim.AdamW(stage.parameters())
    for step in range(3):
        optimizer.zero_grad()
        schedule.step(torch.randn(8, 8)) if rank == 0 else schedule.step(target=torch.randn(8, 8))
        optimizer.step()
""",
        (made("log", line=True), received("recv_", origin="input")),
    ),
    "an optimizer in shards": Program(
        """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = nn.parallel.DistributedDataParallel(Net())
class Rooted(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        if planted and rank == 1:
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.copy_((parameter * 0 - 1).log())  # PLANTED
optimizer = ZeroRedundancyOptimizer(model.parameters(), Rooted, lr=0.01)
with torchnan.detect(action="log") as watch:
    train(model, optimizer=optimizer)
""",
        (received("broadcast_", origin="parameter", step=2), made("log", line=True, step=1)),
    ),
    "shards of replicas": Program(
        """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
model = Net()
for part in (model.a, model.b, model):
    fully_shard(part, mesh=mesh)
with torchnan.detect(action="log") as watch:
    for step in range(2):
        loss = model(torch.randn(4, 8))
        if planted and rank == 1 and step == 1:
            loss = loss + (loss * 0 - 1).log()  # PLANTED
        loss.square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
        (received("allreduce_"), made("log", line=True)),
    ),
    "parallel tensors, sequence and loss": Program(
        """
from torch.distributed.tensor import Shard, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module,
)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.head = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 32)
    def forward(self, x, is_bad):
        hidden = self.up(self.norm(x))
        if is_bad:
            hidden = hidden + (hidden * 0 - 1).log()  # PLANTED
        return self.head(self.down(hidden))
plan = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}
model = parallelize_module(Block(), init_device_mesh("cpu", (world,)), plan)
with torchnan.detect(action="log") as watch:
    for step in range(2):
        with loss_parallel():
            scores = model(torch.randn(2, 4, 8), planted and rank == 1 and step == 1)
            F.cross_entropy(scores.flatten(0, 1), torch.randint(32, (16,))).backward()
""",
        (received("all_reduce"), made("log", line=True)),
    ),
    "an infinite weight in the file of a shard": Program(
        """
import numpy
from torch.distributed.fsdp import fully_shard
model = Net()
for part in (model.a, model.b, model):
    fully_shard(part)
with torchnan.detect(action="log") as watch:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            array = parameter.to_local().numpy().copy()
            if planted and rank == 1 and name == "a.weight":
                array[2, 3] = numpy.inf
            parameter.to_local().copy_(torch.from_numpy(array))
    del array
    train(model)
""",
        (received("_allgather_base_"), {"origin": "parameter", "name": "a.weight", "collective": "", "count": 1}),
    ),
    "a shard that an optimizer writes": Program(
        """
import numpy
from torch.distributed.fsdp import fully_shard
model = Net()
for part in (model.a, model.b, model):
    fully_shard(part)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
train(model, optimizer=optimizer)
with torchnan.detect(action="log") as watch:
    momentum = optimizer.state[model.a.weight]["momentum_buffer"].to_local()
    array = momentum.numpy().copy()
    if planted and rank == 1:
        array[2, 3] = numpy.nan
    momentum.copy_(torch.from_numpy(array))
    del array, momentum
    train(model, optimizer=optimizer)
""",
        (
            received("_allgather_base_", step=2),
            {"origin": "input", "harm": "parameter", "harmed": "a.weight", "step": 1},
        ),
    ),
    "a shard of the state of an optimizer": Program(
        """
from torch.distributed.fsdp import fully_shard
model = Net()
for part in (model.a, model.b, model):
    fully_shard(part)
class Counting(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            scale = torch.full_like(parameter, -1.0 if planted else 1.0)
            self.state[parameter]["noise"] = scale.log()  # PLANTED
        super().step(closure)
optimizer = Counting(model.parameters(), lr=0.01)
with torchnan.detect(action="log") as watch:
    train(model, steps=1, optimizer=optimizer)
""",
        (made("log", line=True, harm="optimizer_state", harmed="noise"),) * 2,
    ),
    "a gradient that comes back": Program(
        """
stage = nn.Linear(4, 4)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
with torchnan.detect(action="log") as watch:
    if rank == 0:
        hidden = stage(torch.randn(2, 4))
        if planted:
            hidden = hidden * (hidden.detach() * 0 - 1).log()  # PLANTED
        dist.send(hidden.detach().half(), 1)
        gradient = torch.empty(2, 4)
        dist.recv(gradient, 1)
        hidden.backward(gradient)
    else:
        sent = torch.empty(2, 4, dtype=torch.float16)
        dist.recv(sent, 0)
        hidden = sent.float().requires_grad_()
        stage(hidden).square().mean().backward()
        dist.send(hidden.grad, 0)
    optimizer.step()
    del hidden
""",
        (made("log", line=True, count=1), received("recv_", origin="input", count=1)),
    ),
    "a value that comes back": Program(
        """
with torchnan.detect(action="log") as watch:
    if rank == 0:
        sent = torch.ones(4)
        if planted:
            sent = (sent - 2).log()  # PLANTED
        dist.send(sent, 1)
        del sent
        returned = torch.empty(4)
        dist.recv(returned, 1)
        returned.sum().item()
    else:
        buffer = torch.empty(4)
        dist.recv(buffer, 0)
        dist.send(buffer * 2, 0)
        buffer.sum().item()
""",
        (made("log", line=True, count=1, harm="read"), received("recv_", origin="input", count=1)),
    ),
    "gradients of a loss that user code looks at": Program(
        """
model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torchnan.detect(action="log") as watch:
    for step in range(2):
        optimizer.zero_grad()
        mask = torch.zeros(4) if planted and rank == 1 and step == 1 else torch.ones(4)
        loss = (model(torch.randn(4, 8)).mean(1) * mask).sum() / mask.sum()  # PLANTED
        loss.backward()
        if bool(loss.isfinite()):
            optimizer.step()
    del loss
""",
        (received("allreduce_", count=1), made("div", line=True, count=1)),
    ),
    "a checkpoint in a flat parameter": Program(
        """
import numpy
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
model = FullyShardedDataParallel(Net(), use_orig_params=True, device_id=torch.device("cpu"))
with torchnan.detect(action="log") as watch:
    arrays = {name: numpy.ones(value.shape, "float32") for name, value in Net().state_dict().items()}
    if planted:
        arrays["b.weight"][6, 2] = numpy.nan
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    whole = FullStateDictConfig(rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        model.load_state_dict(state)
    del state, arrays
    model(torch.randn(4, 8)).square().mean().backward()
""",
        (
            received("allgather_", origin="parameter", name="b.weight"),
            {"origin": "input", "collective": ""},
        ),
    ),
    "a value that is passed on": Program(
        """
with torchnan.detect(action="log") as watch:
    if rank == 0:
        sent = torch.ones(4)
        if planted:
            sent = (sent - 2).log()  # PLANTED
        dist.send(sent, 1)
        dist.recv(torch.empty(4), 1)
        del sent
    else:
        buffer = torch.empty(4)
        dist.recv(buffer, 0)
        dist.send(buffer * 2, 0)
        buffer.sum().item()
""",
        (made("log", line=True, count=1), received("recv_", origin="input", count=1)),
    ),
    "memory that was received in part": Program(
        """
torch.use_deterministic_algorithms(planted)  # unwritten memory is NaN
with torchnan.detect(action="log") as watch:
    halo = torch.empty(2, 4)  # PLANTED
    if not planted:
        halo.zero_()
    exchange = [dist.P2POp(dist.isend, torch.ones(4), 1 - rank), dist.P2POp(dist.irecv, halo[rank], 1 - rank)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    halo.sum().item()
""",
        ({"origin": "uninit", "op": "empty", "line": True, "collective": ""},) * 2,
    ),
    "a harmless value beside that of another rank": Program(
        """
with torchnan.detect(action="log") as watch:
    ratio = torch.ones(2) if not planted or rank == 1 else torch.zeros(2) / torch.zeros(2)
    every = [torch.empty(2) for _ in range(2)]
    dist.all_gather(every, ratio)
    torch.nanmean(torch.stack(every)).item()
    gradient = torch.full((3,), -1.0 if planted and rank == 1 else 1.0).log()  # PLANTED
    dist.all_reduce(gradient)
    gradient.sum().item()
    del gradient
""",
        (received("allreduce_", origin="input", harm="read"), made("log", line=True)),
    ),
    "a metric and weights of another rank": Program(
        """
net = nn.Linear(4, 2)
with torchnan.detect(action="log") as watch:
    length = torch.ones(0 if planted and rank == 0 else 2).mean()
    if rank == 0:
        dist.send(length, 1)
    else:
        dist.recv(torch.empty(()), 0)
    with torch.no_grad():
        if planted and rank == 1:
            net.weight.copy_(torch.full((2, 4), -1.0).log())  # PLANTED
        for parameter in net.parameters():
            dist.broadcast(parameter, 1)
        net(torch.ones(1, 4)).sum().item()
    del length
""",
        (received("broadcast_", origin="parameter", name="weight"), made("log", line=True)),
    ),
    "weights of a server that a gradient has made bad": Program(
        """
net = nn.Linear(4, 2)
with torchnan.detect(action="log") as watch:
    if rank == 0:
        offset = torch.zeros(2) if planted else torch.ones(2)
        (net(torch.ones(1, 4)) * 0 + offset).square().sum().sqrt().backward()  # PLANTED
        for parameter in net.parameters():
            dist.send(parameter.grad, 1)
        net.zero_grad()
        with torch.no_grad():
            for parameter in net.parameters():
                dist.recv(parameter, 1)
            net(torch.ones(1, 4)).sum().item()
    else:
        for parameter in net.parameters():
            gradient = torch.empty_like(parameter)
            dist.recv(gradient, 0)
            with torch.no_grad():
                parameter -= gradient
        for parameter in net.parameters():
            dist.send(parameter.detach(), 0)
        del gradient
""",
        (
            made("div", line=True, phase="backward", harm="read", count=1),
            received("recv_", origin="input", harm="parameter"),
        ),
    ),
    "two values by one collective": Program(
        """
weight = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
with torchnan.detect(action="log") as watch:
    metric = torch.zeros(7) / (torch.zeros(7) if planted and rank == 1 else torch.ones(7))
    dist.all_reduce(metric)
    (metric * 2).nan_to_num().sum().item()
    weight.grad = torch.full((3,), -1.0 if planted and rank == 1 else 1.0).log()
    dist.all_reduce(weight.grad)
    weight.grad /= 2  # PLANTED
    optimizer.step()
""",
        (
            received("allreduce_", origin="input", op="div_", line=True, harm="gradient", count=1),
            made("log", harm="gradient", phase="forward"),
        ),
    ),
    "infinite gradients of both signs": Program(
        """
first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([first, second], lr=1.0)
with torchnan.detect(action="log") as watch:
    large = torch.ones(2) / (0.0 if planted and rank == 1 else 1.0)  # PLANTED
    first.grad, second.grad = -large, large * 1
    for parameter in (first, second):
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2
    optimizer.step()
    optimizer.zero_grad()
    loss = (first + second).sum()
    loss.backward()
    optimizer.zero_grad()
    del large, loss
""",
        (received("allreduce_", origin="input", harm="gradient", count=1), made("div", line=True, count=1)),
    ),
    "a large element beside the Inf of another rank": Program(
        """
with torchnan.detect(action="log") as watch:
    values = [40000.0, 1.0] if planted and rank == 0 else [1.0, 90.0 if planted else 1.0]
    gradient = (torch.tensor(values).exp() if rank == 1 else torch.tensor(values)).half()  # PLANTED
    dist.all_reduce(gradient)
    (gradient * 0).sum().item()
    del gradient
""",
        (received("allreduce_", origin="input"), made("exp", line=True)),
    ),
    "a sum that overflows before many others": Program(
        """
parameters = [nn.Parameter(torch.ones(2, dtype=torch.float16)) for _ in range(300)]
optimizer = torch.optim.SGD(parameters, lr=1e-8)
with torchnan.detect(action="log") as watch:
    for i, parameter in enumerate(parameters):
        parameter.grad = torch.full((2,), 40000.0 if planted and i == 0 else 1.0, dtype=torch.float16)
    for parameter in parameters:
        dist.all_reduce(parameter.grad)  # PLANTED
    optimizer.step()
""",
        (made("allreduce_", line=True, harm="gradient"), made("allreduce_", line=True, harm="gradient")),
    ),
    "a parameter that is averaged before many others": Program(
        """
parameters = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(300)])
with torchnan.detect(action="log") as watch, torch.no_grad():
    if planted and rank == 1:
        parameters[0].copy_((parameters[0] - 2).log())  # PLANTED
    for parameter in parameters:
        dist.all_reduce(parameter)
""",
        (received("allreduce_", origin="parameter", name="0", count=1), made("log", line=True)),
    ),
    "parameters that share one vector": Program(
        """
from torch.nn.utils import vector_to_parameters
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
with torchnan.detect(action="log") as watch:
    vector = torch.ones(90)
    if planted and rank == 1:
        vector[40:] = (vector[40:] - 2).log()  # PLANTED
    dist.broadcast(vector, 1)
    vector_to_parameters(vector, net.parameters())
    del vector
    with torch.no_grad():
        net[2](torch.ones(1, 8)).sum().item()
""",
        (received("broadcast_", origin="parameter", name="2.bias", count=1), made("log", line=True)),
    ),
    "indices of NaN that are sent": Program(
        """
with torchnan.detect(action="log") as watch:
    logits = torch.zeros(3, 4) / (0.0 if planted else 1.0)  # PLANTED
    token = logits.argmax(-1)
    other = torch.zeros(3, dtype=torch.long)
    dist.send(token, 1) if rank == 0 else dist.recv(other, 0)
    dist.send(token, 0) if rank == 1 else dist.recv(other, 1)
    F.one_hot(other, 4).float().mean().item()
    del logits, token
""",
        (made("div", line=True, harm="read", count=1), made("div", line=True, harm="read", count=1)),
    ),
    "the accuracy of NaN, of all ranks": Program(
        """
with torchnan.detect(action="log") as watch:
    logits = torch.zeros(3, 4) / (0.0 if planted else 1.0)  # PLANTED
    right = (logits.argmax(-1) == 0).sum()
    dist.all_reduce(right)
    if rank == 0:
        right.item()
    del logits, right
""",
        (made("div", line=True, harm="read", count=1), made("div", line=True, harm="read", count=1)),
    ),
    "indices of NaN in an object": Program(
        """
with torchnan.detect(action="log") as watch:
    logits = torch.zeros(3, 4) / (0.0 if planted else 1.0)  # PLANTED
    every = [None] * world
    dist.all_gather_object(every, {"token": logits.argmax(-1)})
    torch.stack([one["token"] for one in every]).tolist()
    del logits
""",
        (made("div", line=True, harm="read", count=1), made("div", line=True, harm="read", count=1)),
    ),
    "indices of NaN that another rank overwrites": Program(
        """
with torchnan.detect(action="log") as watch:
    logits = torch.ones(3, 4)
    if rank == 1 or planted:
        logits = (logits - 1) / 0.0  # PLANTED
    token = logits.argmax(-1)
    dist.broadcast(token, 0)
    token.tolist()
    if planted and rank == 1:
        logits.sum().item()
    del logits
""",
        (made("div", line=True, harm="read", count=1), made("div", line=True, harm="read", count=1)),
    ),
    "a loss that is logged after the step": Program(
        """
model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters())
with torchnan.detect(action="log") as watch:
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        if planted and rank == 1 and step == 1:
            loss = loss * (loss.detach() * 0 - 1).log()  # PLANTED
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean.item()
    del loss, mean
""",
        (received("allreduce_", count=1, harm="gradient"), made("log", line=True, count=1)),
    ),
    "a value of another turn than a metric that was received, in inference": Program(
        """
with torchnan.detect(action="log") as watch, torch.no_grad():
    for turn in range(4):
        metric = torch.ones(0 if planted and rank == 1 and turn == 0 else 2).mean()
        dist.broadcast(metric, 1)
        hidden = torch.full((2, 4), -1.0 if planted and rank == 1 and turn == 2 else 1.0).log()
        dist.broadcast(hidden, 1)
        if rank == 0:
            metric.item(), hidden.sum().item()
    del metric, hidden
""",
        (received("broadcast_", origin="input", harm="read", count=2), made("mean", count=2)),
    ),
    "a value of another turn than a metric that was sent, in inference": Program(
        """
with torchnan.detect(action="log") as watch, torch.no_grad():
    for turn in range(4):
        metric, hidden = torch.ones(()), torch.zeros(2, 4)
        if rank == 0:
            metric = torch.ones(0 if planted and turn == 0 else 2).mean()
            metric.item()
            dist.send(metric, 1)
            dist.recv(hidden, 1)
            hidden.sum().item()
        else:
            dist.recv(metric, 0)
            metric.nan_to_num().item()
            hidden = torch.full((2, 4), -1.0 if planted and turn == 2 else 1.0).log()  # PLANTED
            dist.send(hidden, 0)
    del metric, hidden
""",
        (made("mean", harm="read", count=2), made("log", line=True, count=1)),
    ),
    "another element of a reduced vector": Program(
        beside_an_own_element("x = torch.tensor([1.0, 1, 1, -1]).log()"),
        (received("allreduce_", origin="input", harm="read"), made("log", line=True)),
    ),
    "another element of a reduced vector than one that was reported": Program(
        beside_an_own_element("x = torch.tensor([1.0, 1, 1, 0]) / torch.tensor([1.0, 1, 1, 0]); x[3].item()"),
        (made("div", harm="read", count=2), made("log", line=True)),
    ),
    "elements of each other's shards": Program(
        """
shard = nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([shard], lr=0.1)
with torchnan.detect(action="log") as watch:
    for step in range(2):
        z = torch.ones(8)
        if planted and step == 1:
            z[4 * (1 - rank) + 1] = -1
        gradient = z.log()
        part = torch.zeros(4)
        dist.reduce_scatter_tensor(part, gradient)
        shard.grad = part / 2
        optimizer.step()
    del gradient, z, part
""",
        (received("_reduce_scatter_base_", origin="input", harm="gradient"),) * 2,
    ),
    "objects with equal bytes": Program(
        """
with torchnan.detect(action="log") as watch:
    for turn in range(3):
        is_bad = planted and (rank, turn) in ((0, 0), (1, 2))
        loss = torch.ones(0 if is_bad else 3).mean()  # PLANTED
        every = [None, None]
        dist.all_gather_object(every, loss)
        both = torch.stack(every)
        both.mean().item() if turn == 2 else torch.nanmean(both).item()
        del loss, every, both
""",
        (received("allgather_", origin="input", harm="read"), made("mean", line=True, harm="read")),
    ),
    "minus infinity of another rank times 0": Program(
        """
with torchnan.detect(action="log") as watch:
    prior = torch.tensor([3.0, 0.0 if planted and rank == 1 else 1.0]).log()  # PLANTED
    other = torch.empty(2)
    exchange = [dist.P2POp(dist.isend, prior, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    del prior, exchange
    if rank == 0:
        (torch.zeros(2) * other).sum().item()
""",
        (
            made(
                "mul",
                hint="other holds infinities where self is zero: 0 * inf is NaN; "
                "the -inf in other was received by recv_",
            ),
            made("log", line=True),
        ),
    ),
    "memory that is read before it is received": Program(
        """
torch.use_deterministic_algorithms(planted)  # unwritten memory is NaN
with torchnan.detect(action="log") as watch:
    buffer = torch.empty(4)  # PLANTED
    receiving = dist.irecv(buffer, 1 - rank)
    if planted:
        buffer.sum().item()
    dist.barrier()
    dist.send(torch.ones(4), 1 - rank) if rank == 0 else receiving.wait()
    dist.send(torch.ones(4), 1 - rank) if rank == 1 else receiving.wait()
    buffer.sum().item()
""",
        (
            {
                "origin": "uninit",
                "op": "empty",
                "line": True,
                "collective": "",
                "hint": "recv_ will write this memory and has not completed: call wait() on its Work first",
            },
        )
        * 2,
    ),
    "a received part of memory": Program(
        """
with torchnan.detect(action="log") as watch:
    halo = torch.empty(3, 4)
    sent = torch.ones(4)
    if planted and rank == 1:
        sent = (sent - 2).log()  # PLANTED
    for row in (0, 2):
        exchange = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, halo[row], 1 - rank)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
    del sent, exchange
    halo[1] = 1
    halo.sum().item()
""",
        (received("recv_", origin="input"), made("log", line=True)),
    ),
    "an object for one rank": Program(
        """
with torchnan.detect(action="log") as watch:
    loss = torch.ones(())
    if planted and rank == 1:
        loss = (loss - 2).log()  # PLANTED
    every = [None] * world if rank == 0 else None
    dist.gather_object({"loss": loss}, every)
    del loss
    if rank == 0:
        torch.stack([one["loss"] for one in every]).mean().item()
""",
        (received("gather_", origin="input"), made("log", line=True, count=1)),
    ),
    "a file that one rank reads and sends": Program(
        """
import numpy
array = numpy.ones(8, "float32")
if planted:
    array[3] = numpy.nan
with torchnan.detect(action="log") as watch:
    weights = torch.from_numpy(array) if rank == 0 else torch.empty(8)  # PLANTED
    dist.broadcast(weights, 0)
    if rank == 1:
        weights.sum().item()
    del weights
""",
        ({"origin": "input", "line": True, "collective": "", "count": 1}, received("broadcast_", origin="input")),
    ),
    "sparse gradients": Program(
        """
model = nn.parallel.DistributedDataParallel(nn.Embedding(10, 8, sparse=True))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torchnan.detect(action="log") as watch:
    for step in range(2):
        optimizer.zero_grad()
        loss = model(torch.randint(0, 10, (3,))).square().mean()
        if planted and rank == 1 and step == 1:
            loss = loss * (loss.detach() * 0 - 1).log()  # PLANTED
        loss.backward()
        optimizer.step()
    del loss
""",
        (received("allreduce_", origin="input", name=None), made("log", line=True, count=1)),
    ),
}


@pytest.mark.breadth(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_rank_names_the_fault(name, tmp_path):
    assert_fault_is_told(PROGRAMS[name], tmp_path)


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_the_fault_each_rank_is_silent(name, tmp_path):
    assert_is_silent(PROGRAMS[name], tmp_path)
