"""Logarithms, powers and inverse functions outside of their domain."""

import torch
import torch.distributions as D
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "poincare-log-boundary",
    "log map of the Poincare ball: the clamp at 1 - 1e-8 is 1.0 in float32, log(1 - 1)",
    "",
    "log-zero",
    "inf",
    "log",
    module="encoder.manifold",
)
def poincare_log_boundary():
    class PoincareBall(nn.Module):
        def __init__(self, c=1.0):
            super().__init__()
            self.c = c

        def artanh(self, x):
            x = x.clamp(-1 + 1e-8, 1 - 1e-8)
            up = torch.log(1 + x)
            down = torch.log(1 - x)  # ORIGIN
            return 0.5 * (up - down)

        def forward(self, y):
            norm = y.norm(dim=-1, p=2, keepdim=True).clamp_min(1e-15)
            return y / norm / self.c**0.5 * self.artanh(self.c**0.5 * norm)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 2)
            self.manifold = PoincareBall()

        def forward(self, x):
            h = self.lin(x)
            h = h / h.norm(dim=-1, keepdim=True) * torch.tensor([[0.4], [1.0], [0.9]])
            return self.manifold(h.detach().double().float() * torch.tensor(1.0 + 1e-6))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()
            self.head = nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.encoder(x))

    return track(Net())(torch.randn(3, 3))


@case(
    "lorentz-acosh-self-distance",
    "distance of a point to itself on the hyperboloid: -<x,x> rounds below 1",
    "",
    "inverse-trig",
    "nan",
    "acosh",
    module="manifolds.1",
)
def lorentz_acosh_self_distance():
    class Euclid(nn.Module):
        def forward(self, x, y):
            return (x - y).square().sum(-1)

    class Lorentz(nn.Module):
        def lift(self, x):
            return torch.cat([(1 + (x * x).sum(-1, keepdim=True)).sqrt(), x], -1)

        def forward(self, x, y):
            px, py = self.lift(x), self.lift(y)
            prod = px * py
            inner = prod[..., 0] - prod[..., 1:].sum(-1)
            return torch.acosh(inner)  # ORIGIN

    class Dist(nn.Module):
        def __init__(self):
            super().__init__()
            self.manifolds = nn.ModuleList([Euclid(), Lorentz()])

        def forward(self, x, y):
            return torch.stack([m(x, y) for m in self.manifolds])

    x = torch.randn(64, 3) * 3
    return track(Dist())(x, x.clone())


@case(
    "slerp-merge-identical",
    "spherical merge of two checkpoints: the dot product of a frozen weight with itself is 1 + 2e-7",
    "",
    "inverse-trig",
    "nan",
    ["acos", "arccos"],
    module=None,
)
def slerp_merge_identical():
    torch.manual_seed(1)
    shared = torch.randn(6)
    a = {"frozen.weight": shared, "head.weight": torch.randn(2, 6)}
    b = {"frozen.weight": shared.clone(), "head.weight": torch.randn(2, 6)}
    merged = {}
    with torch.no_grad():
        for key, t0 in a.items():
            v0, v1 = t0.flatten(), b[key].flatten()
            dot = (v0 / v0.norm() * (v1 / v1.norm())).sum()
            omega = torch.arccos(dot)  # ORIGIN
            so = torch.sin(omega)
            merged[key] = ((torch.sin(0.5 * omega) / so) * (v0 + v1)).view_as(t0)
    model = nn.ModuleDict({"frozen": nn.Linear(6, 1, bias=False), "head": nn.Linear(6, 2, bias=False)})
    model.load_state_dict({k: v.view(-1, 6) for k, v in merged.items()})
    track(model)
    return merged["frozen.weight"], merged["head.weight"]


@case(
    "bicubic-overshoot-gamma",
    "gamma correction x ** (1/2.2) of a bicubically enlarged image that overshoots below 0",
    "",
    "pow-domain",
    "nan",
    "pow",
    module="post.gamma",
)
def bicubic_overshoot_gamma():
    class Gamma(nn.Module):
        def forward(self, img):
            return img.clamp(max=1.0) ** (1 / 2.2)  # ORIGIN

    class Sr(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Upsample(scale_factor=2, mode="bicubic", align_corners=False)
            self.post = nn.Sequential()
            self.post.add_module("gamma", Gamma())

        def forward(self, x):
            return self.post(self.up(x))

    x = torch.zeros(1, 1, 4, 4)
    x[..., 2:] = 1.0
    return track(Sr())(x)


@case(
    "poisson-nll-negative-rate",
    "PoissonNLLLoss(log_input=False) fed with a raw linear output",
    "",
    "log-negative",
    "nan",
    "log",
    module="criterion",
    step=1,
)
def poisson_nll_negative_rate():
    class CountModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1))
            self.criterion = nn.PoissonNLLLoss(log_input=False)

        def forward(self, x, counts):
            rate = self.body(x).squeeze(-1)
            return self.criterion(rate, counts)  # ORIGIN

    model = track(CountModel())
    optim = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, counts = torch.randn(8, 3), torch.randint(0, 5, (8,)).float()
    for step in range(1, 3):
        mark_step(step)
        optim.zero_grad(set_to_none=True)
        loss = model(x, counts)
        loss.backward()
        optim.step()
    return loss, model.body[0].weight


@case(
    "normal-icdf-saturated",
    "Gaussian copula: the CDF of an outlier is 1.0 in float32, its quantile is infinite",
    "",
    "inverse-trig",
    "inf",
    "erfinv",
    module=None,
)
def normal_icdf_saturated():
    flow = track(nn.Linear(2, 2))
    x = torch.tensor([[0.3, -1.0], [12.0, 0.4], [1.0, 2.0]])
    base = D.Normal(torch.zeros(2), torch.ones(2))
    u = base.cdf(x)
    z = base.icdf(u)  # ORIGIN
    corr = z.t() @ z / len(z)
    return flow(corr)


@case(
    "gumbel-uniform-one",
    "gumbel noise -log(-log(u)) of a uniform sample that is exactly 1 after rounding to half",
    "",
    "log-zero",
    "inf",
    "log",
    module="quantizer.sampler",
)
def gumbel_uniform_one():
    class GumbelSampler(nn.Module):
        def forward(self, logits, u):
            noise = torch.log(u)
            noise = torch.log(-noise)  # ORIGIN
            return F.softmax((logits - noise) / 0.5, dim=-1)

    class Quantizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.sampler = GumbelSampler()
            self.codebook = nn.Parameter(torch.randn(4, 3))

        def forward(self, logits, u):
            return self.sampler(logits, u) @ self.codebook

    class Vq(nn.Module):
        def __init__(self):
            super().__init__()
            self.quantizer = Quantizer()

        def forward(self, logits, u):
            return self.quantizer(logits, u)

    u = torch.tensor([[0.2, 0.99999, 0.7, 0.1], [0.5, 0.6, 0.3, 0.8]]).half().float()
    vq = track(Vq())
    out = vq(torch.randn(2, 4), u)
    out.sum().backward()
    return out, vq.quantizer.codebook.grad


@case(
    "quaternion-pitch-rounded",
    "Euler pitch of quaternions logged with four decimals: 2(wy - zx) is 1.0003, asin",
    "",
    "inverse-trig",
    "nan",
    ["asin", "arcsin"],
    module=None,
)
def quaternion_pitch_rounded():
    emb = track(nn.Linear(3, 2))
    log = ["1.0000 0.0000 0.0000 0.0000", "0.7072 0.0000 0.7072 0.0000", "0.9239 0.3827 0.0000 0.0000"]
    quats = torch.tensor([[float(v) for v in line.split()] for line in log])

    def euler(q):
        w, x, y, z = q.unbind(-1)
        roll = torch.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
        pitch = torch.arcsin(2 * (w * y - z * x))  # ORIGIN
        yaw = torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        return torch.stack((roll, pitch, yaw), dim=-1)

    out = emb(euler(quats))
    loss = out.square().mean()
    loss.backward()
    return loss, emb.weight.grad


@case(
    "focal-bf16-autocast",
    "focal loss under bfloat16 autocast: 1 - 1e-6 is 1, log1p(-1) times a zero target",
    "",
    "eps-underflow",
    "inf",
    "log1p",
    module="focal",
)
def focal_bf16_autocast():
    class Focal(nn.Module):
        def forward(self, logits, y):
            p = torch.sigmoid(logits).clamp(1e-6, 1.0 - 1e-6)
            pos = -y * p.log() * (1 - p) ** 2
            neg = -(1 - y) * torch.log1p(-p) * p**2  # ORIGIN
            return (pos + neg).mean()

    class Det(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls = nn.Linear(4, 3)
            self.focal = Focal()

        def forward(self, x, y):
            return self.focal(self.cls(x), y)

    det = Det()
    with torch.no_grad():
        det.cls.bias.fill_(9.0)
    track(det)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = det(torch.randn(5, 4), torch.ones(5, 3))
    loss.backward()
    return loss, det.cls.weight.grad


@case(
    "sequential-slice-tail",
    "the tail of a Sequential, net[2:], is called on cached features",
    "",
    "log-zero",
    "inf",
    "log",
    module="3",
)
def sequential_slice_tail():
    class Log(nn.Module):
        def forward(self, x):
            return x.log()  # ORIGIN

    net = track(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.ReLU(), Log(), nn.Linear(4, 2)))
    with torch.no_grad():
        feats = net[:2](torch.randn(5, 3))
    tail = net[2:]
    out = tail(feats)
    out.sum().backward()
    return out, net[4].weight.grad


@case(
    "logit-eps-float32",
    "torch.logit(p, eps=1e-8): 1 - 1e-8 is 1 in float32",
    "",
    "eps-underflow",
    "inf",
    ["logit"],
    module="calib",
)
def logit_eps_float32():
    class Calib(nn.Module):
        def __init__(self):
            super().__init__()
            self.t = nn.Parameter(torch.tensor(1.5))

        def forward(self, p):
            z = torch.logit(p, eps=1e-8)  # ORIGIN
            return torch.sigmoid(z / self.t) - 0.1 * z

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.calib = Calib()

        def forward(self, p):
            return self.calib(p)

    net = track(Net())
    out = net(torch.tensor([0.2, 1.0, 0.7]))
    out.mean().backward()
    return out, net.calib.t.grad


@case(
    "ddim-eta-above-one",
    "DDIM with eta = 1.3: 1 - abar_prev - sigma^2 is negative in the last step",
    "",
    "log-negative",
    "nan",
    ["sqrt", "pow"],
    module=None,
    step=1,
)
def ddim_eta_above_one():
    unet = track(nn.Linear(3, 3))
    abar = torch.tensor([0.999, 0.9, 0.5, 0.1])

    @torch.no_grad()
    def sample(x, eta):
        for k, t in enumerate(range(3, 0, -1), 1):
            mark_step(k)
            a, prev = abar[t], abar[t - 1]
            eps = unet(x)
            x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
            sigma = eta * ((1 - prev) / (1 - a) * (1 - a / prev)).sqrt()
            direction = (1 - prev - sigma**2).sqrt() * eps  # ORIGIN
            x = prev.sqrt() * x0 + direction + sigma * torch.randn(3)
        return x

    return sample(torch.randn(2, 3), 1.3)


@case(
    "faster-rcnn-negative-width",
    "a box with xmin > xmax: log of a negative width",
    "https://github.com/jwyang/faster-rcnn.pytorch/issues/349",
    "domain",
    "nan",
    "log",
    module="criterion",
)
def faster_rcnn_negative_width():
    class Criterion(nn.Module):
        def forward(self, deltas, gt, ex):
            dw = torch.log((gt[:, 2] - gt[:, 0] + 1) / (ex[:, 2] - ex[:, 0] + 1))  # ORIGIN
            return F.smooth_l1_loss(deltas[:, 0], dw)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.criterion = nn.Linear(5, 4), Criterion()

        def forward(self, x, gt, ex):
            return self.criterion(self.head(x), gt, ex)

    net = track(Net())
    ex = torch.tensor([[0.0, 0, 15, 15], [16, 16, 47, 47]])
    gt = torch.tensor([[1.0, 1, 12, 12], [65535, 20, 40, 40]])
    loss = net(torch.randn(2, 5), gt, ex)
    loss.backward()
    return (loss,)


@case(
    "spline-inverse-outside",
    "rational quadratic spline, inverse outside of its interval: negative discriminant",
    "https://github.com/pyro-ppl/pyro/issues/3139",
    "domain",
    "nan",
    "sqrt",
    module="spline",
)
def spline_inverse_outside():
    class Spline(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.Parameter(torch.tensor(1.0))

        def forward(self, y):
            d0, d1, s = 1.0, 1.0, 2.0
            k = y * (d0 + d1 - 2 * s)
            a, b, c = self.h * (s - d0) + k, self.h * d0 - k, -s * y
            disc = b.pow(2) - 4 * a * c
            root = 2 * c / (-b - torch.sqrt(disc))  # ORIGIN
            return torch.where(y.abs() < 1, root, y)

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.spline = Spline()

        def forward(self, y):
            return self.spline(y)

    net = track(Flow())
    opt = torch.optim.SGD(net.parameters(), 0.1)
    y = torch.linspace(-3, 3, 13)
    loss = net(y).square().sum()
    loss.backward()
    opt.step()
    return loss, net.spline.h


@case(
    "heron-degenerate-triangle",
    "Heron's formula for a sliver: s - c is a last digit below 0",
    "",
    "domain",
    "nan",
    "sqrt",
    module=None,
)
def heron_degenerate_triangle():
    verts = track(nn.Embedding(3, 2))
    with torch.no_grad():
        verts.weight.copy_(torch.tensor([[0.0, 0.0], [0.1, 0.1], [0.3, 0.3]]))
    v = verts.weight
    a, b, c = (v[0] - v[1]).norm(), (v[1] - v[2]).norm(), (v[0] - v[2]).norm() * (1 + 1e-6)
    s = (a + b + c) / 2
    area = torch.sqrt(s * (s - a) * (s - b) * (s - c))  # ORIGIN
    loss = 1 / (area + 1e-3)
    loss.backward()
    return loss, v.grad
