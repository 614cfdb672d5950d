"""Non-finite gradients of finite losses."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.zoo.framework import INF, alt, case, track


@case(
    "gradient-magnitude-flat",
    "image gradient magnitude sqrt(gx^2 + gy^2) in a flat region",
    "https://openillumi.com/en/en-fix-pytorch-cpu-nan-powbackward0",
    "sqrt-grad",
    "inf",
    ["div", "mul", "reciprocal"],
    node="SqrtBackward0",
    module="sobel",
    notes="reported as a PowBackward0 NaN; the inf is born one node earlier",
)
def gradient_magnitude_flat():
    class Sobel(nn.Module):
        def forward(self, img):
            gx = img[:, 1:] - img[:, :-1]
            gy = img[1:] - img[:-1]
            mag = torch.sqrt(gx[:-1] ** 2 + gy[:, :-1] ** 2)  # ORIGIN
            return mag.sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.img = nn.Parameter(torch.ones(4, 4))
            self.sobel = Sobel()

        def forward(self):
            return self.sobel(self.img)

    net = track(Net())
    loss = net()
    loss.backward()
    return loss, net.img.grad


@case(
    "acos-clamped-identity",
    "quaternion log: clamp keeps acos in its domain, but its slope at 1 is infinite",
    "kornia/kornia#4007",
    "inverse-trig",
    "nan",
    ["rsqrt", "mul", "neg", "div", "sqrt"],
    node="AcosBackward0",
    module="log",
    until="2.14",
    notes="since torch 2.14 the slope of acos at 1 is 0",
)
def acos_clamped_identity():
    class QLog(nn.Module):
        def forward(self, q):
            w, v = q[0], q[1:]
            n = v.norm().clamp(min=1e-8)
            return v * torch.acos(w.clamp(-1.0, 1.0)) / n  # ORIGIN

    class Traj(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.tensor([1.0, 0.0, 0.0, 0.0]))
            self.log = QLog()

        def forward(self):
            return self.log(self.q)

    t = track(Traj())
    out = t()
    out.sum().backward()
    return out, t.q.grad


@case(
    "asin-gimbal-lock",
    "Euler pitch asin(clamp(x)) at gimbal lock",
    "kornia/kornia#4228",
    "inverse-trig",
    "inf",
    ["rsqrt", "mul", "div", "sqrt"],
    node="AsinBackward0",
    module="",
    until="2.14",
    notes="since torch 2.14 the slope of asin at 1 is 0",
)
def asin_gimbal_lock():
    class Euler(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.tensor([0.5, 0.5, 0.5, 0.5]))

        def forward(self):
            w, x, y, z = self.q
            return torch.asin((2.0 * (w * y + z * x)).clamp(-1.0, 1.0))  # ORIGIN

    e = track(Euler())
    pitch = e()
    pitch.backward()
    return pitch, e.q.grad


@case(
    "power-law-zero-bin",
    "loudness power law x ** 0.23 of an empty spectral bin: infinite slope at 0",
    "asteroid-team/asteroid#121",
    "pow-grad",
    "inf",
    ["pow", "mul"],
    node="PowBackward0",
    module="loudness",
)
def power_law_zero_bin():
    class Loudness(nn.Module):
        def forward(self, spec):
            return spec.pow(0.23).sum(-1)  # ORIGIN

    class Pmsqe(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = nn.Parameter(torch.rand(5))
            self.loudness = Loudness()

        def forward(self, spec):
            return self.loudness(spec * F.relu(self.mask)).mean()

    m = track(Pmsqe())
    spec = torch.rand(2, 5)
    spec[0, 3] = 0.0
    loss = m(spec)
    loss.backward()
    return loss, m.mask.grad


@case(
    "pow-exponent-negative-base",
    "trainable exponent: d/db a**b needs log(a), NaN for a negative a",
    "pytorch/pytorch#95111",
    "pow-grad",
    "nan",
    ["log"],
    node=["PowBackward1", "PowTensorTensorBackward0"],
    module="gem",
    notes="adapted to real exponents: generalized-mean pooling without the usual clamp",
)
def pow_exponent_negative_base():
    class Gem(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.tensor(3.0))

        def forward(self, x):
            return x.pow(self.p).mean(-1)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gem = Gem()

        def forward(self, x):
            return self.gem(x)

    net = track(Net())
    out = net(torch.tensor([[0.5, -1.5, 2.0]]))
    out.sum().backward()
    return out, net.gem.p.grad


@case(
    "log-of-subnormal",
    "negative log-likelihood of a subnormal density: the loss is fine, 1/x is inf",
    "emited/VariationalRecurrentNeuralNetwork#2",
    "log-zero",
    "inf",
    ["div", "mul", "reciprocal"],
    node="LogBackward0",
    module="nll",
)
def log_of_subnormal():
    class Nll(nn.Module):
        def forward(self, d):
            dens = torch.exp(-0.5 * d * d)
            return -torch.log(dens).mean()  # ORIGIN

    class Dec(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Parameter(torch.tensor([0.0, 1.0]))
            self.nll = Nll()

        def forward(self, x):
            return self.nll(x - self.mean)

    d = track(Dec())
    loss = d(torch.tensor([13.9, 1.5]))
    loss.backward()
    return loss, d.mean.grad


@case(
    "where-division",
    "torch.where guards x / t against t = 0 in the forward only",
    "pytorch/pytorch#36923",
    "where-trap",
    "nan",
    ["div", "mul"],
    node="DivBackward0",
    module=None,
    also=[alt("forward", "div")],
)
def where_division():
    x = torch.ones(3, requires_grad=True)
    t = torch.tensor([2.0, 0.0, 0.5])
    ratio = x / t  # ORIGIN
    z = torch.where(t == 0, x, ratio)
    z.sum().backward()
    return z, x.grad


@case(
    "where-sqrt",
    "torch.where(x > 0, sqrt(x), 0): every forward value is finite, the gradient is 0/0",
    "pytorch/pytorch#52248",
    "where-trap",
    "nan",
    ["div", "mul"],
    node="SqrtBackward0",
    module="dist",
)
def where_sqrt():
    class Dist(nn.Module):
        def forward(self, a, b):
            d2 = (a - b).pow(2).sum(-1)
            return torch.where(d2 > 0, torch.sqrt(d2), torch.zeros_like(d2))  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.dist = Dist()

        def forward(self, a, b):
            return self.dist(self.fc(a), self.fc(b)).mean()

    net = track(Net())
    a = torch.randn(3, 2)
    b = a.clone()
    b[0] += 1.0
    loss = net(a, b)
    loss.backward()
    return loss, net.fc.weight.grad


@case(
    "where-cos-of-inf",
    "cutoff function: cos of an infinite padding distance, selected away by where",
    "pytorch/pytorch#18287",
    "where-trap",
    "nan",
    ["mul", "sin", "neg"],
    node="CosBackward0",
    module="cutoff",
    also=[alt("forward", "cos")],
    notes="the inf distances are intended padding",
)
def where_cos_of_inf():
    class Cutoff(nn.Module):
        def forward(self, r):
            return torch.where(r < 1.0, 0.5 * torch.cos(math.pi * r) + 0.5, torch.zeros_like(r))  # ORIGIN

    class Ani(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))
            self.cutoff = Cutoff()

        def forward(self, r):
            return self.cutoff(r * self.scale)

    ani = track(Ani())
    out = ani(torch.tensor([0.2, 0.7, INF]))
    out.sum().backward()
    return out, ani.scale.grad


@case(
    "overwritten-softplus",
    "log(exp(x) + 1) overflows, the bad element is overwritten in place, its gradient is not",
    "pytorch/pytorch#17455",
    "where-trap",
    "nan",
    ["mul"],
    node="ExpBackward0",
    module="softplus",
    also=[alt("forward", "exp")],
)
def overwritten_softplus():
    class Softplus(nn.Module):
        def forward(self, x):
            e = torch.exp(x)  # ORIGIN
            f = torch.log(e + 1)
            f[1] = 0
            return f

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor([0.0, 100.0]))
            self.softplus = Softplus()

        def forward(self):
            return self.softplus(self.x)

    net = track(Net())
    y = net()
    y.sum().backward()
    return y, net.x.grad


@case(
    "logsumexp-all-neginf-grad",
    "logsumexp over a row that is all -inf: the gradient is exp(-inf - (-inf))",
    "pytorch/pytorch#31829",
    "inf-minus-inf",
    "nan",
    ["sub", "exp", "mul"],
    node="LogsumexpBackward0",
    module="forward_pass",
    notes="-inf is the legitimate zero of the log semiring; the row value -inf is right",
)
def logsumexp_all_neginf_grad():
    class ForwardPass(nn.Module):
        def forward(self, alpha, trans):
            return torch.logsumexp(alpha[:, None] + trans, dim=0)  # ORIGIN

    class Hmm(nn.Module):
        def __init__(self):
            super().__init__()
            self.trans = nn.Parameter(torch.zeros(3, 3))
            self.forward_pass = ForwardPass()

        def forward(self, alpha, dead):
            return self.forward_pass(alpha, self.trans + dead)

    hmm = track(Hmm())
    dead = torch.zeros(3, 3).masked_fill(torch.tensor([False, False, True]), -INF)
    a = hmm(torch.zeros(3), dead)
    loss = -a[:2].sum()
    loss.backward()
    return loss, hmm.trans.grad


@case(
    "logaddexp-neginf-grad",
    "logaddexp(-inf, -inf) is -inf, its gradient NaN",
    "pytorch/pytorch#49724",
    "inf-minus-inf",
    "nan",
    ["sub", "exp", "div", "add"],
    node="LogaddexpBackward0",
    module=None,
)
def logaddexp_neginf_grad():
    w = torch.zeros(2, requires_grad=True)
    a = w + torch.tensor([0.0, -INF])
    b = torch.tensor([0.5, -INF])
    s = torch.logaddexp(a, b)  # ORIGIN
    out = torch.logaddexp(s, torch.tensor([1.0, 2.0]))
    out.sum().backward()
    return out, w.grad


@case(
    "atan2-origin-grad",
    "angle of a zero vector: atan2(0, 0) is 0, its gradient 0 * inf",
    "pytorch/pytorch#98276",
    "inverse-trig",
    "nan",
    ["reciprocal", "mul"],
    node="Atan2Backward0",
    module="heading",
    until="2.10",
    notes="fixed in torch 2.10 (#166787): its backward masks the infinite reciprocal",
)
def atan2_origin_grad():
    class Heading(nn.Module):
        def forward(self, v):
            return torch.atan2(v[:, 1], v[:, 0])  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2, bias=False)
            self.heading = Heading()

        def forward(self, x):
            return self.heading(self.fc(x))

    net = track(Net())
    out = net(torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    out.sum().backward()
    return out, net.fc.weight.grad


@case(
    "eigh-degenerate-backward",
    "eigenvector gradient of a symmetric matrix with a repeated eigenvalue",
    "pytorch/pytorch#47599",
    "linalg",
    "inf",
    ["div", "div_", "reciprocal", "mul", "sub"],
    node=["LinalgEighBackward0", "SymeigBackward0"],
    module="basis",
    notes="inf or NaN first, depending on rounding; the node is the truth",
)
def eigh_degenerate_backward():
    class Basis(nn.Module):
        def forward(self, h):
            w, v = torch.linalg.eigh(h)  # ORIGIN
            return v

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.Parameter(torch.diag(torch.tensor([1.0, 1.0, 3.0])))
            self.basis = Basis()

        def forward(self, p):
            v = self.basis(self.h)
            return (v.t() @ p @ v).diagonal()[0]

    net = track(Net())
    out = net(torch.tensor([[1.0, 2.0, 0.5], [2.0, -1.0, 0.3], [0.5, 0.3, 2.0]]))
    out.backward()
    return out, net.h.grad


@case(
    "custom-function-sparsemax",
    "custom autograd.Function: backward averages over an empty support, 0/0",
    "pytorch/pytorch#14923",
    "custom-function",
    "nan",
    ["div"],
    node="SparseActBackward",
    module="act",
)
def custom_function_sparsemax():
    class SparseAct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            out = torch.relu(z - 1.0)
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, g):
            s = (ctx.saved_tensors[0] > 0).float()
            avg = (s * g).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)
            return s * (g - avg)

    class Act(nn.Module):
        def forward(self, z):
            return SparseAct.apply(z)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.tensor([[2.0, 3.0], [-1.0, -2.0]]))
            self.act = Act()

        def forward(self):
            return self.act(self.z)

    net = track(Net())
    out = net()
    (out * torch.tensor([1.0, 2.0])).sum().backward()
    return out, net.z.grad


@case(
    "checkpointed-log",
    "log(0) in the forward of a checkpointed block (and again when it is recomputed)",
    "RasmussenLab/vamb#12 (variant under torch.utils.checkpoint)",
    "checkpoint",
    "inf",
    "log",
    module="enc.0",
)
def checkpointed_log():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            p = torch.softmax(self.fc(x), dim=-1)
            return p.log().neg()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.ModuleList([Block()])

        def forward(self, x):
            return checkpoint(self.enc[0], x, use_reentrant=False)

    net = Net()
    with torch.no_grad():
        net.enc[0].fc.weight.mul_(1000.0)
    track(net)
    out = net(torch.randn(2, 3, requires_grad=True))
    out.mean().backward()
    return out, net.enc[0].fc.weight.grad
