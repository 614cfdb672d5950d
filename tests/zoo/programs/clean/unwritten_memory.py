"""Memory that is written before it is read."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, case, dirty, mark_step, track


@case(
    "ragged-batch-in-empty",
    "a padded batch in torch.empty: only the written part is read, by slices and by mask",
    "",
    "clean-memory",
    "clean",
)
def ragged_batch_in_empty():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 2)

        def forward(self, rows):
            n = torch.tensor([len(r) for r in rows])
            buf = dirty(torch.empty(len(rows), int(n.max()), 3))
            for i, r in enumerate(rows):
                buf[i, : len(r)] = r
            valid = torch.arange(buf.shape[1]) < n[:, None]
            flat = self.lin(buf[valid])
            out = dirty(flat.new_empty(len(rows), buf.shape[1], 2))
            out[valid] = flat
            return torch.stack([o[:k].mean(0) for o, k in zip(out, n.tolist())])

    net = track(Pool())
    out = net([torch.randn(k, 3) for k in (2, 5, 1)])
    out.square().sum().backward()
    return out, net.lin.weight.grad


@case(
    "kv-cache-empty-view",
    "a KV cache from torch.empty, filled by index_copy_; the caller gets a view of what is filled",
    "",
    "clean-memory",
    "clean",
    notes="the returned view is finite; the tail of the same memory was never written and never read",
)
def kv_cache_empty_view():
    class Cached(nn.Module):
        def __init__(self, d=4, length=8):
            super().__init__()
            self.qkv = nn.Linear(d, 3 * d)
            self.register_buffer("k", dirty(torch.empty(length, d)), persistent=False)
            self.register_buffer("v", dirty(torch.empty(length, d)), persistent=False)
            self.n = 0

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            at = torch.arange(self.n, self.n + len(x))
            self.k.index_copy_(0, at, k)
            self.v[at] = v
            self.n += len(x)
            k, v = self.k[: self.n], self.v[: self.n]
            return (q @ k.t() * 0.5).softmax(-1) @ v, k

    net = track(Cached())
    with torch.no_grad():
        out, _ = net(torch.randn(3, 4))
        for _ in range(2):
            out, keys = net(torch.randn(1, 4))
    return out, keys


@case(
    "kv-cache-paged-masked",
    "paged cache with garbage pages: keys and values gathered, garbage replaced by where",
    "",
    "clean-memory",
    "clean",
)
def kv_cache_paged_masked():
    pages = dirty(torch.empty(4, 2, 3))
    proj = track(nn.Linear(3, 3))
    with torch.no_grad():
        seq = proj(torch.randn(5, 3))
        table = torch.tensor([2, 0, 3])
        for i, row in enumerate(seq):
            pages[table[i // 2], i % 2] = row
        gathered = pages[table].view(6, 3)
        valid = torch.arange(6) < 5
        k = torch.where(valid[:, None], gathered, torch.zeros(()))
        scores = (seq[-1] @ gathered.t()).masked_fill(~valid, -INF)
        out = scores.softmax(0) @ k
    return out, k


@case(
    "baddbmm-beta-zero",
    "attention scores by baddbmm(empty, q, k, beta=0): the empty input is ignored by contract",
    "",
    "clean-memory",
    "clean",
)
def baddbmm_beta_zero():
    class Core(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            buf = dirty(torch.empty(x.shape[0], x.shape[1], x.shape[1]))
            s = torch.baddbmm(buf, q, k.transpose(1, 2), beta=0.0, alpha=0.5)
            return torch.bmm(s.softmax(-1), v)

    net = track(Core())
    loss = net(torch.randn(2, 3, 4)).square().mean()
    loss.backward()
    work = dirty(torch.empty(3, 3))
    with torch.no_grad():
        work.addmm_(torch.eye(3), torch.ones(3, 3), beta=0)
    return loss, net.qkv.weight.grad, work


@case(
    "out-workspaces",
    "results into workspaces of torch.empty by out=, in place on slices, and reused",
    "",
    "clean-memory",
    "clean",
)
def out_workspaces():
    lin = track(nn.Linear(4, 4))
    with torch.no_grad():
        ws, vec = dirty(torch.empty(4, 4)), dirty(torch.empty(4))
        torch.mm(lin.weight, lin.weight.t(), out=ws)
        torch.sum(ws, 0, out=vec)
        torch.div(vec, torch.tensor([1.0, 0.0, 2.0, 0.0]), out=vec)
        torch.where(torch.isfinite(vec), vec, torch.zeros(()), out=vec)
        big = dirty(torch.empty(2, 4))
        torch.exp(vec, out=big[0])
        big[1].zero_().add_(1.0)
        part = dirty(torch.empty(6))
        part[:4].copy_(vec)
        part[4:] = 0.5
        gathered = torch.gather(ws, 1, torch.zeros(4, 1, dtype=torch.long), out=dirty(torch.empty(4, 1)))
        acc = dirty(torch.empty(4)).fill_(0.0).addcmul_(vec, vec)
    return ws, vec, big, part, gathered, acc


@case(
    "init-over-garbage",
    "a custom layer allocates with torch.empty and initialises with nn.init and normal_",
    "",
    "clean-memory",
    "clean",
)
def init_over_garbage():
    class Layer(nn.Module):
        def __init__(self, n, m):
            super().__init__()
            self.weight = nn.Parameter(dirty(torch.empty(m, n)))
            self.bias = nn.Parameter(dirty(torch.empty(m)))
            self.scale = nn.Parameter(dirty(torch.empty(m)))
            self.register_buffer("running", dirty(torch.empty(m)))
            self.reset()

        def reset(self):
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
            nn.init.zeros_(self.bias)
            self.scale.data.normal_(1.0, 0.02)
            self.running.copy_(torch.zeros_like(self.running))

        def forward(self, x):
            y = F.linear(x, self.weight, self.bias) * self.scale
            with torch.no_grad():
                self.running.lerp_(y.mean(0), 0.1)
            return y

    net = track(nn.Sequential(Layer(3, 4), nn.ReLU(), Layer(4, 2)))
    opt = torch.optim.NAdam(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(4, 3)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight, net[0].running


@case(
    "init-quantile-grid",
    "learned quantile knots: linspace, logit and clamp in place on the parameter itself",
    "",
    "clean-init",
    "clean",
    notes="the parameter holds +-inf between two lines of its initialisation",
)
def init_quantile_grid():
    class Quantiles(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.knots = nn.Parameter(torch.empty(n))
            self.reset_parameters()

        def reset_parameters(self):
            with torch.no_grad():
                self.knots.copy_(torch.linspace(0, 1, len(self.knots)))
                self.knots.mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2.0))
                self.knots.clamp_(min=-3.0, max=3.0)

        def forward(self, x):
            return torch.sigmoid((x[:, None] - self.knots) * 4).mean(-1)

    net = track(Quantiles(9))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    loss = net(torch.randn(6)).square().mean()
    loss.backward()
    opt.step()
    return loss, net.knots


@case(
    "trunc-normal-timm-edge",
    "timm's trunc_normal_(std=.02): one uniform draw is exactly -1, erfinv is -inf, clamped to a",
    "",
    "clean-init",
    "clean",
    debatable="the weight that results is a 100-sigma outlier: a quality bug of the initialiser, not a NaN",
)
def trunc_normal_timm_edge():
    def trunc_normal_(t, mean=0.0, std=1.0, a=-2.0, b=2.0):
        cdf = lambda x: (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0
        with torch.no_grad():
            lo, hi = cdf((a - mean) / std), cdf((b - mean) / std)
            t.uniform_(2 * lo - 1, 2 * hi - 1)
            t.view(-1)[7] = -1.0  # one draw in 2**24 is; not worth waiting for
            t.erfinv_()
            t.mul_(std * math.sqrt(2.0))
            t.add_(mean)
            t.clamp_(min=a, max=b)
        return t

    net = track(nn.Linear(4, 4))
    trunc_normal_(net.weight, std=0.02)
    out = net(torch.randn(2, 4))
    out.sum().backward()
    return out, net.weight.grad
