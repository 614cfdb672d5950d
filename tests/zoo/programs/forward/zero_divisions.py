"""Divisions by zero: norms, ranges, areas and rates that vanish."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "corrcoef-constant-row",
    "torch.corrcoef of features with a constant channel",
    "",
    "zero-division",
    "nan",
    ["div", "div_", "true_divide"],
    module="decor",
)
def corrcoef_constant_row():
    class Decorrelate(nn.Module):
        def forward(self, feats):
            c = torch.corrcoef(feats.t())  # ORIGIN
            off = c - torch.diag(c.diagonal())
            return off.pow(2).sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.decor = Decorrelate()

        def forward(self, x):
            return self.decor(F.relu(self.fc(x)))

    net = Net()
    with torch.no_grad():
        net.fc.bias[1] = -100.0
    loss = track(net)(torch.randn(6, 3))
    loss.backward()
    return loss, net.fc.weight.grad


@case(
    "r2-constant-target",
    "R2 score against a constant target: residual over a zero total sum of squares",
    "",
    "zero-division",
    "inf",
    "div",
    module="metrics.r2",
)
def r2_constant_target():
    class R2(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, pred, target):
            rss = torch.sum((target - pred) ** 2)
            tss = torch.sum((target - target.mean()) ** 2)
            score = 1 - rss / tss  # ORIGIN
            self.total.add_(score)
            return score

    class Lit(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 1)
            self.metrics = nn.ModuleDict({"r2": R2()})

        def validation_step(self, x, y):
            with torch.no_grad():
                return self.metrics["r2"](self.net(x).squeeze(1), y)

    lit = track(Lit())
    return lit.validation_step(torch.randn(4, 2), torch.full((4,), 3.0)), lit.metrics["r2"].total


@case(
    "normalize-half-zero-row",
    "F.normalize in half precision: its eps of 1e-12 is 0, a padded row is 0/0",
    "",
    "eps-underflow",
    "nan",
    "div",
    module="retriever.pool",
)
def normalize_half_zero_row():
    class Pool(nn.Module):
        def forward(self, h, mask):
            s = (h * mask[..., None]).sum(1)
            return F.normalize(s, p=2, dim=-1)  # ORIGIN

    class Retriever(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(10, 4)
            self.pool = Pool()

        def forward(self, ids, mask):
            return self.pool(self.emb(ids), mask)

    class System(nn.Module):
        def __init__(self):
            super().__init__()
            self.retriever = Retriever()

        def forward(self, ids, mask):
            q = self.retriever(ids, mask)
            return q @ q.t()

    with torch.inference_mode():
        system = track(System().half().eval())
        mask = torch.tensor([[1, 1, 0], [0, 0, 0]]).half()
        return system(torch.tensor([[1, 2, 0], [0, 0, 0]]), mask).float()


@case(
    "groupnorm-eps-zero",
    "GroupNorm(eps=0) on a feature map a ReLU has switched off",
    "",
    "zero-division",
    "nan",
    "native_group_norm",
    module="blocks.1.2",
)
def groupnorm_eps_zero():
    def block(cin, cout):
        return nn.Sequential(nn.Conv2d(cin, cout, 1), nn.ReLU(), nn.GroupNorm(2, cout, eps=0.0))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([block(3, 4), block(4, 4)])

        def forward(self, x):
            for b in self.blocks:
                x = b(x)  # ORIGIN
            return x.mean((2, 3))

    net = Net()
    with torch.no_grad():
        net.blocks[1][0].bias[:2] = -1e4
    out = track(net)(torch.randn(2, 3, 4, 4))
    out.sum().backward()
    return out, net.blocks[0][0].weight.grad


@case(
    "rmsnorm-eps-zero-pad",
    "nn.RMSNorm(eps=0) on the zero embedding of a padding token",
    "",
    "zero-division",
    "inf",
    ["rsqrt", "_fused_rms_norm", "rms_norm"],
    module="layers.0.norm1",
)
def rmsnorm_eps_zero_pad():
    class Layer(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.norm1 = nn.RMSNorm(d, eps=0.0)
            self.ff = nn.Linear(d, d)

        def forward(self, x):
            return x + self.ff(self.norm1(x))  # ORIGIN

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(7, 4, padding_idx=0)
            self.layers = nn.ModuleList(Layer(4) for _ in range(2))
            self.head = nn.Linear(4, 7)

        def forward(self, ids):
            x = self.tok(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    lm = track(Lm())
    ids = torch.tensor([[3, 4, 0], [1, 2, 5]])
    loss = F.cross_entropy(lm(ids).flatten(0, 1), ids.flatten(), ignore_index=0)
    loss.backward()
    return loss, lm.head.weight.grad


@case(
    "weight-norm-zero-filter",
    "weight normalisation of a zero-initialised output convolution: v / ||v|| is 0/0",
    "",
    "zero-division",
    "nan",
    ["_weight_norm_interface", "_weight_norm", "div"],
    module="end.parametrizations.weight.0",
)
def weight_norm_zero_filter():
    class WaveNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Conv1d(1, 4, 1)
            self.end = nn.Conv1d(4, 2, 1)
            nn.init.zeros_(self.end.weight)
            nn.init.zeros_(self.end.bias)
            nn.utils.parametrizations.weight_norm(self.end)

        def forward(self, x):
            h = torch.tanh(self.start(x))
            return self.end(h)  # ORIGIN

    net = track(WaveNet())
    out = net(torch.randn(1, 1, 6))
    out.mean().backward()
    return out, net.start.weight.grad


@case(
    "inverse-frequency-weights",
    "class weights 1 / count with a class that never occurs: inf, and inf / inf in the loss",
    "",
    "zero-division",
    "inf",
    ["reciprocal", "div", "mul"],
    module=None,
)
def inverse_frequency_weights():
    labels = torch.tensor([0, 0, 1, 3, 3, 1])
    counts = torch.bincount(labels, minlength=4)
    weights = 1.0 / counts  # ORIGIN
    weights = weights / weights.sum() * len(counts)
    clf = track(nn.Linear(3, 4))
    loss = nn.CrossEntropyLoss(weight=weights)(clf(torch.randn(6, 3)), labels)
    loss.backward()
    return loss, clf.weight.grad


@case(
    "sinkhorn-kernel-underflow",
    "entropic transport with a small regulariser: exp(-C/reg) underflows and u = a / 0",
    "",
    "zero-division",
    "inf",
    "div",
    module="matcher.ot",
)
def sinkhorn_kernel_underflow():
    class Sinkhorn(nn.Module):
        def __init__(self, reg, iters=5):
            super().__init__()
            self.reg, self.iters = reg, iters

        def forward(self, C):
            n, m = C.shape
            a, b = C.new_full((n,), 1 / n), C.new_full((m,), 1 / m)
            K = torch.exp(-C / self.reg)
            u, v = torch.ones_like(a), torch.ones_like(b)
            for _ in range(self.iters):
                u = a / (K @ v)  # ORIGIN
                v = b / (K.t() @ u)
            return u[:, None] * K * v[None]

    class Matcher(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 4)
            self.ot = Sinkhorn(1e-3)

        def forward(self, x, y):
            return self.ot(torch.cdist(self.proj(x), y))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.matcher = Matcher()

        def forward(self, x, y):
            return self.matcher(x, y).diagonal().sum()

    net = track(Net())
    loss = net(torch.randn(3, 4), torch.randn(3, 4) * 2 + 3)
    loss.backward()
    return loss, net.matcher.proj.weight.grad


@case(
    "gradcam-flat-map",
    "Grad-CAM: the map is all 0 after its ReLU, in-place min-max normalisation is 0/0",
    "",
    "zero-division",
    "nan",
    ["div", "div_"],
    module=None,
)
def gradcam_flat_map():
    net = track(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)))
    with torch.no_grad():
        net[4].weight.copy_(-net[4].weight.abs())
    kept = {}

    def save(module, args, out):
        kept["act"] = out
        out.register_hook(lambda g: kept.__setitem__("grad", g))

    handle = net[1].register_forward_hook(save)
    score = net(torch.rand(1, 1, 6, 6))[0, 0]
    score.backward()
    handle.remove()
    alpha = kept["grad"].mean((2, 3), keepdim=True)
    cam = F.relu((alpha * kept["act"].detach()).sum(1))
    cam -= cam.min()
    cam /= cam.max()  # ORIGIN
    return F.interpolate(cam[:, None], size=(6, 6), mode="bilinear", align_corners=False)


@case(
    "raft-width-one",
    "optical flow on a thumbnail: the finest correlation level is one pixel wide, 2x/(W-1)",
    "",
    "zero-division",
    "nan",
    "div",
    module="corr_fn",
)
def raft_width_one():
    def bilinear_sampler(img, coords):
        H, W = img.shape[-2:]
        xgrid, ygrid = coords.split([1, 1], dim=-1)
        ygrid = 2 * ygrid / max(H - 1, 1) - 1
        xgrid = 2 * xgrid / (W - 1) - 1  # ORIGIN
        return F.grid_sample(img, torch.cat([xgrid, ygrid], dim=-1), align_corners=True)

    class Corr(nn.Module):
        def forward(self, f, coords):
            pyramid, out = [f], []
            for _ in range(2):
                f = F.avg_pool2d(f, 2, stride=2)
                pyramid.append(f)
            for i, lvl in enumerate(pyramid):
                out.append(bilinear_sampler(lvl, coords / 2**i))
            return torch.cat(out, dim=1)

    class Raft(nn.Module):
        def __init__(self):
            super().__init__()
            self.fnet = nn.Conv2d(1, 2, 3, padding=1)
            self.corr_fn = Corr()

        def forward(self, x):
            ys, xs = torch.meshgrid(torch.arange(2.0), torch.arange(2.0), indexing="ij")
            coords = torch.stack([xs, ys], -1)[None]
            return self.corr_fn(self.fnet(x), coords)

    raft = track(Raft())
    flow = raft(torch.randn(1, 1, 8, 4))
    flow.mean().backward()
    return flow, raft.fnet.weight.grad


@case(
    "tfidf-unseen-term",
    "inverse document frequency log(N / df) of a term that no document holds: inf times tf 0",
    "",
    "zero-division",
    "inf",
    ["div", "reciprocal"],
    module=None,
)
def tfidf_unseen_term():
    tf = torch.tensor([[2.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    df = (tf > 0).sum(0)
    ratio = len(tf) / df  # ORIGIN
    idf = torch.log(ratio)
    tfidf = tf * idf
    clf = track(nn.Linear(3, 2))
    out = clf(tfidf)
    return out


@case(
    "fisher-z-perfect",
    "Fisher z of a perfect correlation: (1 + r) / (1 - r) is inf, the difference of two is NaN",
    "",
    "zero-division",
    "inf",
    "div",
    module="rsa.fisher",
)
def fisher_z_perfect():
    class Fisher(nn.Module):
        def forward(self, r):
            odds = (1 + r).div(1 - r)  # ORIGIN
            return 0.5 * odds.log()

    class Rsa(nn.Module):
        def __init__(self):
            super().__init__()
            self.fisher = Fisher()

        def forward(self, a, b):
            za, zb = self.fisher(a), self.fisher(b)
            return za - zb

    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.rsa = Rsa()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, a, b):
            return self.scale * self.rsa(a, b).mean()

    probe = track(Probe())
    a = torch.tensor([[1.0, 0.2], [0.2, 1.0]])
    b = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
    out = probe(a, b)
    out.backward()
    return out, probe.scale.grad


@case(
    "ndc-rays-zero-depth",
    "normalised device coordinates: the ray origin's z is 0 after the shift, x / z",
    "",
    "zero-division",
    "inf",
    "div",
    module=None,
)
def ndc_rays_zero_depth():
    nerf = track(nn.Linear(3, 4))

    def get_ndc_rays(near, o, d):
        t = -(near + o[..., 2]) / d[..., 2]
        o = o + t[..., None] * d
        ox = o[..., 0] / o[..., 2]  # ORIGIN
        oy = o[..., 1] / -1.0
        return torch.stack([ox, oy, 1 + 2 * near / o[..., 2].clamp(max=-1e-3)], -1), d

    o = torch.tensor([[0.3, 0.1, 2.0], [-0.2, 0.5, 1.0]])
    d = torch.tensor([[0.1, 0.0, -1.0], [0.0, 0.1, -0.5]])
    pts, _ = get_ndc_rays(0.0, o, d)
    rgb = torch.sigmoid(nerf(torch.sin(pts)))
    return rgb


@case(
    "dataset-getitem-normalise",
    "a Dataset standardises a blank scan in __getitem__, the DataLoader collates it",
    "",
    "zero-division",
    "nan",
    "div",
    module=None,
    step=2,
)
def dataset_getitem_normalise():
    class Scans(torch.utils.data.Dataset):
        def __init__(self):
            self.scans = torch.rand(4, 1, 3, 3)
            self.scans[2] = 0.0

        def __len__(self):
            return 4

        def __getitem__(self, i):
            x = self.scans[i]
            x = (x - x.mean()) / x.max()  # ORIGIN
            return x, torch.tensor(i % 2)

    net = track(nn.Sequential(nn.Flatten(), nn.Linear(9, 2)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    it = iter(torch.utils.data.DataLoader(Scans(), batch_size=2))
    for k in (1, 2):
        mark_step(k)
        x, y = next(it)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[1].weight


@case(
    "manual-adam-no-eps",
    "Adam written by hand without eps: addcdiv_ of a zero first and a zero second moment",
    "",
    "zero-division",
    "nan",
    ["addcdiv_", "addcdiv"],
    module=None,
    step=1,
)
def manual_adam_no_eps():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        net[0].bias[1] = -50.0
    track(net)
    m = [torch.zeros_like(p) for p in net.parameters()]
    v = [torch.zeros_like(p) for p in net.parameters()]
    for k in (1, 2):
        mark_step(k)
        loss = net(torch.randn(5, 3)).square().mean()
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g, mi, vi in zip(net.parameters(), grads, m, v):
                mi.lerp_(g, 0.1)
                vi.mul_(0.999).addcmul_(g, g, value=0.001)
                p.addcdiv_(mi, vi.sqrt(), value=-1e-3)  # ORIGIN
    return loss, net[0].weight


@case(
    "phase-wrap-zero-period",
    "time is wrapped by a period of zero: remainder(x, 0) is NaN",
    "",
    "zero-division",
    "nan",
    ["remainder", "fmod"],
    module="enc",
)
def phase_wrap_zero_period():
    class Cyclic(nn.Module):
        def __init__(self, periods):
            super().__init__()
            self.register_buffer("periods", torch.tensor(periods))

        def forward(self, t):
            ph = t[:, None] % self.periods  # ORIGIN
            return torch.cat([ph.sin(), ph.cos()], 1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = Cyclic([24.0, 7.0, 0.0])
            self.fc = nn.Linear(6, 1)

        def forward(self, t):
            return self.fc(self.enc(t))

    return track(Net())(torch.arange(4.0))


@case(
    "fakequant-zero-row",
    "absmax fake quantisation with a straight-through estimator: an all-zero row has scale 0",
    "",
    "zero-division",
    "nan",
    ["div"],
    module="mlp.1",
)
def fakequant_zero_row():
    class Quant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            scale = x.abs().amax(-1, keepdim=True) / 127
            q = (x / scale).round().clamp(-128, 127)  # ORIGIN
            return q * scale

        @staticmethod
        def backward(ctx, g):
            return g

    class QLinear(nn.Linear):
        def forward(self, x):
            return F.linear(Quant.apply(x), self.weight, self.bias)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.ReLU(), QLinear(4, 3), nn.ReLU(), QLinear(3, 2))

        def forward(self, x):
            return self.mlp(x)

    net = track(Net())
    x = torch.randn(3, 4)
    x[1] = -x[1].abs()
    out = net(x)
    out.sum().backward()
    return out, net.mlp[1].weight.grad


@case(
    "moe-dropped-token",
    "mixture of experts: all experts of a token are over capacity, its gate weights are renormalised, 0/0",
    "",
    "zero-division",
    "nan",
    ["div", "div_"],
    module="layers.1.moe.router",
    step=1,
)
def moe_dropped_token():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(3, 4, bias=False)

        def forward(self, x, capacity):
            p = self.gate(x).softmax(-1)
            w, idx = p.topk(2, -1)
            pos = F.one_hot(idx, 4).sum(1).cumsum(0)
            keep = pos.gather(1, idx) <= capacity
            w = w * keep
            w = w / w.sum(-1, keepdim=True)  # ORIGIN
            return torch.zeros_like(p).scatter(1, idx, w)

    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = Router()
            self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

        def forward(self, x, capacity):
            g = self.router(x, capacity)
            y = torch.stack([e(x) for e in self.experts], 1)
            return torch.einsum("te,ted->td", g, y)

    class Layer(nn.Module):
        def __init__(self, capacity):
            super().__init__()
            self.moe, self.capacity = Moe(), capacity

        def forward(self, x):
            return x + self.moe(x, self.capacity)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(99), Layer(1)])

        def forward(self, x):
            for l in self.layers:
                x = l(x)
            return x

    net = track(Net())
    opt = torch.optim.Adam(net.parameters())
    for k in (1, 2):
        mark_step(k)
        loss = net(torch.randn(8, 3)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.layers[0].moe.router.gate.weight


@case(
    "droppath-keep-zero",
    "stochastic depth rate of 1: bernoulli(0) divided by keep_prob 0",
    "",
    "zero-division",
    "nan",
    "div_",
    module="blocks.1.drop",
)
def droppath_keep_zero():
    class DropPath(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.p = p

        def forward(self, x):
            keep = 1 - self.p
            mask = x.new_empty((x.shape[0], 1)).bernoulli_(keep)
            mask.div_(keep)  # ORIGIN
            return x * mask

    class Block(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.fc, self.drop = nn.Linear(4, 4), DropPath(p)

        def forward(self, x):
            return x + self.drop(self.fc(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(p) for p in (0.0, 1.0)])

        def forward(self, x):
            for b in self.blocks:
                x = b(x)
            return x

    net = track(Net())
    loss = net(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    return (loss,)


@case(
    "timestep-embedding-dim-two",
    "sinusoidal embedding of width 2: half_dim - 1 is 0",
    "https://github.com/hojonathanho/diffusion/issues/15",
    "zero-division",
    "nan",
    "div",
    module="time",
)
def timestep_embedding_dim_two():
    class Time(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.dim = dim

        def forward(self, t):
            half = self.dim // 2
            exponent = -math.log(10000) * torch.arange(half, dtype=torch.float32)
            freqs = torch.exp(exponent / (half - 1))  # ORIGIN
            args = t[:, None].float() * freqs[None]
            return torch.cat([args.sin(), args.cos()], -1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.time, self.out = Time(2), nn.Linear(2, 1)

        def forward(self, t):
            return self.out(self.time(t))

    net = track(Net())
    loss = net(torch.tensor([3, 500])).sum()
    loss.backward()
    return (loss,)


@case(
    "cov-weighting-zero-loss",
    "coefficient-of-variation weighting: a loss that is zero from the start",
    "https://github.com/rickgroen/cov-weighting/issues/3",
    "zero-division",
    "nan",
    "div",
    module="weighting",
    step=1,
)
def cov_weighting_zero_loss():
    class Weighting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))
            self.t = 0

        def forward(self, losses):
            L = losses.detach()
            self.t += 1
            self.mean += (L - self.mean) / self.t
            ratio = L / self.mean  # ORIGIN
            alpha = ratio / ratio.sum()
            return (alpha * losses).sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.weighting = nn.Linear(3, 2), Weighting()

        def forward(self, x):
            y = self.body(x)
            return self.weighting(torch.stack([y.pow(2).mean(), F.relu(-y.pow(2)).sum()]))

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for k in (1, 2):
        mark_step(k)
        loss = net(torch.randn(5, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.body.weight


@case(
    "mel-filter-without-width",
    "mel filters of a small FFT: two edges fall on one bin, 0/0",
    "",
    "zero-division",
    "nan",
    "div",
    module=None,
)
def mel_filter_without_width():
    mels = torch.linspace(0.0, 2595 * math.log10(1 + 4000 / 700), 42)
    hz = 700 * (10 ** (mels / 2595) - 1)
    bins = torch.floor((64 + 1) * hz / 8000)
    k = torch.arange(33.0)
    up = (k[:, None] - bins[:-2]) / (bins[1:-1] - bins[:-2])  # ORIGIN
    down = (bins[2:] - k[:, None]) / (bins[2:] - bins[1:-1])
    fb = torch.minimum(up, down).clamp(min=0)
    net = track(nn.Linear(40, 2))
    loss = net(torch.log(torch.rand(3, 33) @ fb + 1e-6)).sum()
    loss.backward()
    return loss, net.weight.grad


@case(
    "gradnorm-initial-loss-zero",
    "GradNorm: the initial loss of a task is 0, its relative loss inf",
    "",
    "zero-division",
    "inf",
    "div",
    module=None,
    step=2,
)
def gradnorm_initial_loss_zero():
    net = track(nn.Linear(3, 2))
    with torch.no_grad():
        net.weight[1] = 0
        net.bias[1] = 0
    opt = torch.optim.SGD(net.parameters(), 0.1)
    initial = None
    for k in (1, 2):
        mark_step(k)
        y = net(torch.ones(4, 3))
        losses = torch.stack([(y[:, 0] - 1).square().mean(), (y[:, 1] - (k - 1)).square().mean()])
        if initial is None:
            initial = losses.detach()
            weights = torch.ones(2)
        else:
            ratio = losses.detach() / initial  # ORIGIN
            weights = ratio / ratio.mean()
        loss = (weights * losses).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.weight


@case(
    "gumbel-tau-zero",
    "gumbel_softmax at the end of its annealing: tau = 0",
    "",
    "zero-division",
    "inf",
    "div",
    module="router",
    step=3,
)
def gumbel_tau_zero():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.tau = nn.Linear(3, 4), 1.0

        def forward(self, x):
            return F.gumbel_softmax(self.fc(x), tau=self.tau)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = Router()

        def forward(self, x):
            return self.router(x)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for k in (1, 2, 3):
        mark_step(k)
        net.router.tau = 1 - (k - 1) / 2
        loss = net(torch.randn(2, 3)).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.router.fc.weight
