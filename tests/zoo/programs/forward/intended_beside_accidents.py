"""An intended inf or NaN beside an accident, which alone is the origin."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, NAN, case, track


@case(
    "inplace-masked-exp",
    "masked softmax by hand and in place: masked_fill_(-inf), exp_() overflows, div_",
    "",
    "overflow-exp",
    "inf",
    ["exp_", "exp"],
    module="attn",
    naive=False,
)
def inplace_masked_exp():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, keep):
            w = self.q(x) @ self.k(x).transpose(-1, -2) * 100.0
            w.masked_fill_(~keep, -INF)
            w.exp_()  # ORIGIN
            w.div_(w.sum(-1, keepdim=True))
            return w @ x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x, keep):
            return self.attn(x, keep)

    with torch.no_grad():
        return track(Net())(torch.randn(2, 5, 4), torch.ones(5, 5).tril().bool())


@case(
    "baddbmm-mask-overflow-half",
    "baddbmm of a -inf mask and half queries and keys: the product overflows",
    "",
    "overflow-fp16",
    "inf",
    ["baddbmm"],
    module="h.0.self_attention",
    naive=False,
)
def baddbmm_mask_overflow_half():
    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk = nn.Linear(4, 8, bias=False)
            with torch.no_grad():
                self.qk.weight.copy_(torch.cat([torch.eye(4), torch.eye(4)]) * 20)

        def forward(self, x, mask):
            q, k = self.qk(x).chunk(2, -1)
            s = torch.baddbmm(mask, q, k.transpose(1, 2), beta=1.0, alpha=0.5)  # ORIGIN
            return torch.softmax(s.float(), -1).half() @ x

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attention = SelfAttention()

        def forward(self, x, mask):
            return x + self.self_attention(x, mask)

    class Bloom(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.ModuleList([Block()])

        def forward(self, x):
            t = x.shape[1]
            mask = torch.full((t, t), -INF, dtype=x.dtype).triu(1).expand(len(x), t, t)
            for b in self.h:
                x = b(x, mask)
            return x

    with torch.no_grad():
        return track(Bloom().half())((torch.ones(1, 3, 4) * 10).half())


@case(
    "masked-scores-cast-half",
    "float32 scores with a -inf mask are cast to half, where the largest is inf",
    "",
    "overflow-fp16",
    "inf",
    ["_to_copy", "to", "copy_"],
    module="attn",
    naive=False,
)
def masked_scores_cast_half():
    class Attn(nn.Module):
        def forward(self, q, k, keep):
            s = (q @ k.t()).masked_fill(~keep, -INF)
            s = s.to(torch.float16)  # ORIGIN
            return F.softmax(s, dim=-1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, *a):
            return self.attn(*a)

    q = torch.tensor([[300.0, 1.0], [1.0, 1.0]])
    k = torch.tensor([[250.0, 0.0], [1.0, 2.0]])
    return track(Net())(q, k, torch.tensor([[True, False], [True, True]])).float()


@case(
    "topk-filter-inplace-temperature",
    "top-k filtering writes -inf, then the logits are divided in place by 1e-4 in half",
    "",
    "overflow-fp16",
    "inf",
    ["div_", "div"],
    module=None,
    naive=False,
)
def topk_filter_inplace_temperature():
    head = track(nn.Linear(3, 6).half())
    with torch.inference_mode():
        logits = head(torch.tensor([[8.0, -4.0, 9.0]]).half()) * 4
        kth = logits.topk(3).values[:, -1:]
        logits.masked_fill_(logits < kth, -INF)
        logits.div_(1e-4)  # ORIGIN
        return torch.softmax(logits, dim=-1, dtype=torch.float32)


@case(
    "idw-duplicate-point",
    "inverse distance weighting: the self distance is inf on purpose, a duplicate's is 0",
    "",
    "zero-division",
    "inf",
    ["reciprocal", "div", "pow"],
    module="interp",
    naive=False,
)
def idw_duplicate_point():
    class Idw(nn.Module):
        def forward(self, pos, val):
            d = torch.cdist(pos, pos)
            d = d.masked_fill(torch.eye(len(pos), dtype=torch.bool), INF)
            w = d.reciprocal()  # ORIGIN
            w = w / w.sum(1, keepdim=True)
            return w @ val

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.feat = nn.Linear(2, 3)
            self.interp = Idw()

        def forward(self, pos):
            return self.interp(pos, self.feat(pos))

    net = track(Net())
    pos = torch.randn(5, 2)
    pos[4] = pos[1]
    out = net(pos)
    out.sum().backward()
    return out, net.feat.weight.grad


@case(
    "lennard-jones-coincident",
    "Lennard-Jones energy: the diagonal distance is filled with inf, two atoms coincide, inf - inf",
    "",
    "zero-division",
    "inf",
    ["pow", "reciprocal", "div"],
    module="potential",
    naive=False,
)
def lennard_jones_coincident():
    class LJ(nn.Module):
        def __init__(self):
            super().__init__()
            self.sigma = nn.Parameter(torch.tensor(1.0))

        def forward(self, pos):
            d = (pos[:, None] - pos[None]).square().sum(-1)
            d.fill_diagonal_(INF)
            s6 = d.pow(-3)  # ORIGIN
            s6 = s6 * self.sigma.pow(6)
            return 2 * (s6.square() - s6).sum()

    class Md(nn.Module):
        def __init__(self):
            super().__init__()
            self.potential = LJ()

        def forward(self, pos):
            return self.potential(pos)

    md = track(Md())
    e = md(torch.tensor([[0.0, 0.0, 0.0], [1.5, 0.0, 0.0], [1.5, 0.0, 0.0]]))
    e.backward()
    return e, md.potential.sigma.grad


@case(
    "greedy-temperature-zero",
    "log-probabilities with banned tokens at -inf divided by temperature 0: all are -inf",
    "",
    "zero-division",
    "inf",
    ["div", "mul"],
    module="sampler.warp",
    naive=False,
)
def greedy_temperature_zero():
    class Warp(nn.Module):
        def forward(self, logp, banned, temperature):
            logp = logp.masked_fill(banned, -INF)
            return logp / temperature  # ORIGIN

    class Sampler(nn.Module):
        def __init__(self):
            super().__init__()
            self.warp = Warp()

        def forward(self, logits, banned, temperature):
            x = self.warp(F.log_softmax(logits, -1), banned, temperature)
            return torch.softmax(x, -1)

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(2, 5)
            self.sampler = Sampler()

        def forward(self, h, banned, t):
            return self.sampler(self.head(h), banned, t)

    with torch.no_grad():
        return track(Lm())(torch.randn(2, 2), torch.tensor([False, True, False, False, False]), 0.0)


@case(
    "missing-then-sqrt-inplace",
    "missing readings are NaN on purpose and replaced later; a negative reading's sqrt_ is a new NaN",
    "",
    "log-negative",
    "nan",
    ["sqrt_", "sqrt"],
    module=None,
    naive=False,
)
def missing_then_sqrt_inplace():
    net = track(nn.Linear(3, 1))
    x = torch.tensor([[4.0, NAN, 1.0], [9.0, 2.0, -0.5]])
    missing = torch.isnan(x)
    x.sqrt_()  # ORIGIN
    x = torch.where(missing, torch.zeros_like(x), x)
    loss = net(x).square().mean()
    loss.backward()
    return loss, net.weight.grad


@case(
    "missing-from-numpy-then-log",
    "an array with NaN for missing entries: they are replaced after the log, log(0) is not",
    "",
    "log-zero",
    "inf",
    "log",
    module=None,
    naive=False,
)
def missing_from_numpy_then_log():
    import numpy as np

    net = track(nn.Linear(3, 1))
    x = torch.from_numpy(np.array([[4.0, np.nan, 1.0], [9.0, 2.0, 0.0]], dtype=np.float32))
    missing = x.isnan()
    z = torch.log(x)  # ORIGIN
    z = z.masked_fill(missing, 0.0)
    z = (z - z.mean(0)) / (z.std(0) + 1e-6)
    loss = net(z).square().mean()
    loss.backward()
    return loss, net.weight.grad


@case(
    "logmask-bias-and-overflow",
    "a mask turned into a bias by log() (meant), and half scores that overflow (not meant)",
    "",
    "overflow-fp16",
    "inf",
    ["mm", "bmm"],
    module="attn",
)
def logmask_bias_and_overflow():
    class Attn(nn.Module):
        def forward(self, q, k, mask):
            bias = mask.log()
            s = q @ k.t()  # ORIGIN
            return torch.softmax((s + bias).float(), -1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, *a):
            return self.attn(*a)

    q = torch.tensor([[300.0, 1.0], [1.0, 1.0]]).half()
    k = torch.tensor([[1.0, 2.0], [300.0, 0.0]]).half()
    return track(Net())(q, k, torch.ones(2, 2).tril(1).half() - torch.tensor([[0.0, 0.0], [0.0, 1.0]]).half())
