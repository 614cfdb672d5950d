"""Guarded and repaired arithmetic."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, case, mark_step, track


@case(
    "safe-divide-double-where",
    "where inside and outside the division and the square root, forward and backward",
    "",
    "clean-sanitised",
    "clean",
)
def safe_divide_double_where():
    class SafeNormalize(nn.Module):
        def forward(self, v):
            n2 = v.square().sum(-1, keepdim=True)
            ok = n2 > 0
            n = torch.where(ok, n2, torch.ones_like(n2)).sqrt()
            return torch.where(ok, v / n, torch.zeros_like(v))

    net = track(nn.Sequential(nn.Linear(3, 3, bias=False), SafeNormalize()))
    x = torch.randn(4, 3)
    x[1] = 0.0
    out = net(x)
    out.pow(3).sum().backward()
    with torch.no_grad():
        x0 = net[0](x)
        unsafe = torch.where(x0.norm(dim=1, keepdim=True) > 0, x0 / x0.norm(dim=1, keepdim=True), torch.zeros(()))
    return out, net[0].weight.grad, unsafe - out.detach()


@case(
    "precision-recall-f1",
    "per-class precision and recall 0/0, repaired by nan_to_num and where",
    "",
    "clean-sanitised",
    "clean",
)
def precision_recall_f1():
    net = track(nn.Linear(4, 5))
    with torch.no_grad():
        net.bias[4] = -100.0  # a class that is never predicted
        pred = net(torch.randn(20, 4)).argmax(1)
        true = torch.randint(0, 4, (20,))
        conf = torch.bincount(true * 5 + pred, minlength=25).view(5, 5).float()
        tp = conf.diagonal()
        precision = torch.nan_to_num(tp / conf.sum(0))
        recall = tp / conf.sum(1)
        recall = torch.where(recall.isnan(), torch.zeros_like(recall), recall)
        f1 = 2 * precision * recall / (precision + recall)
        f1[f1 != f1] = 0.0
        iou = tp / (conf.sum(0) + conf.sum(1) - tp)
        miou = iou.nanmean()
    return precision, recall, f1, miou


@case(
    "miou-table-numpy",
    "mmsegmentation's mIoU: NaN for classes that do not occur, np.nanmean and a printed table",
    "",
    "clean-sanitised",
    "clean",
    notes="numpy() and tolist() of a 0/0: by torchnan's contract harm of kind 'read'; 'an expected behavior' (#83)",
    debatable="a value that is read back counts as harm",
)
def miou_table_numpy():
    net = track(nn.Conv2d(2, 4, 1))
    with torch.no_grad():
        net.bias[3] = -100.0
        pred = net(torch.randn(1, 2, 5, 5)).argmax(1)
        label = torch.randint(0, 3, (1, 5, 5))
        hist = lambda a: torch.histc(a.float(), 4, 0, 3)
        inter = hist(pred[pred == label])
        iou = inter / (hist(pred) + hist(label) - inter)
        acc = inter / hist(label)
    table = ["%d %.2f %.2f" % (i, 100 * u, 100 * a) for i, (u, a) in enumerate(zip(iou.tolist(), acc.tolist()))]
    miou = np.nanmean(iou.numpy())
    assert "nan" in table[3]
    return torch.tensor(miou), inter


@case(
    "ddpm-schedule-buffers",
    "posterior log variance at t = 0 is log(0): clipped; SNR is inf at t = 0: min-SNR",
    "",
    "clean-sanitised",
    "clean",
)
def ddpm_schedule_buffers():
    class Diffusion(nn.Module):
        def __init__(self, t=10):
            super().__init__()
            betas = torch.linspace(1e-4, 0.4, t, dtype=torch.float64)
            bar = torch.cumprod(1 - betas, 0)
            prev = F.pad(bar[:-1], (1, 0), value=1.0)
            var = betas * (1 - prev) / (1 - bar)
            self.register_buffer("log_var", torch.log(var.clamp(min=1e-20)).float())
            self.register_buffer("log_var2", torch.log(torch.cat([var[1:2], var[1:]])).float())
            snr = prev / (1 - prev)
            self.register_buffer("weight", torch.minimum(snr, torch.full_like(snr, 5.0)).float())
            self.register_buffer("log_snr", torch.log(snr).clamp(-15, 15).float())
            self.register_buffer("bar", bar.float())
            self.net = nn.Linear(3, 2)

        def forward(self, x, t):
            noise = torch.randn_like(x)
            a = self.bar[t][:, None]
            xt = a.sqrt() * x + (1 - a).sqrt() * noise
            pred = self.net(torch.cat([xt, self.log_snr[t][:, None]], 1))
            return (self.weight[t][:, None] * (pred - noise).square()).mean()

    model = track(Diffusion())
    loss = model(torch.randn(4, 2), torch.tensor([0, 3, 9, 0]))
    loss.backward()
    return loss, model.log_var, model.log_var2, model.weight, model.net.weight.grad


@case(
    "inverse-frequency-weights",
    "1/f noise: the DC bin is 1/0 and set to 0; class weights 1/count likewise",
    "",
    "clean-sanitised",
    "clean",
)
def inverse_frequency_weights():
    f = torch.fft.rfftfreq(16)
    s = f**-1.0
    s[0] = 0.0
    white = torch.fft.rfft(torch.randn(16))
    pink = torch.fft.irfft(white * s, n=16)
    count = torch.bincount(torch.tensor([0, 0, 2, 2, 2, 3]), minlength=5).float()
    weight = 1.0 / count
    weight[torch.isinf(weight)] = 0.0
    net = track(nn.Linear(16, 5))
    loss = F.cross_entropy(net(pink[None].repeat(3, 1)), torch.tensor([0, 2, 3]), weight=weight / weight.sum())
    loss.backward()
    return pink, loss, net.weight.grad


@case(
    "drop-dc-by-slicing",
    "the same 1/f table, the DC bin left out by slicing: the user keeps f[1:]",
    "",
    "clean-sanitised",
    "clean",
    notes="the symptom is a finite view; the element outside of it, in the same memory, is inf",
)
def drop_dc_by_slicing():
    period = 1.0 / torch.fft.rfftfreq(16)
    log_bins = torch.log(torch.arange(8.0))[1:]
    net = track(nn.Linear(8, 1))
    power = net(period[1:]).sum()
    power.backward()
    return period[1:], log_bins, net.weight.grad


@case(
    "spectrogram-db-clamp",
    "20 log10(0) of a silent frame is -inf, clamped to -80 dB; phase of zeros",
    "",
    "clean-sanitised",
    "clean",
)
def spectrogram_db_clamp():
    class Db(nn.Module):
        def forward(self, wav):
            z = torch.stft(wav, 8, hop_length=4, window=torch.ones(8), return_complex=True, center=False)
            db = 20 * torch.log10(z.abs())
            return torch.clamp(db, min=-80.0) / 80 + 1, torch.angle(z), z.log().real.clamp(min=-10)

    db, conv = track(Db()), nn.Conv1d(5, 2, 1)
    wav = torch.cat([torch.zeros(16), torch.sin(torch.arange(16.0))])
    with torch.no_grad():
        spec, phase, lg = db(wav[None])
    out = conv(spec)
    out.mean().backward()
    return spec, phase, lg, conv.weight.grad


@case(
    "inverse-distance-coincident",
    "1/d**2 weights where a query sits on a sample: inf/inf chosen away",
    "",
    "clean-sanitised",
    "clean",
)
def inverse_distance_coincident():
    class Interpolate(nn.Module):
        def forward(self, query, points, feats):
            with torch.no_grad():
                d2 = (query[:, None] - points[None]).square().sum(-1)
                w = 1.0 / d2
                hit = torch.isinf(w).any(1, keepdim=True)
                w = torch.where(hit, torch.isinf(w).float(), w / w.sum(1, keepdim=True))
            return w @ feats

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.feat, self.interp = nn.Linear(3, 4), Interpolate()

        def forward(self, q, p):
            return self.interp(q, p, self.feat(p))

    net, p = track(Net()), torch.randn(5, 3)
    out = net(torch.cat([p[:2], torch.randn(3, 3)]), p)
    out.square().sum().backward()
    return out, net.feat.weight.grad


@case(
    "points-behind-camera",
    "perspective division by z = 0; invalid points get a coordinate outside the image",
    "",
    "clean-sanitised",
    "clean",
)
def points_behind_camera():
    net = track(nn.Conv2d(1, 3, 3, padding=1))
    fmap = net(torch.randn(1, 1, 6, 6))
    pts = torch.tensor([[0.2, 0.1, 1.0], [0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.3, 0.3, -2.0]])
    with torch.no_grad():
        uv = pts[:, :2] / pts[:, 2:]
        valid = (pts[:, 2] > 0) & (uv.abs() <= 1).all(1)
        uv = torch.where(valid[:, None], uv, torch.full_like(uv, 2.0))
        depth = torch.full((4,), INF)
        depth = torch.where(valid, pts[:, 2], depth)
        nearest = depth.min()
    feat = F.grid_sample(fmap, uv[None, :, None], align_corners=False, padding_mode="zeros")
    feat.sum().backward()
    return feat, nearest, net.weight.grad


@case(
    "nerf-infinite-last-interval",
    "the last ray interval is infinite: 1 - exp(-sigma * inf) = 1; disparity planes to inf",
    "",
    "clean-saturating",
    "clean",
)
def nerf_infinite_last_interval():
    field = track(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 4)))
    s = torch.linspace(0, 1, 6)
    t = 1.0 / (s / math.inf + (1 - s) / 0.5)  # inverse depth from 0.5 to infinity
    near = t[:-1]
    delta = t[1:] - t[:-1]
    with torch.no_grad():
        raw = field(near[:, None])
        sigma, rgb = F.softplus(raw[:, 3]) + 1e-3, raw[:, :3].sigmoid()
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat([torch.ones(1), 1 - alpha[:-1]]), 0)
        color = ((alpha * trans)[:, None] * rgb).sum(0)
    return color, alpha


@case(
    "softplus-by-hand-forward",
    "where(x > 20, x, log1p(exp(x))), sigmoid and tanh by hand, at inference",
    "",
    "clean-saturating",
    "clean",
)
def softplus_by_hand_forward():
    class HandMade(nn.Module):
        def forward(self, x):
            e = torch.exp(x)
            softplus = torch.where(x > 20, x, torch.log1p(e))
            sigmoid = 1 - 1 / (1 + e)
            e2 = torch.exp(-2 * x.abs())
            tanh = x.sign() * (1 - e2) / (1 + e2)
            gelu = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
            return softplus, sigmoid, tanh, gelu

    net = track(nn.Sequential(nn.Linear(1, 1, bias=False), HandMade())).eval()
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        return net(torch.tensor([[-200.0], [0.5], [30.0], [95.0], [1000.0]]))


@case(
    "pinv-eigh-threshold",
    "pseudo-inverse and whitening: 1/s and rsqrt of zero eigenvalues are selected away",
    "",
    "clean-sanitised",
    "clean",
)
def pinv_eigh_threshold():
    x = torch.randn(6, 2)
    x = torch.cat([x, torch.zeros(6, 1)], 1)
    cov = x.t() @ x / 6
    s, u = torch.linalg.eigh(cov)
    s = torch.where(s.abs() < 1e-6, torch.zeros_like(s), s)
    inv_sqrt = s.rsqrt()
    inv_sqrt[s == 0] = 0.0
    inv = 1 / s
    inv = torch.where(torch.isfinite(inv), inv, torch.zeros(()))
    white = x @ (u * inv_sqrt)
    head = track(nn.Linear(3, 1))
    head(white).sum().backward()
    return white, (u * inv) @ u.t(), head.weight.grad


@case(
    "cholesky-jitter-retry",
    "GPyTorch's psd_safe_cholesky: cholesky_ex fails, NaN-free jitter is added until it works",
    "",
    "clean-sanitised",
    "clean",
)
def cholesky_jitter_retry():
    class Gp(nn.Module):
        def __init__(self):
            super().__init__()
            self.raw = nn.Parameter(torch.tensor(1.0))

        def safe(self, k):
            chol, info = torch.linalg.cholesky_ex(k)
            jitter = 1e-8
            while torch.any(info):
                chol, info = torch.linalg.cholesky_ex(k + jitter * torch.eye(len(k)))
                jitter *= 10
            return chol

        def forward(self, x, y):
            k = torch.exp(-(x[:, None] - x[None]).square() * F.softplus(self.raw))
            k = k.clone()
            bad, info = torch.linalg.inv_ex(k.detach()[:2, :2] * 0)  # singular: inf, and info says so
            scale = torch.where(info == 0, bad.abs().amax(), torch.ones(()))
            chol = self.safe(k)
            alpha = torch.cholesky_solve(y[:, None], chol)
            return (0.5 * y @ alpha.squeeze(1) + chol.diagonal().log().sum()) * scale

    gp = track(Gp())
    x = torch.cat([torch.linspace(0, 1, 5), torch.linspace(0, 1, 5)])
    loss = gp(x, x.sin())
    loss.backward()
    return loss, gp.raw.grad


@case(
    "ema-debias-at-zero",
    "1/(1 - beta**0) of a counter that is still 0: skipped by where until there is data",
    "",
    "clean-sanitised",
    "clean",
)
def ema_debias_at_zero():
    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            debiased = self.mean / (1 - 0.9**self.count)
            center = torch.where(self.count > 0, debiased, x.mean(0))
            if self.training:
                with torch.no_grad():
                    self.count += 1
                    self.mean.lerp_(x.mean(0), 0.1)
            return x - center

    net = track(nn.Sequential(nn.Linear(3, 3), Ema()))
    opt = torch.optim.Adam(net.parameters())
    for k in range(1, 4):
        mark_step(k)
        loss = net(torch.randn(5, 3)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[1].mean, net[0].weight


@case(
    "lars-foreach-trust",
    "LARS: ||w||/||g|| is x/0 and 0/0 for idle layers, where() takes 1",
    "",
    "clean-sanitised",
    "clean",
)
def lars_foreach_trust():
    class Lars(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, dict(lr=lr))

        @torch.no_grad()
        def step(self):
            for g in self.param_groups:
                ps = [p for p in g["params"] if p.grad is not None]
                grads = [p.grad for p in ps]
                wn, gn = torch._foreach_norm(ps), torch._foreach_norm(grads)
                ratio = torch._foreach_div(wn, gn)
                ratio = [torch.where((a > 0) & (b > 0), r, torch.ones_like(r)) for a, b, r in zip(wn, gn, ratio)]
                torch._foreach_add_(ps, torch._foreach_mul(grads, ratio), alpha=-g["lr"])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle, self.gate = nn.Linear(3, 2), nn.Linear(2, 2), nn.Parameter(torch.zeros(2))

        def forward(self, x):
            h = self.used(x)
            return h + self.gate * 0 + self.idle(h) * 0

    net = track(Net())
    opt = Lars(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(4, 3)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.used.weight, net.idle.weight, net.gate


@case(
    "polyak-step-clamped",
    "Polyak step (f - f*)/||g||^2 is inf at a flat point and clamped to the maximum",
    "",
    "clean-sanitised",
    "clean",
)
def polyak_step_clamped():
    class Sps(torch.optim.Optimizer):
        def __init__(self, params, cap):
            super().__init__(params, dict(cap=cap))

        def step(self, closure):
            with torch.enable_grad():
                loss = closure()
            with torch.no_grad():
                ps = [p for g in self.param_groups for p in g["params"]]
                sq = sum(p.grad.square().sum() for p in ps)
                size = torch.clamp(loss / sq, max=self.param_groups[0]["cap"])
                for p in ps:
                    p.sub_(size * p.grad)
            return loss

    net = track(nn.Linear(2, 1))
    opt = Sps(net.parameters(), 0.5)
    x, y = torch.randn(4, 2), torch.randn(4, 1)
    for k in range(1, 5):
        mark_step(k)

        def closure():
            opt.zero_grad()
            flat = 0.0 if k == 2 else 1.0
            loss = ((net(x) - y).abs() * flat).mean() + (0.1 if k == 2 else 0.0)
            loss.backward()
            return loss

        loss = opt.step(closure)
    return loss, net.weight


@case(
    "escape-time-fractal",
    "complex iteration overflows to inf and nan for points that escaped long ago",
    "",
    "clean-complex",
    "clean",
)
def escape_time_fractal():
    c = torch.complex(torch.linspace(-2, 2, 9)[None].expand(5, 9), torch.linspace(-1, 1, 5)[:, None].expand(5, 9))
    z, n = torch.zeros_like(c), torch.zeros(5, 9)
    for _ in range(14):
        z = z * z + c
        n += (z.abs() <= 2).float()
    inside = z.abs() <= 2
    smooth = torch.where(inside, z.abs(), torch.zeros(()))
    net = track(nn.Linear(9, 2))
    net(n).sum().backward()
    return n, smooth, net.weight.grad


@case(
    "custom-function-safe-log",
    "an autograd.Function whose forward and backward divide by zero and select",
    "",
    "clean-sanitised",
    "clean",
)
def custom_function_safe_log():
    class SafeLog(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            y = torch.log(x)
            return torch.where(torch.isfinite(y), y, torch.full_like(y, -20.0))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            inv = 1.0 / x
            inv[torch.isinf(inv)] = 0.0
            return g * inv

    class Entropy(nn.Module):
        def forward(self, p):
            return -(p * SafeLog.apply(p)).sum(-1)

    net = track(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Entropy()))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(5, 3)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case(
    "t5-half-clamp-inf",
    "T5 in half precision: a feed-forward layer overflows and is clamped to the largest half",
    "",
    "clean-sanitised",
    "clean",
)
def t5_half_clamp_inf():
    class T5LayerFF(nn.Module):
        def __init__(self):
            super().__init__()
            self.wi, self.wo = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

        def forward(self, h):
            h = h + self.wo(torch.relu(self.wi(h)))
            if h.dtype == torch.float16 and torch.isinf(h).any():
                clamp = torch.finfo(h.dtype).max - 1000
                h = torch.clamp(h, min=-clamp, max=clamp)
            return h

    class Norm(nn.Module):
        def forward(self, h):
            return (h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)

    net = track(nn.Sequential(T5LayerFF(), T5LayerFF(), Norm())).half()
    with torch.no_grad():
        net[0].wo.weight.mul_(300.0)
    out = net(torch.randn(2, 3, 4).half() * 300)
    out.float().square().mean().backward()
    return out, net[1].wo.weight.grad


@case(
    "library-subgradients",
    "pow with a learned exponent at 0, std of a constant row, sinc, prod and xlogy at 0",
    "",
    "clean-library-internal",
    "clean",
    notes="PyTorch's own backward formulas make log(0) and 0/0 and select them away inside one node",
)
def library_subgradients():
    class Gem(nn.Module):
        def __init__(self):
            super().__init__()
            self.p, self.lin = nn.Parameter(torch.tensor(3.0)), nn.Linear(3, 3, bias=False)

        def forward(self, x):
            y = F.relu(self.lin(x))
            return (
                y.pow(self.p).mean(0)
                + y.std(1).mean()
                + torch.sinc(y).mean()
                + y.prod(1).sum()
                + torch.xlogy(y.detach(), y + 1).mean()
                + F.normalize(y, dim=1).sum()
                + F.cosine_similarity(y, x).sum()
            )

    net = track(Gem())
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        x = torch.randn(4, 3)
        x[0] = 0.0
        loss = net(x).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.p, net.lin.weight


@case(
    "kmeans-empty-cluster",
    "k-means: the mean of a cluster that lost its points is 0/0 and keeps its old centre",
    "",
    "clean-sanitised",
    "clean",
)
def kmeans_empty_cluster():
    enc = track(nn.Linear(2, 2))
    with torch.no_grad():
        z = enc(torch.randn(12, 2))
        c = torch.cat([z[:3], torch.full((1, 2), 50.0)])
        for _ in range(20):
            a = torch.cdist(z, c).argmin(1)
            hot = F.one_hot(a, 4).float()
            new = (hot.t() @ z) / hot.sum(0)[:, None]
            new = torch.where(torch.isnan(new), c, new)
            shift = (new - c).norm().item()
            c = new
            if shift < 1e-6:
                break
        spread = torch.stack([z[a == i].std(0) for i in range(4)])
        spread = spread.nan_to_num(0.0)
    return c, spread


@case(
    "corrcoef-constant-column",
    "correlation matrix with a constant column and Spearman ranks, NaN set to 0",
    "",
    "clean-sanitised",
    "clean",
)
def corrcoef_constant_column():
    probe = track(nn.Linear(3, 3, bias=False))
    with torch.no_grad():
        h = probe(torch.randn(8, 3))
        h[:, 1] = 2.0
        corr = torch.corrcoef(h.t())
        corr = torch.nan_to_num(corr, nan=0.0)
        zed = (h - h.mean(0)) / h.std(0)
        zed = zed[:, ~torch.isnan(zed).any(0)]
        snr = h.mean(0) / h.std(0)
        best = snr[torch.isfinite(snr)].max()
    return corr, zed, best


@case(
    "std-mean-single-sample",
    "std_mean of a batch of one: the std is NaN and not used, the mean is the loss",
    "",
    "clean-sanitised",
    "clean",
)
def std_mean_single_sample():
    net = track(nn.Linear(3, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k, n in enumerate((4, 1, 3), 1):
        mark_step(k)
        std, mean = torch.std_mean(net(torch.randn(n, 3)))
        opt.zero_grad()
        mean.backward()
        opt.step()
        noise = torch.where(torch.isnan(std), torch.zeros(()), std).detach()
    return mean, noise, net.weight


@case(
    "pna-std-relu",
    "PNA's std: the slope of sqrt at 0 is infinite, the relu before it hands on nothing",
    "",
    "clean",
    "clean",
)
def pna_std_relu():
    net = track(nn.Linear(3, 3))
    opt = torch.optim.Adam(net.parameters())
    x = net(torch.randn(4, 3))
    x = x * 0 + 1.0
    var = x.square().mean(0) - x.mean(0).square()
    std = torch.sqrt(F.relu(var))
    loss = std.sum() + net.weight.square().sum()
    loss.backward()
    opt.step()
    return loss, net.weight


@case(
    "t5-bucket", "T5's buckets: log(0) is cast to an integer, and where takes the small positions", "", "clean", "clean"
)
def t5_bucket():
    rel = torch.arange(0, 40)[None] - torch.arange(0, 4)[:, None]
    n = rel.abs()
    large = 8 + (torch.log(n.float() / 8) / math.log(128 / 8) * 8).to(torch.long)
    bucket = torch.where(n < 8, n, large.clamp(max=15))
    net = track(nn.Embedding(16, 2))
    loss = net(bucket).square().sum()
    loss.backward()
    return loss, net.weight.grad


@case("nms-degenerate", "NMS: IoU of two empty boxes is 0/0, which is not above the threshold", "", "clean", "clean")
def nms_degenerate():
    boxes = torch.tensor([[0.0, 0, 2, 2], [1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 2, 1.9]])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6])
    order, keep = scores.argsort(descending=True).tolist(), []
    while order:
        i = order.pop(0)
        keep.append(i)
        lt, rb = torch.maximum(boxes[i, :2], boxes[order][:, :2]), torch.minimum(boxes[i, 2:], boxes[order][:, 2:])
        inter = (rb - lt).clamp(min=0).prod(1)
        area = lambda b: (b[..., 2:] - b[..., :2]).prod(-1)
        iou = inter / (area(boxes[i]) + area(boxes[order]) - inter)
        order = [j for j, suppressed in zip(order, (iou > 0.5).tolist()) if not suppressed]
    return (boxes[keep],)


@case(
    "annealing-cold",
    "simulated annealing at temperature 0: exp(-dE / 0) is 0 or inf, compared with a number",
    "",
    "clean",
    "clean",
)
def annealing_cold():
    x, energy = torch.zeros(4), torch.tensor(4.0)
    for k in range(6):
        temperature = torch.tensor(1.0 - k / 5)
        y = x + torch.randn(4) * 0.3
        e = (y - 1).square().sum()
        accept = torch.rand(()) < torch.exp((energy - e) / temperature)
        x, energy = torch.where(accept, y, x), torch.where(accept, e, energy)
    return x, energy
