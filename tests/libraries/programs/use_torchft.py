"""torchft: two replicas that agree on each step, and average the gradients of a model over gloo.

Bug: one replica divides its loss by the number of its labels, and a batch has none.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer


def train(replica, has_bug):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=0.01)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        min_replica_size=2,
        load_state_dict=net.load_state_dict,
        state_dict=net.state_dict,
        replica_id=f"replica {replica}",
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        hostname="localhost",
    )
    model, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, adam)
    for step in range(4):
        optimizer.zero_grad()
        error = (model(torch.randn(8, 8)) - torch.randn(8, 1)).square()
        labelled = torch.full_like(error, 0.0 if has_bug and replica == 1 and step == 2 else 1.0)
        loss = (error * labelled).sum() / labelled.sum()  # expect: aten::div
        loss.backward()
        optimizer.step()
    manager.shutdown()
    if replica == 0:
        print(loss.item())


if "--replica" in sys.argv:
    train(int(sys.argv[-1]), "--bug" in sys.argv)
else:
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2)
    os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse.address()
    replicas = [subprocess.Popen([sys.executable, *sys.argv, "--replica", str(replica)]) for replica in range(2)]
    failed = [replica.wait() for replica in replicas]
    lighthouse.shutdown()
    sys.exit(max(map(abs, failed)))
