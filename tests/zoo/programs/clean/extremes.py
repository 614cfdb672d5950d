"""Minima, maxima and extremes that begin at infinity."""

import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, NAN, case, mark_step, track


@case(
    "quant-observers",
    "torch.ao observers start at min = inf, max = -inf; one of them never sees data",
    "",
    "clean-init",
    "clean",
)
def quant_observers():
    from torch.ao.quantization.observer import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver

    class Observed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 3)
            self.inp, self.out, self.idle = MinMaxObserver(), HistogramObserver(bins=16), MinMaxObserver()
            self.weight_obs = PerChannelMinMaxObserver(ch_axis=0)

        def forward(self, x):
            self.weight_obs(self.lin.weight)
            return self.out(self.lin(self.inp(x)))

    net = track(Observed())
    text = repr(net)
    with torch.no_grad():
        for _ in range(2):
            y = net(torch.randn(5, 4))
    scales = [obs.calculate_qparams()[0].flatten() for obs in (net.inp, net.idle, net.weight_obs, net.out)]
    twin = copy.deepcopy(net)
    assert "inf" in text and repr(twin.inp) == repr(net.inp)
    return (y, net.inp.min_val) + tuple(scales)


@case(
    "metric-buffers-inf",
    "a min/max metric in buffers: reset, update, save, load, printed before any data",
    "",
    "clean-init",
    "clean",
)
def metric_buffers_inf():
    class Range(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("lo", torch.tensor(float("inf")))
            self.register_buffer("hi", torch.tensor(-float("inf")))
            self.register_buffer("last", torch.tensor(float("nan")))

        def reset(self):
            self.lo.fill_(float("inf"))
            self.hi.fill_(-float("inf"))
            self.last.fill_(float("nan"))

        def forward(self, x):
            self.lo = torch.minimum(self.lo, x.min())
            self.hi = torch.maximum(self.hi, x.max())
            self.last = torch.where(self.last.isnan(), x.mean(), 0.9 * self.last + 0.1 * x.mean())
            return self.hi - self.lo

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.range = nn.Linear(3, 3), Range()

        def forward(self, x):
            y = self.lin(x)
            self.range(y.detach())
            return y

    net = track(Net())
    lines = ["%s %s %s" % (net.range.lo, net.range.hi.item(), float(net.range.last))]
    for _ in range(3):
        out = net(torch.randn(4, 3))
    width = net.range.hi - net.range.lo
    fresh = Net()
    fresh.load_state_dict(net.state_dict())
    net.range.reset()
    lines.append(str({k: v.tolist() for k, v in net.range.state_dict().items()}))
    out.sum().backward()
    return width, fresh.range.last, net.lin.weight.grad


@case(
    "early-stopping-plateau",
    "early stopping with best = inf, ReduceLROnPlateau, deep copy of the best weights",
    "",
    "clean-init",
    "clean",
)
def early_stopping_plateau():
    class EarlyStopping:
        def __init__(self, patience):
            self.best, self.patience, self.bad, self.state = torch.tensor(np.inf), patience, 0, None

        def __call__(self, val, model):
            if val < self.best:
                message = "decreased (%.6f --> %.6f)" % (self.best, val)
                self.best, self.state, self.bad = val.detach(), copy.deepcopy(model.state_dict()), 0
                return message
            self.bad += 1
            return self.bad >= self.patience

    net = track(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)))
    opt = torch.optim.RMSprop(net.parameters(), lr=0.02)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
    stop, x, y = EarlyStopping(2), torch.randn(12, 3), torch.randn(12, 1)
    for k in range(1, 6):
        mark_step(k)
        opt.zero_grad()
        F.mse_loss(net(x[:8]), y[:8]).backward()
        opt.step()
        with torch.no_grad():
            val = F.mse_loss(net(x[8:]), y[8:])
        sched.step(val)
        if stop(val, net) is True:
            break
    net.load_state_dict(stop.state)
    return stop.best, net[0].weight


@case(
    "optimizer-best-metric-state",
    "an optimizer that keeps the lowest gradient norm seen in its state, from inf",
    "",
    "clean-init",
    "clean",
)
def optimizer_best_metric_state():
    class MinNormSgd(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["step"] = 0
                        state["least_norm"] = torch.tensor(float("inf"))
                        state["least_at"] = torch.full_like(p, float("inf"))
                    state["step"] += 1
                    norm = p.grad.norm()
                    if state["step"] > 1:  # the first gradient is noise
                        state["least_norm"] = torch.minimum(state["least_norm"], norm)
                        state["least_at"] = torch.minimum(state["least_at"], p.grad.abs())
                    scale = torch.clamp(state["least_norm"] / (norm + 1e-12), max=1.0)
                    p.add_(p.grad * scale, alpha=-group["lr"])

    net = track(nn.Linear(3, 2))
    opt = MinNormSgd(net.parameters(), lr=0.1)
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    for k in range(1, 5):
        mark_step(k)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.weight, opt.state[net.weight]["least_norm"]


@case(
    "scatter-amax-empty-segments",
    "global max pooling: scatter_reduce amax from -inf, graphs without nodes become 0",
    "",
    "clean-init",
    "clean",
)
def scatter_amax_empty_segments():
    class MaxPool(nn.Module):
        def forward(self, x, batch, n):
            out = x.new_full((n, x.shape[1]), float("-inf"))
            out = out.scatter_reduce(0, batch[:, None].expand_as(x), x, reduce="amax", include_self=True)
            return torch.where(out == float("-inf"), torch.zeros_like(out), out)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.pool, self.head = nn.Linear(3, 4), MaxPool(), nn.Linear(4, 1)

        def forward(self, x, batch, n):
            return self.head(self.pool(self.lin(x), batch, n))

    net = track(Net())
    out = net(torch.randn(6, 3), torch.tensor([0, 0, 1, 3, 3, 3]), 5)
    out.sum().backward()
    seg = torch.segment_reduce(torch.randn(6), "max", lengths=torch.tensor([2, 0, 4]), initial=-INF)
    low = torch.full((4,), INF).index_reduce_(0, torch.tensor([0, 0, 2]), torch.tensor([3.0, 1.0, 2.0]), "amin")
    return out, net.lin.weight.grad, seg[[0, 2]], low[torch.isfinite(low)]


@case(
    "neginf-padded-pooling", "dilation of feature maps by max pooling over a border of -inf", "", "clean-init", "clean"
)
def neginf_padded_pooling():
    class Dilate(nn.Module):
        def forward(self, x):
            x = F.pad(x, (1, 1, 1, 1), value=float("-inf"))
            x = F.max_pool2d(x, 3, stride=1)
            lo = -F.max_pool2d(F.pad(-x, (0, 1, 0, 1), value=-INF), 2, stride=2)
            return x, lo

    net = track(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), Dilate()))
    hi, lo = net(torch.randn(2, 1, 4, 4))
    (hi.mean() + lo.mean()).backward()
    return hi, lo, net[0].weight.grad


@case(
    "knn-self-excluded",
    "self distance set to inf in place, topk, affinities exp(-inf) = 0, SimCLR diagonal",
    "",
    "clean-init",
    "clean",
)
def knn_self_excluded():
    net = track(nn.Linear(3, 2))
    z = F.normalize(net(torch.randn(6, 3)), dim=1)
    sim = z @ z.t() / 0.5
    sim = sim.fill_diagonal_(float("-inf"))
    loss = F.cross_entropy(sim, torch.tensor([1, 0, 3, 2, 5, 4]))
    loss.backward()
    with torch.no_grad():
        d = torch.cdist(z, z).fill_diagonal_(math.inf)
        near, idx = d.topk(3, largest=False)
        order = d.sort(1).indices[:, :-1]
        aff = torch.exp(-d.square())
        aff = aff / aff.sum(1, keepdim=True)
        med = d.median(1).values
    return loss, near, order.float(), aff, med, net.weight.grad


@case(
    "norm-ord-inf-foreach",
    "inf as an argument: norms, clamps, hardtanh, foreach, clip_grad_norm_(norm_type=inf)",
    "",
    "clean-init",
    "clean",
)
def norm_ord_inf_foreach():
    net = track(nn.Sequential(nn.Linear(3, 3), nn.Hardtanh(-math.inf, 1.0), nn.Linear(3, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True, momentum=0.9)
    for k in range(1, 4):
        mark_step(k)
        x = torch.randn(4, 3).clamp(min=-math.inf, max=2.0)
        loss = net(x).abs().clamp_max(INF).sum()
        opt.zero_grad()
        loss.backward()
        total = nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm_type=math.inf)
        opt.step()
    norms = torch.stack(torch._foreach_norm([p.detach() for p in net.parameters()], math.inf))
    low = [torch.full((3,), -INF), torch.full((3,), -INF)]
    torch._foreach_maximum_(low, [torch.zeros(3), torch.ones(3)])
    return loss, total, norms, torch.linalg.matrix_norm(net[0].weight.detach(), math.inf), low[0]


@case(
    "rank-bucket-compare",
    "sort, topk, cummax, bucketize with inf edges, isclose/allclose with NaN",
    "",
    "clean-init",
    "clean",
)
def rank_bucket_compare():
    x = torch.tensor([3.0, NAN, -INF, 1.0, INF, 2.0])
    edges = torch.tensor([-INF, 0.0, 1.5, INF])
    ok = x[torch.isfinite(x)]
    bins = torch.bucketize(ok, edges)
    ranks = x.nan_to_num(nan=0.0).argsort().argsort()
    top = x[~x.isnan()].topk(4).values
    mid = top[torch.isfinite(top)]
    run = torch.cummax(torch.where(x.isnan(), -INF, x), 0).values[3]
    both = torch.isclose(x, x.clone(), equal_nan=True)
    assert torch.allclose(x, x.clone(), equal_nan=True) and not torch.equal(x, x.clone())
    torch.testing.assert_close(x, x.clone(), equal_nan=True)
    found = torch.searchsorted(edges, ok)
    q = torch.nanquantile(torch.where(torch.isinf(x), NAN, x), 0.5)
    h = torch.histc(x[torch.isfinite(x)], 3, 0.0, 3.0)
    return bins.float(), ranks.float(), mid, run, both.float(), found.float(), q, h


@case(
    "one-over-inf-optics",
    "a parameterisation in which inf is an ordinary value: focal lengths, degrees of freedom",
    "",
    "clean-saturating",
    "clean",
)
def one_over_inf_optics():
    class ThinLens(nn.Module):
        def __init__(self):
            super().__init__()
            self.power = nn.Parameter(torch.tensor(0.5))
            self.register_buffer("object_distance", torch.tensor([2.5, 4.0, float("inf")]))

        def forward(self):
            return 1.0 / (self.power - 1.0 / self.object_distance)

    lens = track(ThinLens())
    image = lens()
    image.sum().backward()
    dof = torch.tensor([1.0, 5.0, math.inf])
    t = torch.randn(3)
    tail = (1 + t * t / dof).clamp(min=1)
    return image, lens.power.grad, tail, torch.atan(dof), torch.tanh(dof), torch.erf(-dof), torch.exp(-dof)
