"""Operators on lists, views and buffers."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import NAN, case, mark_step, track


@case(
    "feature-table-columns",
    "one column's log(0) is repaired with nan_to_num when it is read, another's 0/0 is not",
    "",
    "zero-division",
    "nan",
    "div",
    module=None,
)
def feature_table_columns():
    net = track(nn.Linear(3, 1))
    amount, clicks, views = torch.tensor([3.0, 0.0, 7.0]), torch.tensor([1.0, 0.0, 2.0]), torch.tensor([4.0, 0.0, 5.0])
    table = torch.zeros(3, 3)
    table[:, 0] = torch.log(amount)
    table[:, 1] = clicks / views  # ORIGIN
    table[:, 2] = views
    log_amount, ctr, seen = table.unbind(1)
    x = torch.stack([torch.nan_to_num(log_amount, neginf=0.0), ctr, seen], 1)
    loss = net(x).mean()
    loss.backward()
    return loss, net.weight.grad


@case(
    "stacked-losses-one-dropped",
    "two auxiliary losses go bad; the first is dropped by its index, the second enters the sum",
    "",
    "zero-count",
    "nan",
    ["mean", "div"],
    module="heads.1",
    debatable="the NaN of heads.0 is the first in the program, but nothing comes of it",
)
def stacked_losses_one_dropped():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, h, sel):
            return self.fc(h[sel]).square().mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([Head(), Head(), Head()])

        def forward(self, h, sels):
            return torch.stack([head(h, s) for head, s in zip(self.heads, sels)])

    net = track(Net())
    none, every = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    losses = net(torch.randn(4, 3), [none, none, every])
    warmup, *rest = losses.unbind()
    del warmup
    loss = sum(rest)
    losses = None
    loss.backward()
    return loss, net.heads[2].fc.weight.grad


@case(
    "metric-buffer-many-rows",
    "a per-step metric is written into the rows of a buffer; from step 2 on all 80 are 0/0",
    "",
    "zero-division",
    "nan",
    "div",
    module=None,
    step=2,
)
def metric_buffer_many_rows():
    net = track(nn.Linear(2, 2))
    log = torch.zeros(80, 2)
    with torch.no_grad():
        for k in range(1, 81):
            mark_step(k)
            h = F.relu(net(torch.ones(1, 2)) + 3.0 - 2.0 * k)[0]
            log[k - 1] = h / h.sum()  # ORIGIN
    return log


@case(
    "masked-mean-library",
    "torch.masked.mean over a row that is masked everywhere",
    "",
    "zero-count",
    "nan",
    ["div", "div_", "mean"],
    module="pool",
)
def masked_mean_library():
    class Pool(nn.Module):
        def forward(self, h, mask):
            return torch.masked.mean(h, dim=1, mask=mask)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.pool = Pool()

        def forward(self, x, mask):
            return self.pool(self.fc(x), mask[..., None].expand(-1, -1, 3))

    net = track(Net())
    out = net(torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]).bool())
    out.sum().backward()
    return out, net.fc.weight.grad


@case(
    "nanmean-all-missing",
    "nanmean of a sensor whose readings are all missing: 0/0 inside",
    "",
    "zero-count",
    "nan",
    ["div", "nanmean", "mean"],
    module=None,
)
def nanmean_all_missing():
    net = track(nn.Linear(3, 1))
    x = torch.tensor([[1.0, NAN, NAN], [2.0, 3.0, NAN]])
    fill = torch.nanmean(x, dim=0)  # ORIGIN
    x = torch.where(torch.isnan(x), fill, x)
    out = net(x)
    out.sum().backward()
    return out, net.weight.grad
