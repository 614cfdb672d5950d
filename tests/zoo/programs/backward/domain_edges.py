"""Slopes at the edge of a domain."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, track


@case(
    "minibatch-stddev",
    "ProGAN's minibatch standard deviation without eps, on a batch of copies",
    "",
    "sqrt-grad",
    "inf",
    ["div", "mul", "reciprocal"],
    node="SqrtBackward0",
    module="mbstd",
)
def minibatch_stddev():
    class MinibatchStd(nn.Module):
        def forward(self, x):
            y = x.var(0, unbiased=False).sqrt()  # ORIGIN
            return torch.cat([x, y.mean().expand(x.shape[0], 1)], 1)

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(3, 2)
            self.mbstd = MinibatchStd()
            self.head = nn.Linear(3, 1)

        def forward(self, x):
            return self.head(self.mbstd(self.body(x)))

    d = track(Critic())
    score = d(torch.randn(1, 3).repeat(4, 1))
    score.mean().backward()
    return score, d.body.weight.grad


@case(
    "poincare-same-point",
    "Poincare distance acosh(1 + 2 d) of two equal embeddings: acosh has no slope at 1",
    "",
    "inverse-trig",
    "inf",
    ["rsqrt", "mul", "div", "sqrt"],
    node="AcoshBackward0",
    module="ball",
)
def poincare_same_point():
    class PoincareBall(nn.Module):
        def forward(self, u, v):
            sq = (u - v).pow(2).sum(-1)
            den = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
            arg = 1 + 2 * sq / den
            return torch.acosh(arg)  # ORIGIN

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(4, 2)
            self.ball = PoincareBall()

        def forward(self, i, j):
            return self.ball(self.emb(i) * 0.1, self.emb(j) * 0.1)

    model = track(Model())
    d = model(torch.tensor([0, 1, 2]), torch.tensor([1, 1, 3]))
    d.mean().backward()
    return d, model.emb.weight.grad


@case(
    "geodesic-exact-match",
    "rotation error acos((tr - 1) / 2) in float64 of a pose that is exactly right",
    "",
    "inverse-trig",
    "inf",
    ["rsqrt", "mul", "neg", "div"],
    node="AcosBackward0",
    module=None,
)
def geodesic_exact_match():
    def rot(a):
        z, o = torch.zeros_like(a), torch.ones_like(a)
        return torch.stack([a.cos(), -a.sin(), z, a.sin(), a.cos(), z, z, z, o], -1).view(-1, 3, 3)

    angle = torch.tensor([0.0, 0.4], dtype=torch.float64, requires_grad=True)
    target = rot(torch.tensor([0.0, 0.1], dtype=torch.float64))
    rel = rot(angle).transpose(1, 2) @ target
    trace = torch.einsum("bii->b", rel)
    err = torch.rad2deg(torch.acos((trace - 1) / 2))  # ORIGIN
    err.mean().backward()
    return err, angle.grad


@case(
    "phase-of-silence",
    "phase loss on a spectrum of near silence: angle's |z|^2 underflows",
    "",
    "complex",
    "nan",
    ["div", "mul", "where", "abs", "pow"],
    node="AngleBackward0",
    module="phase_loss",
)
def phase_of_silence():
    class PhaseLoss(nn.Module):
        def forward(self, wav, ref):
            spec = torch.fft.rfft(wav)
            return (torch.angle(spec) - ref).abs().mean()  # ORIGIN

    class Vocoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.full((8,), 1e-24))
            self.phase_loss = PhaseLoss()

        def forward(self, noise, ref):
            return self.phase_loss(noise * self.gain, ref)

    voc = track(Vocoder())
    loss = voc(torch.randn(2, 8), torch.full((2, 5), 0.3))
    loss.backward()
    return loss, voc.gain.grad


@case(
    "hypot-flat-image",
    "edge strength with torch.hypot: 0/0 where the image is flat",
    "",
    "sqrt-grad",
    "nan",
    ["div"],
    node="HypotBackward0",
    module=None,
)
def hypot_flat_image():
    img = torch.zeros(5, 5)
    img[:, 3:] = 1.0
    img.requires_grad_()
    gx = img[1:-1, 2:] - img[1:-1, :-2]
    gy = img[2:, 1:-1] - img[:-2, 1:-1]
    edges = torch.hypot(gx, gy)  # ORIGIN
    tv = edges.mean()
    tv.backward()
    return tv, img.grad


@case(
    "kl-undetached-target",
    "mutual learning: the target of kl_div is not detached and has a zero, xlogy gives 0/0",
    "",
    "zero-times-inf",
    "nan",
    ["div", "mul", "xlogy"],
    node="XlogyBackward0",
    module="kl",
)
def kl_undetached_target():
    class Mutual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.kl = nn.KLDivLoss(reduction="batchmean")

        def forward(self, x):
            return self.kl(F.log_softmax(self.a(x), 1), F.softmax(300 * self.b(x), 1))  # ORIGIN

    net = track(Mutual())
    loss = net(torch.randn(2, 3))
    loss.backward()
    return loss, net.b.weight.grad


@case(
    "entr-hard-softmax",
    "max-entropy bonus with torch.special.entr on a saturated policy: slope of -p log p at 0",
    "",
    "log-zero",
    "inf",
    ["log", "neg", "sub", "add", "mul"],
    node="SpecialEntrBackward0",
    module=None,
)
def entr_hard_softmax():
    logits = torch.tensor([[0.0, -200.0, 1.0], [0.5, 0.2, 0.1]], requires_grad=True)
    probs = logits.softmax(-1)
    bonus = torch.special.entr(probs).sum(-1).mean()  # ORIGIN
    (-bonus).backward()
    return bonus, logits.grad


@case(
    "evidential-subnormal-alpha",
    "Dirichlet evidence softplus(x) is subnormal: lgamma is 90, digamma -inf",
    "",
    "log-zero",
    "inf",
    ["digamma", "mul"],
    node="LgammaBackward0",
    module="prior",
)
def evidential_subnormal_alpha():
    class DirichletPrior(nn.Module):
        def forward(self, alpha):
            norm = torch.lgamma(alpha.sum(-1))
            parts = torch.lgamma(alpha)  # ORIGIN
            return (parts.sum(-1) - norm).mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.evidence = nn.Parameter(torch.tensor([[2.0, -91.0, 0.5]]))
            self.prior = DirichletPrior()

        def forward(self):
            return self.prior(torch.exp(self.evidence))

    net = track(Net())
    loss = net()
    loss.backward()
    return loss, net.evidence.grad


@case(
    "gaussian-nll-tiny-var",
    "heteroscedastic NLL: (y - mu)^2 / exp(s) is 1e24, its slope 1e50",
    "",
    "overflow",
    "inf",
    ["div", "mul", "neg"],
    node="DivBackward0",
    module="nll",
)
def gaussian_nll_tiny_var():
    class Nll(nn.Module):
        def forward(self, mu, s, y):
            var = torch.exp(s)
            return 0.5 * ((y - mu) ** 2 / var + s).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu, self.s = nn.Linear(2, 1), nn.Linear(2, 1)
            self.nll = Nll()

        def forward(self, x, y):
            return self.nll(self.mu(x), self.s(x), y)

    net = Net()
    with torch.no_grad():
        net.s.bias.fill_(-60.0)
    track(net)
    loss = net(torch.randn(3, 2), torch.randn(3, 1))
    loss.backward()
    return loss, net.s.bias.grad


@case(
    "learned-gamma-black",
    "trainable gamma, black pixel: x ** g with 0 < g < 1",
    "",
    "pow-grad",
    "inf",
    ["pow", "mul", "where"],
    node=["PowBackward1", "PowTensorTensorBackward0"],
    module=None,
    notes="the gradient of the exponent is masked, that of the base is not",
)
def learned_gamma_black():
    gamma = torch.nn.Parameter(torch.tensor([0.45, 1.2]))
    exposure = torch.nn.Parameter(torch.tensor(1.3))
    pixels = torch.tensor([[0.0, 0.0], [0.2, 0.9]])
    out = (pixels * exposure).pow(gamma)  # ORIGIN
    (out - 0.5).pow(2).sum().backward()
    return out, exposure.grad, gamma.grad


@case(
    "rmsnorm-eps-1e-30",
    "nn.RMSNorm(eps=1e-30) over a padded row: rsqrt is 1e15, its cube inf",
    "",
    "normalisation",
    "nan",
    ["pow", "mul"],
    node="RsqrtBackward0",
    module="blocks.0.norm",
)
def rmsnorm_eps():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(4, eps=1e-30)
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return x + self.fc(self.norm(x))  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5, 4)
            self.blocks = nn.ModuleList([Block()])

        def forward(self, t):
            x = self.emb(t)
            for b in self.blocks:
                x = b(x)
            return x.sum()

    net = Net()
    with torch.no_grad():
        net.emb.weight[0] = 0.0
    track(net)
    loss = net(torch.tensor([[1, 3, 0]]))
    loss.backward()
    return loss, net.emb.weight.grad


@case(
    "layernorm-constant-rows",
    "nn.LayerNorm with a vanishing eps over constant rows",
    "",
    "normalisation",
    "nan",
    ["native_layer_norm_backward"],
    node="NativeLayerNormBackward0",
    module="head.0",
)
def layernorm_constant_rows():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((2, 7), 3.3))
            self.head = nn.Sequential(nn.LayerNorm(7, eps=1e-37), nn.Linear(7, 2))

        def forward(self):
            return self.head(self.scale * 1.0)  # ORIGIN

    net = track(Net())
    y = net()
    y.pow(2).sum().backward()
    return y, net.scale.grad


@case(
    "groupnorm-functional-flat",
    "F.group_norm over flat channel groups with eps=1e-30, called from a plain function",
    "",
    "normalisation",
    "nan",
    ["native_group_norm_backward"],
    node="NativeGroupNormBackward0",
    module=None,
)
def groupnorm_functional_flat():
    x = torch.full((1, 4, 7), 3.3, requires_grad=True)

    def normalise(t, groups=2):
        return F.group_norm(  # ORIGIN
            t,
            groups,
            eps=1e-30,
        )

    y = normalise(x)
    (y * torch.arange(7) * 0.37).sum().backward()
    return y, x.grad


@case(
    "capsule-squash-backward",
    "squash of a capsule that is zero: eps in the division, none below the root",
    "",
    "sqrt-zero",
    "nan",
    node="SqrtBackward0",
    module="caps",
)
def capsule_squash_backward():
    class Caps(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(2, 3, 4))

        def forward(self, u):
            s = torch.einsum("bi,cij->bcj", u, self.w)
            sq = s.square().sum(-1, keepdim=True)
            return sq / (1 + sq) * s / (torch.sqrt(sq) + 1e-8)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.caps = Caps()

        def forward(self, u):
            return self.caps(u)

    net = track(Net())
    u = torch.randn(3, 3)
    u[1] = 0
    opt = torch.optim.Adam(net.parameters())
    loss = net(u).sum()
    loss.backward()
    opt.step()
    return loss, net.caps.w


@case(
    "focal-half-gamma-backward",
    "focal loss with gamma 0.5: (1 - p) ** 0.5 has no slope at p = 1",
    "",
    "pow-zero",
    "nan",
    node="PowBackward0",
    module="focal",
)
def focal_half_gamma_backward():
    class Focal(nn.Module):
        def forward(self, logits, target):
            p = torch.sigmoid(logits).gather(1, target[:, None]).squeeze(1)
            return -((1 - p) ** 0.5 * torch.log(p)).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.focal = nn.Linear(2, 3), Focal()

        def forward(self, x, t):
            return self.focal(self.fc(x), t)

    net = track(Net())
    with torch.no_grad():
        net.fc.bias[1] = 60
    opt = torch.optim.SGD(net.parameters(), 0.1)
    loss = net(torch.randn(3, 2), torch.tensor([0, 1, 2]))
    loss.backward()
    opt.step()
    return loss, net.fc.weight
