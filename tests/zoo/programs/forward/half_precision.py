"""Sums, products and casts that overflow in half precision."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import alt, case, mark_step, track


@case(
    "t5-wo-overflow-half",
    "T5's feed-forward output projection exceeds 65504 in half; the next RMS norm makes NaN of it",
    "",
    "overflow-fp16",
    "inf",
    ["mm", "addmm", "linear"],
    module="encoder.block.1.layer.1.DenseReluDense.wo",
)
def t5_wo_overflow_half():
    class DenseReluDense(nn.Module):
        def __init__(self, gain):
            super().__init__()
            self.wi = nn.Linear(4, 8, bias=False)
            self.wo = nn.Linear(8, 4, bias=False)
            nn.init.constant_(self.wi.weight, gain)
            nn.init.constant_(self.wo.weight, gain)

        def forward(self, x):
            return self.wo(F.relu(self.wi(x)))  # ORIGIN

    class T5Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            var = x.float().pow(2).mean(-1, keepdim=True)
            return self.weight * (x * torch.rsqrt(var + 1e-6)).half()

    class LayerFF(nn.Module):
        def __init__(self, gain):
            super().__init__()
            self.DenseReluDense = DenseReluDense(gain)
            self.layer_norm = T5Norm()

        def forward(self, x):
            return x + self.DenseReluDense(self.layer_norm(x))

    class Block(nn.Module):
        def __init__(self, gain):
            super().__init__()
            self.layer = nn.ModuleList([nn.Identity(), LayerFF(gain)])

        def forward(self, x):
            for sub in self.layer:
                x = sub(x)
            return x

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.ModuleList([Block(0.1), Block(60.0), Block(0.1)])
            self.final_layer_norm = T5Norm()

        def forward(self, x):
            for b in self.block:
                x = b(x)
            return self.final_layer_norm(x)

    class T5(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Stack()

        def forward(self, x):
            return self.encoder(x)

    with torch.no_grad():
        return track(T5().half())(torch.ones(1, 2, 4).half())


@case(
    "meanpool-half-sum",
    "sentence embedding by mean pooling in half: the sum over tokens overflows before the division",
    "",
    "overflow-fp16",
    "inf",
    "sum",
    module="1",
)
def meanpool_half_sum():
    class Embed(nn.Module):
        def forward(self, x):
            return x * torch.tensor([300.0, 1.0, -2.0]).half()

    class Pooling(nn.Module):
        def forward(self, tok):
            total = tok.sum(dim=1)  # ORIGIN
            return total / tok.shape[1]

    class Norm(nn.Module):
        def forward(self, v):
            return v / v.norm(dim=-1, keepdim=True)

    with torch.no_grad():
        model = track(nn.Sequential(Embed(), Pooling(), Norm()))
        return model(torch.full((2, 300, 3), 1.5).half())


@case(
    "box-filter-half-cumsum",
    "guided filter: a summed-area table of an 8-bit image in half, then inf - inf",
    "",
    "overflow-fp16",
    "inf",
    "cumsum",
    module="gf.box",
)
def box_filter_half_cumsum():
    class BoxFilter(nn.Module):
        def __init__(self, r):
            super().__init__()
            self.r = r

        def diff(self, c):
            r = self.r
            return torch.cat([c[..., r : 2 * r + 1], c[..., 2 * r + 1 :] - c[..., : -2 * r - 1]], -1)

        def forward(self, x):
            rows = self.diff(x.cumsum(dim=-1)).transpose(-1, -2)
            return self.diff(rows.cumsum(dim=-1))  # ORIGIN

    class GuidedFilter(nn.Module):
        def __init__(self):
            super().__init__()
            self.box = BoxFilter(4)

        def forward(self, x):
            return self.box(x) / 81

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gf = GuidedFilter()

        def forward(self, x):
            return self.gf(x)

    return track(Net())(torch.full((1, 1, 64, 64), 255.0).half())


@case(
    "fp8-e5m2-activation-cast",
    "fake-fp8 linear with a stale scale: the cast to float8_e5m2 overflows",
    "",
    "overflow-fp8",
    "inf",
    ["_to_copy", "to", "copy_"],
    module="fc2",
)
def fp8_e5m2_activation_cast():
    class Fp8Linear(nn.Linear):
        def __init__(self, i, o):
            super().__init__(i, o)
            self.register_buffer("scale", torch.tensor(64.0))

        def forward(self, x):
            q = (x * self.scale).to(torch.float8_e5m2)  # ORIGIN
            return F.linear(q.to(x.dtype) / self.scale, self.weight, self.bias)

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = Fp8Linear(3, 4), Fp8Linear(4, 2)

        def forward(self, x):
            return self.fc2(self.fc1(x) * 5000.0)

    mlp = track(Mlp())
    out = mlp(torch.randn(2, 3))
    out.sum().backward()
    return out, mlp.fc2.weight.grad


@case(
    "gaussian-nll-half",
    "GaussianNLLLoss(eps=1e-8) in half: the clamp to 1e-8 is a clamp to 0, log(0)",
    "",
    "eps-underflow",
    "inf",
    "log",
    module="nll",
    also=[alt("forward", "div")],
)
def gaussian_nll_half():
    class Probabilistic(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.var = nn.Linear(3, 1), nn.Linear(3, 1)
            self.nll = nn.GaussianNLLLoss(eps=1e-8)

        def forward(self, x, y):
            var = F.relu(self.var(x))
            return self.nll(self.mean(x), y, var)  # ORIGIN

    net = Probabilistic().half()
    with torch.no_grad():
        net.var.bias.fill_(-50.0)
    track(net)
    loss = net(torch.randn(4, 3).half(), torch.randn(4, 1).half())
    loss.backward()
    return loss, net.mean.weight.grad


@case(
    "vq-ema-counts-half",
    "vector quantiser keeps cluster counts in half: scatter_add_ into the buffer passes 65504",
    "",
    "overflow-fp16",
    "inf",
    ["scatter_add_", "scatter_add"],
    module="vq",
    step=3,
)
def vq_ema_counts_half():
    class Vq(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("counts", torch.zeros(3).half())
            self.codes = nn.Parameter(torch.randn(3, 2))

        def forward(self, z):
            idx = torch.cdist(z, self.codes).argmin(1)
            with torch.no_grad():
                self.counts.scatter_add_(0, idx, torch.full((len(idx),), 8000.0).half())  # ORIGIN
                share = self.counts / self.counts.sum()
            return self.codes[idx], share

    class Ae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(2, 2)
            self.vq = Vq()

        def forward(self, x):
            q, share = self.vq(self.enc(x))
            return (q - x).pow(2).mean() + 0.1 * share.float().pow(2).sum()

    ae = Ae()
    with torch.no_grad():
        ae.vq.codes[1:] += 100.0
    track(ae)
    opt = torch.optim.SGD(ae.parameters(), lr=0.01)
    for k in range(1, 5):
        mark_step(k)
        loss = ae(torch.randn(4, 2))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, ae.vq.counts


@case(
    "logspace-half-schedule",
    "a noise schedule by torch.logspace in half passes 65504",
    "",
    "overflow-fp16",
    "inf",
    ["logspace"],
    module=None,
)
def logspace_half_schedule():
    net = track(nn.Linear(2, 2))
    sigmas = torch.logspace(-2, 5, 8, dtype=torch.float16)  # ORIGIN
    x = torch.randn(2, 2)
    for s, s_next in zip(sigmas.flip(0)[:-1], sigmas.flip(0)[1:]):
        d = (x - net(x)) / s.float()
        x = x + d * (s_next.float() - s.float())
    return x.detach()


@case(
    "conv-overflow-half",
    "a convolution in half sums past 65504, instance norm makes NaN of it",
    "",
    "overflow-fp16",
    "inf",
    ["convolution", "conv2d", "_convolution", "mkldnn_convolution", "_slow_conv2d_forward", "thnn_conv2d"],
    module="up.0.conv",
)
def conv_overflow_half():
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, padding=1)
            self.norm = nn.InstanceNorm2d(2)

        def forward(self, x):
            x = F.interpolate(x, scale_factor=2)
            return self.norm(self.conv(x).float()).half()  # ORIGIN

    class Dec(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ModuleList([Up()])

        def forward(self, z):
            for u in self.up:
                z = u(z)
            return z

    dec = Dec()
    with torch.no_grad():
        dec.up[0].conv.weight.fill_(30.0)
        return track(dec.half())((torch.rand(1, 2, 3, 3) * 200 + 100).half())


@case(
    "rope-half-positions",
    "rotary positions in half: 70000 is inf, sin(inf) is NaN",
    "",
    "half-overflow",
    "inf",
    "_to_copy",
    module="rope",
)
def rope_half_positions():
    class Rope(nn.Module):
        def forward(self, x, pos):
            t = pos.to(x.dtype)  # ORIGIN
            freqs = torch.outer(t, 1.0 / (10000 ** (torch.arange(0, 4, 2).to(x.dtype) / 4)))
            emb = torch.cat([freqs, freqs], -1)
            return x * emb.cos() + torch.cat([-x[..., 2:], x[..., :2]], -1) * emb.sin()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.rope = nn.Linear(4, 4).half(), Rope()

        def forward(self, x, pos):
            return self.rope(self.q(x), pos)

    net = track(Net())
    loss = net(torch.randn(3, 4).half(), torch.tensor([1, 2000, 70000])).float().square().mean()
    loss.backward()
    return (loss,)


@case(
    "router-z-loss-half",
    "router z-loss in half: logsumexp ** 2 exceeds 65504",
    "",
    "half-overflow",
    "inf",
    "pow",
    module="router",
)
def router_z_loss_half():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 4).half()

        def forward(self, x):
            logits = self.fc(x) * 400
            return torch.logsumexp(logits, -1) ** 2  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = Router()

        def forward(self, x):
            return self.router(x).float().mean()

    net = track(Net())
    loss = net(torch.randn(4, 3).half() * 3)
    loss.backward()
    return (loss,)
