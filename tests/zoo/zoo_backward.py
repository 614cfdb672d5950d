"""Bugs of the backward pass, written for torchnan. The framework and the conventions are those of zoo_open.py."""
import math
import os
import sys

from torch.utils.checkpoint import checkpoint
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import own_zoo
from zoo_open import CASES, HOOKS, INF, NAN, SPLIT, alt, applies, case, dirty, mark_step, run_threads, track

own_zoo.begin(__file__)

# CASES BEGIN
# =========================================================================== branches that are thrown away

@case("bce-log-clamp", "BCE by hand with log().clamp(min=-100): the clamp saves the loss, not the gradient",
      "", "where-trap", "nan", ["div", "mul"],
      node="LogBackward0", module="criterion", also=[alt("forward", "log")])
def bce_log_clamp():
    class ManualBCE(nn.Module):
        def forward(self, p, t):
            pos = torch.log(p).clamp(min=-100.0)  # ORIGIN
            neg = torch.log(1.0 - p + 1e-6).clamp(min=-100.0)
            return -(t * pos + (1 - t) * neg).mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.logit = nn.Parameter(torch.tensor([0.3, -120.0, 1.0]))
            self.criterion = ManualBCE()

        def forward(self, t):
            return self.criterion(torch.sigmoid(self.logit), t)

    net = track(Net())
    loss = net(torch.tensor([1.0, 1.0, 0.0]))
    loss.backward()
    return loss, net.logit.grad


@case("plogp-nan-to-num", "entropy (p * log p).nan_to_num(0): 0 * -inf is repaired forward, and made again backward",
      "", "where-trap", "nan", ["mul"], node="MulBackward0", module=None,
      also=[alt("forward", ["log", "mul"]), alt("backward", ["div"], "LogBackward0")])
def plogp_nan_to_num():
    w = torch.tensor([0.0, 0.25, 0.75], requires_grad=True)
    p = w / w.sum()
    plogp = p * torch.log(p)  # ORIGIN
    entropy = -plogp.nan_to_num(0.0).sum()
    entropy.backward()
    return entropy, w.grad


@case("mish-by-hand", "x * tanh(log1p(exp(x))): exp overflows, tanh saturates, the forward is right",
      "", "where-trap", "nan", ["mul"], node="ExpBackward0", module="stem.act",
      also=[alt("forward", "exp")])
def mish_by_hand():
    class Mish(nn.Module):
        def forward(self, x):
            return x * torch.tanh(torch.log1p(torch.exp(x)))  # ORIGIN

    class Stem(nn.Sequential):
        pass

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential()
            self.stem.add_module("fc", nn.Linear(2, 2))
            self.stem.add_module("act", Mish())

        def forward(self, x):
            return self.stem(x)

    net = Net()
    with torch.no_grad():
        net.stem.fc.weight.copy_(torch.tensor([[100.0, 0.0], [0.0, 1.0]]))
    track(net)
    y = net(torch.tensor([[1.5, -0.5]]))
    y.mean().backward()
    return y, net.stem.fc.weight.grad


@case("srgb-transfer-curve", "sRGB curve by torch.where: the power branch of a black pixel has an infinite slope",
      "", "where-trap", "nan", ["pow", "mul"], node="PowBackward0", module="tonemap")
def srgb_transfer_curve():
    class ToneMap(nn.Module):
        def forward(self, linear):
            low = 12.92 * linear
            high = 1.055 * torch.pow(linear, 1.0 / 2.4) - 0.055  # ORIGIN
            return torch.where(linear <= 0.0031308, low, high)

    class Scene(nn.Module):
        def __init__(self):
            super().__init__()
            self.albedo = nn.Parameter(torch.tensor([[0.0, 0.5, 0.8], [0.1, 0.7, 0.3]]))
            self.tonemap = ToneMap()

        def forward(self):
            return self.tonemap(self.albedo.clamp(0.0, 1.0))

    scene = track(Scene())
    image = scene()
    F.l1_loss(image, torch.full_like(image, 0.4)).backward()
    return image, scene.albedo.grad


@case("offdiagonal-distances", "pairwise distances, diagonal removed by a boolean index after the square root",
      "", "where-trap", "nan", ["div", "mul"], node="SqrtBackward0", module=None)
def offdiagonal_distances():
    emb = track(nn.Linear(3, 2, bias=False))
    z = emb(torch.randn(4, 3))
    sq = (z[:, None] - z[None]).pow(2).sum(-1)
    dist = sq.sqrt()  # ORIGIN
    off = dist[~torch.eye(4, dtype=torch.bool)]
    loss = F.relu(1.0 - off).mean()
    loss.backward()
    return loss, emb.weight.grad


@case("smape-masked-select", "SMAPE over the elements that are not NaN, selected after the division",
      "", "where-trap", "nan", ["div", "mul"], node="DivBackward0", module=None,
      also=[alt("forward", "div")])
def smape_masked_select():
    head = nn.Linear(2, 3)
    with torch.no_grad():
        head.weight[1] = 0.0
        head.bias[1] = 0.0
    y = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.0, 1.0]])
    pred = head(torch.randn(2, 2))
    num = (pred - y).abs()
    den = pred.abs() + y.abs()
    smape = num / den  # ORIGIN
    loss = torch.masked_select(smape, ~torch.isnan(smape)).mean()
    loss.backward()
    return loss, head.weight.grad


@case("reproject-behind-camera", "points on the camera plane project far outside; grid_sample's zero gradient meets 1/z^2",
      "", "zero-times-inf", "nan", ["div", "mul"], node="DivBackward0",
      module="project")
def reproject_behind_camera():
    class Project(nn.Module):
        def forward(self, xyz):
            return xyz[..., :2] / xyz[..., 2:]  # ORIGIN

    class Warp(nn.Module):
        def __init__(self):
            super().__init__()
            self.depth = nn.Parameter(torch.tensor([[1.0, 2.0], [1e-30, 1.5]]))
            self.project = Project()

        def forward(self, rays, image):
            pts = torch.cat([rays, self.depth[..., None]], -1)
            grid = self.project(pts)[None]
            return F.grid_sample(image, grid, align_corners=False, padding_mode="zeros")

    warp = track(Warp())
    out = warp(torch.full((2, 2, 2), 0.3), torch.rand(1, 1, 4, 4))
    out.square().mean().backward()
    return out, warp.depth.grad


@case("nerf-log-cumsum", "transmittance as exp(cumsum(log(1 - alpha))): an opaque sample is fine forward",
      "", "where-trap", "nan", ["div", "mul"], node="LogBackward0",
      module="composite", also=[alt("forward", "log")])
def nerf_log_cumsum():
    class Composite(nn.Module):
        def forward(self, alpha, rgb):
            log_t = torch.log(1.0 - alpha)  # ORIGIN
            trans = torch.exp(torch.cumsum(log_t, -1) - log_t.clamp(min=-50.0))
            return (alpha * trans * rgb).sum(-1)

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.sigma = nn.Parameter(torch.tensor([[0.1, 300.0, 0.5], [0.2, 0.3, 0.1]]))
            self.composite = Composite()

        def forward(self, rgb):
            return self.composite(1.0 - torch.exp(-self.sigma), rgb)

    field = track(Field())
    out = field(torch.rand(2, 3))
    out.sum().backward()
    return out, field.sigma.grad


@case("clamp-after-sqrt", "sqrt(x).maximum(0): on a tie maximum splits the gradient, half of it meets 1/0",
      "", "sqrt-grad", "inf", ["div", "mul"], node="SqrtBackward0", module="gem")
def clamp_after_sqrt():
    class Spread(nn.Module):
        def forward(self, x):
            m = x.mean(-1, keepdim=True)
            s = ((x - m) ** 2).mean(-1).sqrt()  # ORIGIN
            return torch.maximum(s, torch.zeros_like(s))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 4))
            self.gem = Spread()

        def forward(self):
            return self.gem(self.w * 0.5)

    net = track(Net())
    out = net()
    (out - 1.0).sum().backward()
    return out, net.w.grad


@case("clamp-min-after-norm", "std = sqrt(var).clamp(min=eps): the clamp comes one operation too late",
      "", "where-trap", "nan", ["div", "mul"], node="SqrtBackward0",
      module="stats")
def clamp_min_after_norm():
    class StatsPool(nn.Module):
        def forward(self, x):
            mean = x.mean(1)
            var = (x - mean[:, None]).pow(2).mean(1)
            std = var.sqrt().clamp(min=1e-5)  # ORIGIN
            return torch.cat([mean, std], -1)

    class XVector(nn.Module):
        def __init__(self):
            super().__init__()
            self.tdnn = nn.Linear(3, 2)
            self.stats = StatsPool()
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.stats(self.tdnn(x)))

    net = XVector()
    with torch.no_grad():
        net.tdnn.weight[0] = 0.0  # a dead unit is constant over time
    track(net)
    y = net(torch.randn(2, 5, 3))
    F.cross_entropy(y, torch.tensor([0, 1])).backward()
    return y, net.tdnn.weight.grad


@case("softmax-dead-row-where", "attention rows without any key give NaN and are replaced by where: too late for softmax",
      "", "attention", "nan", ["_softmax"], module="layer.attn",
      also=[alt("backward", "_softmax_backward_data", "SoftmaxBackward0")],
      notes="the NaN of the forward is thrown away, and read again by the backward")
def softmax_dead_row_where():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x, allowed):
            q, k, v = self.qkv(x).chunk(3, -1)
            s = q @ k.transpose(-1, -2) / 2.0 + torch.zeros(3, 3).masked_fill(~allowed, -INF)
            p = torch.softmax(s, -1)  # ORIGIN
            p = torch.where(allowed.any(-1, keepdim=True), p, torch.zeros_like(p))
            return p @ v

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x, m):
            return x + self.attn(x, m)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer()

        def forward(self, x, m):
            return self.layer(x, m)

    net = track(Net())
    m = torch.ones(3, 3).tril(-1).bool()  # strictly causal: the first row sees nothing
    y = net(torch.randn(2, 3, 4), m)
    y.sum().backward()
    return y, net.layer.attn.qkv.weight.grad


@case("mha-padded-sample", "nn.MultiheadAttention on a batch with a fully padded sample, dropped afterwards by indexing",
      "", "attention", "nan", ["_softmax"], module="encoder.mha",
      also=[alt("backward", "_softmax_backward_data", "SoftmaxBackward0")])
def mha_padded_sample():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.mha = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x, pad):
            out, _ = self.mha(x, x, x, key_padding_mask=pad)  # ORIGIN
            return out[~pad.all(1)]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

        def forward(self, x, pad):
            return self.encoder(x, pad).mean()

    net = track(Net())
    pad = torch.tensor([[False, False, True], [True, True, True]])
    loss = net(torch.randn(2, 3, 4), pad)
    loss.backward()
    return loss, net.encoder.mha.in_proj_weight.grad


@case("ce-ignored-but-masked", "cross entropy ignores a position whose vocabulary is fully masked: loss right, gradient NaN",
      "", "attention", "nan", ["_log_softmax"],
      module=None, also=[alt("backward", "_log_softmax_backward_data", "LogSoftmaxBackward0")])
def ce_ignored_but_masked():
    table = torch.randn(3, 4, requires_grad=True)
    banned = torch.tensor([[False, True, False, False], [True, True, True, True], [False, False, False, True]])
    logits = table + torch.zeros(3, 4).masked_fill(banned, -INF)
    loss = F.cross_entropy(logits, torch.tensor([0, -100, 2]))  # ORIGIN
    loss.backward()
    return loss, table.grad


@case("logcumsumexp-dead-prefix", "log-space prefix sums that begin with impossible states",
      "", "inf-minus-inf", "nan", ["log", "add", "sub", "mul", "exp"],
      node="LogcumsumexpBackward0", module=None, notes="the -inf are the zeros of the log semiring")
def logcumsumexp_dead_prefix():
    score = torch.zeros(4, requires_grad=True)
    start = torch.tensor([-INF, -INF, 0.0, 0.0])
    alpha = torch.logcumsumexp(score + start, 0)  # ORIGIN
    nll = -alpha[-1]
    nll.backward()
    return nll, score.grad


# =========================================================================== slopes at the edge of a domain

@case("minibatch-stddev", "ProGAN's minibatch standard deviation without eps, on a batch of copies",
      "", "sqrt-grad", "inf", ["div", "mul", "reciprocal"],
      node="SqrtBackward0", module="mbstd")
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


@case("poincare-same-point", "Poincare distance acosh(1 + 2 d) of two equal embeddings: acosh has no slope at 1",
      "", "inverse-trig", "inf", ["rsqrt", "mul", "div", "sqrt"], node="AcoshBackward0",
      module="ball")
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


@case("geodesic-exact-match", "rotation error acos((tr - 1) / 2) in float64 of a pose that is exactly right",
      "", "inverse-trig", "inf", ["rsqrt", "mul", "neg", "div"], node="AcosBackward0", module=None)
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


@case("phase-of-silence", "phase loss on a spectrum of near silence: angle's |z|^2 underflows",
      "", "complex", "nan", ["div", "mul", "where", "abs", "pow"], node="AngleBackward0",
      module="phase_loss")
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


@case("hypot-flat-image", "edge strength with torch.hypot: 0/0 where the image is flat",
      "", "sqrt-grad", "nan", ["div"], node="HypotBackward0", module=None)
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


@case("kl-undetached-target", "mutual learning: the target of kl_div is not detached and has a zero, xlogy gives 0/0",
      "", "zero-times-inf", "nan", ["div", "mul", "xlogy"], node="XlogyBackward0",
      module="kl")
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


@case("entr-hard-softmax", "max-entropy bonus with torch.special.entr on a saturated policy: slope of -p log p at 0",
      "", "log-zero", "inf", ["log", "neg", "sub", "add", "mul"],
      node="SpecialEntrBackward0", module=None)
def entr_hard_softmax():
    logits = torch.tensor([[0.0, -200.0, 1.0], [0.5, 0.2, 0.1]], requires_grad=True)
    probs = logits.softmax(-1)
    bonus = torch.special.entr(probs).sum(-1).mean()  # ORIGIN
    (-bonus).backward()
    return bonus, logits.grad


@case("evidential-subnormal-alpha", "Dirichlet evidence softplus(x) is subnormal: lgamma is 90, digamma -inf",
      "", "log-zero", "inf", ["digamma", "mul"],
      node="LgammaBackward0", module="prior")
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


@case("gaussian-nll-tiny-var", "heteroscedastic NLL: (y - mu)^2 / exp(s) is 1e24, its slope 1e50",
      "", "overflow", "inf", ["div", "mul", "neg"], node="DivBackward0", module="nll")
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


@case("learned-gamma-black", "trainable gamma, black pixel: x ** g with 0 < g < 1",
      "", "pow-grad", "inf", ["pow", "mul", "where"],
      node=["PowBackward1", "PowTensorTensorBackward0"], module=None,
      notes="the gradient of the exponent is masked, that of the base is not")
def learned_gamma_black():
    gamma = torch.nn.Parameter(torch.tensor([0.45, 1.2]))
    exposure = torch.nn.Parameter(torch.tensor(1.3))
    pixels = torch.tensor([[0.0, 0.0], [0.2, 0.9]])
    out = (pixels * exposure).pow(gamma)  # ORIGIN
    (out - 0.5).pow(2).sum().backward()
    return out, exposure.grad, gamma.grad


@case("rmsnorm-eps-1e-30", "nn.RMSNorm(eps=1e-30) over a padded row: rsqrt is 1e15, its cube inf",
      "", "normalisation", "nan", ["pow", "mul"], node="RsqrtBackward0",
      module="blocks.0.norm")
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


@case("layernorm-constant-rows", "nn.LayerNorm with a vanishing eps over constant rows",
      "", "normalisation", "nan", ["native_layer_norm_backward"],
      node="NativeLayerNormBackward0", module="head.0")
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


@case("groupnorm-functional-flat", "F.group_norm over flat channel groups with eps=1e-30, called from a plain function",
      "", "normalisation", "nan", ["native_group_norm_backward"],
      node="NativeGroupNormBackward0", module=None)
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


# =========================================================================== linear algebra

@case("precision-matrix", "inverse of a vanishing covariance is 1e20, its gradient 1e40",
      "", "linalg", "inf", ["mm", "matmul", "bmm", "neg"],
      node=["LinalgInvExBackward0", "LinalgInvBackward0"], module="gp.precision")
def precision_matrix():
    class Precision(nn.Module):
        def forward(self, cov):
            return torch.linalg.inv(cov)  # ORIGIN

    class Gp(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1e-20))
            self.precision = Precision()

        def forward(self, r):
            return r @ self.precision(torch.eye(3) * self.scale) @ r

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.gp = Gp()

        def forward(self, r):
            return self.gp(r)

    root = track(Root())
    out = root(torch.tensor([1.0, 2.0, 3.0]))
    out.backward()
    return out, root.gp.scale.grad


@case("procrustes-degenerate", "orthogonal Procrustes by SVD of a matrix with equal singular values",
      "", "linalg", "inf", ["div"], node=["LinalgSvdBackward0", "SvdHelperBackward0"], module=None)
def procrustes_degenerate():
    a = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]], requires_grad=True)
    u, s, vh = torch.linalg.svd(a)  # ORIGIN
    frame = u[:, :2]
    loss = (frame * torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).sum() + s.sum()
    loss.backward()
    return loss, a.grad


@case("qr-zero-column", "QR re-orthogonalisation of a basis with a dead column: R is singular",
      "", "linalg", "nan", ["linalg_solve_triangular", "matmul", "mm"],
      node="LinalgQrBackward0", module="ortho")
def qr_zero_column():
    class Ortho(nn.Module):
        def forward(self, w):
            q, _ = torch.linalg.qr(w)  # ORIGIN
            return q

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 2.0], [1.0, 0.0, 4.0]]))
            self.ortho = Ortho()

        def forward(self, x):
            return x @ self.ortho(self.w)

    net = track(Net())
    y = net(torch.tensor([[1.0, 2.0, 3.0]]))
    y.pow(2).sum().backward()
    return y, net.w.grad


@case("notears-matrix-exp", "NOTEARS acyclicity tr(exp(W*W)) with a grown multiplier: overflow in d(W*W)",
      "", "overflow", "inf", ["mul"], node="MulBackward0", module="acyclic")
def notears_matrix_exp():
    class Acyclic(nn.Module):
        def forward(self, w):
            sq = w * w  # ORIGIN
            return torch.linalg.matrix_exp(sq).diagonal().sum() - w.shape[0]

    class Notears(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.diag(torch.tensor([8.7, 0.2, 0.1])))
            self.acyclic = Acyclic()

        def forward(self, rho):
            return rho * self.acyclic(self.w)

    m = track(Notears())
    penalty = m(1e5)
    penalty.backward()
    return penalty, m.w.grad


@case("product-of-experts", "product over experts fits float32, the product of all others does not",
      "", "overflow", "inf", ["cumprod", "mul", "div", "prod", "cumsum"],
      node=["ProdBackward0", "ProdBackward1"], module=None)
def product_of_experts():
    ratio = torch.tensor([[1e-30, 1e20, 1e20], [0.5, 2.0, 1.0]], requires_grad=True)
    joint = ratio.prod(dim=1)  # ORIGIN
    joint.log().sum().backward()
    return joint, ratio.grad


# =========================================================================== half precision and other overflows

@case("loss-scale-without-scaler", "loss multiplied by 2**20 by hand, cast back to half on its way down",
      "", "overflow-half", "inf", ["_to_copy"], node="ToCopyBackward0", module=None, step=1)
def loss_scale_without_scaler():
    net = track(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).half())
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    x, y = torch.randn(8, 4).half(), torch.full((8, 2), 3.0)
    scale = 2.0 ** 20
    loss = None
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        out = net(x).float()  # ORIGIN
        loss = F.mse_loss(out, y)
        (loss * scale).backward()
        for p in net.parameters():
            p.grad.div_(scale)
        opt.step()
    return loss, net[0].weight.grad, net[0].weight


@case("half-backward-mm", "half-precision model: the gradient of a wide layer's input overflows in the matmul",
      "", "overflow-half", "inf", ["mm"], node="AddmmBackward0", module="up")
def half_backward_mm():
    class Ffn(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Linear(4, 2, bias=False)
            self.up = nn.Linear(2, 64)

        def forward(self, x):
            return self.up(torch.tanh(self.down(x)))  # ORIGIN

    net = Ffn().half()
    with torch.no_grad():
        net.up.weight.fill_(40.0)
        net.up.bias.fill_(-1.0)
    track(net)
    out = net(torch.zeros(1, 4).half())
    out.backward(torch.full_like(out, 60.0))
    return out, net.down.weight.grad


@case("half-bias-sum", "half-precision bias of a per-pixel head: its gradient is a sum over 2000 rows",
      "", "overflow-half", "inf", ["sum"], node="AddBackward0", module="head")
def half_bias_sum():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3, dtype=torch.float16))

        def forward(self, x):
            return x + self.bias  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = Head()

        def forward(self, x):
            return self.head(x)

    net = track(Net())
    y = net(torch.randn(2000, 3).half())
    (y.float().sum() * 60).backward()
    return y, net.head.bias.grad


@case("half-frequent-token", "half-precision embedding: the gradient row of the padding token sums 100 positions",
      "", "overflow-half", "inf", ["embedding_dense_backward"], node="EmbeddingBackward0",
      module="tok")
def half_frequent_token():
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(6, 4, dtype=torch.float16)

        def forward(self, ids):
            return self.tok(ids).float()  # ORIGIN

    lm = track(Lm())
    ids = torch.zeros(4, 30, dtype=torch.long)
    ids[:, :3] = torch.tensor([1, 2, 3])
    out = lm(ids)
    (out.sum() * 900).backward()
    return out, lm.tok.weight.grad


@case("half-embedding-bag", "F.embedding_bag(mode='sum') in half, every bag holds the same unknown word",
      "", "overflow-half", "inf", ["_embedding_bag_backward", "_embedding_bag_dense_backward"],
      node="EmbeddingBagBackward0", module=None)
def half_embedding_bag():
    table = torch.randn(5, 3).half().requires_grad_()
    bags = torch.zeros(64, 4, dtype=torch.long)
    vec = F.embedding_bag(bags, table, mode="sum")  # ORIGIN
    vec.mul(torch.tensor(500.0, dtype=torch.float16)).backward(torch.ones_like(vec))
    return vec, table.grad


@case("half-relative-bias", "relative position bias gathered by index: its gradient adds up all pairs in half",
      "", "overflow-half", "inf",
      ["index_put", "_index_put_impl_", "index_put_"], node="IndexBackward0", module="window")
def half_relative_bias():
    class Window(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(3, dtype=torch.float16))
            i = torch.arange(40)
            self.register_buffer("idx", ((i[:, None] - i[None]).sign() + 1).view(-1))

        def forward(self, scores):
            bias = self.table[self.idx]  # ORIGIN
            return scores + bias.view(40, 40)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.window = Window()

        def forward(self, s):
            return self.window(s)

    net = track(Net())
    out = net(torch.zeros(40, 40, dtype=torch.float16))
    (out.float() * 100).sum().backward()
    return out, net.window.table.grad


@case("half-conv-weight", "half-precision convolution: weight gradient summed over the image overflows",
      "", "overflow-half", "inf", ["convolution_backward"], node="ConvolutionBackward0",
      module="stem.0")
def half_conv_weight():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU())

        def forward(self, x):
            return self.stem(x)  # ORIGIN

    net = Net().half()
    with torch.no_grad():
        net.stem[0].weight.fill_(0.1)
    track(net)
    y = net(torch.full((1, 1, 20, 20), 20.0).half())
    y.backward(torch.full_like(y, 20.0))
    return y, net.stem[0].weight.grad


@case("half-bce", "nn.BCELoss in half: its 1e-12 underflows, a wrong confident prediction divides by 0",
      "", "overflow-half", "inf", ["binary_cross_entropy_backward"],
      node="BinaryCrossEntropyBackward0", module="criterion")
def half_bce():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.tensor([-20.0, 1.0, 20.0], dtype=torch.float16))
            self.criterion = nn.BCELoss()

        def forward(self, t):
            return self.criterion(torch.sigmoid(self.z), t)  # ORIGIN

    net = track(Net())
    loss = net(torch.tensor([1.0, 1.0, 0.0]).half())
    loss.backward()
    return loss, net.z.grad


@case("explicit-gradient-half", "backward(gradient=...) used as a loss scale on a half output",
      "", "overflow-half", "inf", ["mul"], node="MulBackward0", module=None)
def explicit_gradient_half():
    w = torch.randn(4).half().requires_grad_()
    x = torch.full((4,), 50.0).half()
    y = w * x  # ORIGIN
    y.backward(gradient=torch.full_like(y, 2.0 ** 12))
    return y, w.grad


@case("autocast-manual-scale", "float16 autocast with a constant loss scale and no GradScaler, gradients divided afterwards",
      "", "overflow-half", "inf", ["_to_copy"], node="ToCopyBackward0", module=None, step=2)
def autocast_manual_scale():
    net = track(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(8, 4)
    for k, scale in ((1, 2.0 ** 8), (2, 2.0 ** 18)):
        mark_step(k)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), torch.full((8, 2), 5.0))  # ORIGIN
        (loss * scale).backward()
        with torch.no_grad():
            for p in net.parameters():
                p.grad /= scale
        opt.step()
    return loss, net[0].weight.grad, net[0].weight


@case("scaler-unscale-then-plain-step", "scaler.unscale_() for clipping, but then optimizer.step() in place of scaler.step()",
      "", "overflow-half", "inf", ["_to_copy"], node="ToCopyBackward0", module=None,
      step=1, notes="the overflow is found by the scaler and applied all the same")
def scaler_unscale_then_plain_step():
    net = track(nn.Linear(4, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
    x = torch.randn(8, 4)
    mark_step(1)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = F.mse_loss(out.float(), torch.full((8, 2), 5.0))  # ORIGIN
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_value_(net.parameters(), 1e9)
    opt.step()
    mark_step(2)
    return loss, net(x), net.weight


@case("relu-rnn-explodes", "nn.RNN(relu) with a large recurrent weight: activations fit, the gradient of 45 steps does not",
      "", "overflow", "inf", ["mm"], node=["MmBackward0", "AddmmBackward0"], module="rnn")
def relu_rnn_explodes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(2, 2, nonlinearity="relu", bias=False)

        def forward(self, x):
            y, _ = self.rnn(x)  # ORIGIN
            return y[-1]

    net = Net()
    with torch.no_grad():
        net.rnn.weight_hh_l0.copy_(torch.eye(2) * 10)
        net.rnn.weight_ih_l0.copy_(torch.eye(2) * 1e-30)
    track(net)
    y = net(torch.ones(45, 1, 2))
    (y * 1e-5).sum().backward()
    return y, net.rnn.weight_ih_l0.grad


@case("tied-half-fan-in", "tied half-precision embedding: each of its two gradients fits, their sum does not",
      "", "fan-in", "inf", ["add", "add_"],
      node=["EmbeddingBackward0", "TBackward0", "MmBackward0", "torch::autograd::AccumulateGrad"], module="lm",
      notes="made by the engine where the two meet: either user of the weight is right")
def tied_half_fan_in():
    class TiedLm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((3, 2), 1.0, dtype=torch.float16))

        def forward(self, ids):
            h = F.embedding(ids, self.weight)  # ORIGIN
            return F.linear(h, self.weight)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lm = TiedLm()

        def forward(self, ids):
            return self.lm(ids)

    net = track(Net())
    y = net(torch.tensor([0]))
    y.backward(torch.tensor([[40000.0, 0.0, 0.0]]).half())
    return y, net.lm.weight.grad


@case("residual-half-fan-in", "both branches of a residual block send 40000 back; half cannot hold their sum",
      "", "fan-in", "inf", ["add", "add_"],
      node=["AddBackward0", "MulBackward0", "SigmoidBackward0", "SinBackward0"], module=None,
      notes="made by the engine where the two meet")
def residual_half_fan_in():
    x = torch.zeros(3).half().requires_grad_()
    h = torch.sin(x)  # ORIGIN
    y = h + h * torch.ones(3).half()  # ORIGIN
    y.backward(torch.full((3,), 40000.0).half())
    return y, x.grad


@case("microbatch-half-accumulate", "gradient accumulation over micro-batches straight into half-precision .grad",
      "", "fan-in", "inf", ["add_", "add"], node="torch::autograd::AccumulateGrad", module=None,
      step=1, notes="AccumulateGrad belongs to no forward operation: its backward() call or the use of the weight")
def microbatch_half_accumulate():
    w = torch.ones(3, dtype=torch.float16, requires_grad=True)
    opt = torch.optim.SGD([w], lr=1e-4)
    mark_step(1)
    total = 0.0
    for micro in range(3):
        loss = (w * torch.full((3,), 30000.0).half()).float().sum()  # ORIGIN
        loss.backward()  # ORIGIN
        total = total + loss.detach()
    opt.step()
    return total, w.grad, w


# =========================================================================== custom functions

@case("custom-setup-context", "autograd.Function with setup_context: backward divides by the saved input",
      "", "custom-function", "nan", ["div"], node="LogAbsBackward", module="gate")
def custom_setup_context():
    class LogAbs(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return torch.log(x.abs().clamp(min=1e-8))

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, = ctx.saved_tensors
            return (x.abs() > 1e-8) * g / x

    class Gate(nn.Module):
        def forward(self, x):
            y = x * 2
            y = LogAbs.apply(y)  # ORIGIN
            return y + 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor([0.0, 0.5, -2.0]))
            self.gate = Gate()

        def forward(self):
            return self.gate(self.x)

    net = track(Net())
    out = net()
    out.sum().backward()
    return out, net.x.grad


@case("gradient-reversal-normalised", "gradient reversal (forward is only a view) that normalises by the gradient's norm",
      "", "custom-function", "nan", ["div"], node="ReverseBackward", module="grl")
def gradient_reversal_normalised():
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, alpha):
            ctx.alpha = alpha
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -ctx.alpha * g / g.norm(), None

    class Grl(nn.Module):
        def forward(self, x):
            return Reverse.apply(x, 0.5)  # ORIGIN

    class Dann(nn.Module):
        def __init__(self):
            super().__init__()
            self.feat = nn.Linear(3, 2)
            self.grl = Grl()
            self.domain = nn.Linear(2, 1)

        def forward(self, x):
            f = self.feat(x)
            d = self.domain(self.grl(f))
            return F.relu(d)

    net = Dann()
    with torch.no_grad():
        net.domain.bias.fill_(-100.0)  # the discriminator is dead
    track(net)
    y = net(torch.randn(4, 3))
    y.sum().backward()
    return y, net.feat.weight.grad


@case("straight-through-scale", "quantiser with a straight-through estimator: LSQ step gradient divides by a zero scale",
      "", "custom-function", "nan", ["div"], node="FakeQuantBackward", module=None)
def straight_through_scale():
    class FakeQuant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, s):
            ctx.save_for_backward(w, s)
            return torch.round(w / s.clamp(min=1e-6)) * s

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            w, s = ctx.saved_tensors
            q = w / s
            gs = (g * (q.round() - q)).sum().view_as(s)
            return g * (q.abs() < 127), gs

    w = torch.tensor([0.0, 0.3], requires_grad=True)
    s = torch.tensor(0.0, requires_grad=True)
    q = FakeQuant.apply(w, s)  # ORIGIN
    out = (q - 1.0).pow(2).sum()
    out.backward()
    return out, w.grad, s.grad


@case("implicit-layer-inner-grad", "implicit layer: backward re-runs one step with gradients on and differentiates that",
      "", "custom-function", "inf", ["div", "mul"], node="SqrtBackward0", module=None,
      notes="the node of the inner graph; its forward line is in the custom backward")
def implicit_layer_inner_grad():
    class FixedPoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, theta):
            z = torch.zeros_like(theta)
            ctx.save_for_backward(theta, z)
            return z + theta * 0.0

        @staticmethod
        def backward(ctx, g):
            theta, z = ctx.saved_tensors
            with torch.enable_grad():
                t = theta.detach().requires_grad_()
                step = torch.sqrt(z * 0.5 + t)  # ORIGIN
                inner, = torch.autograd.grad(step, t, g)
            return inner

    theta = torch.tensor([0.0, 4.0], requires_grad=True)
    y = FixedPoint.apply(theta)
    (y + theta).sum().backward()
    return y, theta.grad


@case("half-compressed-activations", "saved_tensors_hooks keep activations in half: 1e-9 becomes 0, log's backward divides by it",
      "", "saved-tensors", "inf", ["div"], node="LogBackward0", module="body.log")
def half_compressed_activations():
    class Log(nn.Module):
        def forward(self, x):
            return torch.log(x)  # ORIGIN

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = Log()

        def forward(self, x):
            return self.log(x * 1.0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1e-9, 0.5]))
            self.body = Body()

        def forward(self):
            return self.body(self.w)

    def pack(t):
        return t.to(torch.float16)

    def unpack(t):
        return t.to(torch.float32)

    net = track(Net())
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = net()
    y.sum().backward()
    return y, net.w.grad


@case("saved-divisor-zeroed", "a scale is pruned to zero through .data between forward and backward",
      "", "mutation", "inf", ["div"], node="DivBackward0", module=None)
def saved_divisor_zeroed():
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    scale = torch.tensor([0.5, 0.01, 2.0])
    y = x / scale  # ORIGIN
    scale.data[scale < 0.1] = 0.0
    y.sum().backward()
    return y, x.grad


# =========================================================================== checkpointing

@case("checkpoint-reentrant-norm", "reentrant checkpoint around a block whose distance is 0: the recomputed graph gives inf",
      "", "checkpoint", "inf", ["div", "mul"], node="SqrtBackward0", module="enc.0")
def checkpoint_reentrant_norm():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            h = self.fc(x)
            d = (h - h.detach()).pow(2).sum(-1)
            return h + torch.sqrt(d)[:, None]  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.ModuleList([Block()])

        def forward(self, x):
            for block in self.enc:
                x = checkpoint(block, x, use_reentrant=True)
            return x

    net = track(Net())
    y = net(torch.randn(2, 3, requires_grad=True))
    y.sum().backward()
    return y, net.enc[0].fc.weight.grad


@case("checkpoint-noreentrant-rsqrt", "non-reentrant checkpoint of the second stage of a Sequential",
      "", "checkpoint", "nan", ["pow", "mul"], node="RsqrtBackward0",
      module="stages.1.norm")
def checkpoint_noreentrant_rsqrt():
    class Norm(nn.Module):
        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-30)  # ORIGIN

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3))
            self.norm = Norm()

        def forward(self, x):
            return self.norm(self.shift * x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList([nn.Linear(3, 3), Stage()])

        def forward(self, x):
            for stage in self.stages:
                x = checkpoint(stage, x, use_reentrant=False)
            return x

    net = track(Net())
    y = net(torch.randn(2, 3))
    (y * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    return y, net.stages[1].shift.grad


@case("checkpoint-sequential-lambda", "checkpoint_sequential over plain functions, reentrant, no module anywhere",
      "", "checkpoint", "nan", ["div", "mul"], node="SqrtBackward0", module=None)
def checkpoint_sequential_lambda():
    def lift(x):
        return x * 2.0

    def gate(x):
        return torch.where(x > 0, torch.sqrt(x), x)  # ORIGIN

    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    y = checkpoint(lambda t: gate(lift(t)), x, use_reentrant=True, preserve_rng_state=False)
    y.sum().backward()
    return y, x.grad


# =========================================================================== gradients of gradients

@case("wgan-gp-dead-critic", "WGAN-GP: sqrt of the squared gradient norm of a critic that is flat there",
      "", "double-backward", "inf", ["div", "mul"], node="SqrtBackward0", module=None, step=1)
def wgan_gp_dead_critic():
    critic = nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.0), nn.Linear(3, 1))
    with torch.no_grad():
        critic[0].bias.fill_(-10.0)
    track(critic)
    opt = torch.optim.Adam(critic.parameters())
    mark_step(1)
    x = torch.randn(4, 2, requires_grad=True)
    score = critic(x)
    g, = torch.autograd.grad(score.sum(), x, create_graph=True)
    norm = torch.sqrt((g ** 2).sum(1))  # ORIGIN
    loss = score.mean() + 10 * ((norm - 1) ** 2).mean()
    loss.backward()
    opt.step()
    return loss, critic[0].weight.grad, critic[0].weight


@case("force-matching-contact", "forces by autograd.grad inside the model; |x|**1.5 has no second derivative at 0",
      "", "double-backward", "nan", ["pow", "mul"], node="PowBackward0", module="ff",
      notes="the node was made by the first backward: the line is that of autograd.grad")
def force_matching_contact():
    class ForceField(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = nn.Parameter(torch.tensor(2.0))
            self.shift = nn.Parameter(torch.tensor([0.0, 0.0]))

        def forward(self, x):
            overlap = torch.abs(x + self.shift)
            energy = self.k * overlap.pow(1.5).sum()
            force, = torch.autograd.grad(energy, x, create_graph=True)  # ORIGIN
            return energy, -force

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.ff = ForceField()

        def forward(self, x):
            return self.ff(x)

    m = track(Model())
    x = torch.tensor([0.0, 0.7], requires_grad=True)
    _, force = m(x)
    loss = (force - torch.tensor([-1.0, -1.0])).pow(2).sum()
    loss.backward()
    return loss, force, m.ff.shift.grad


@case("score-matching-inner-grad", "denoising score matching: the score itself (autograd.grad in the loss) is inf",
      "", "double-backward", "inf", ["div", "mul"], node="SqrtBackward0",
      module="energy", step=1)
def score_matching_inner_grad():
    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            r = x.square().sum(-1).sqrt()  # ORIGIN
            return (self.scale * r).sum()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy = Energy()

        def forward(self, x):
            return self.energy(x)

    net = track(Net())

    def dsm(x):
        x = x.detach().requires_grad_()
        score = -torch.autograd.grad(net(x), x, create_graph=True)[0]
        return (score + x).pow(2).mean()

    mark_step(1)
    loss = dsm(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    loss.backward()
    return loss, net.energy.scale.grad


@case("maml-inner-adam", "MAML with a differentiable Adam inner step: sqrt of a second moment that is 0",
      "", "double-backward", "nan", ["div", "mul"], node="SqrtBackward0", module=None)
def maml_inner_adam():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0]])  # the second feature never fires
    inner = (x @ w).pow(2).mean()
    g, = torch.autograd.grad(inner, w, create_graph=True)
    m, v = 0.1 * g, 0.001 * g * g
    denom = v.sqrt() + 1e-8  # ORIGIN
    fast = torch.addcdiv(w, m, denom, value=-0.01)
    outer = (fast * torch.tensor([1.0, 1.0])).sum().pow(2)
    outer.backward()
    return outer, w.grad


@case("functional-hessian", "torch.autograd.functional.hessian of |x| ** 1.5: the first sweep is finite, the second is not",
      "", "double-backward", "nan", ["pow", "mul"], node="PowBackward0", module=None,
      notes="the node was made by the first sweep, inside hessian()")
def functional_hessian():
    def energy(x):
        return x.abs().pow(1.5).sum()

    x = torch.tensor([0.0, 1.0])
    h = torch.autograd.functional.hessian(energy, x)  # ORIGIN
    return h


# =========================================================================== hooks

@case("hook-normalise-gradient", "tensor hook that normalises the gradient of a dead activation",
      "", "hooks", "nan", ["div"], node="AddmmBackward0", module="enc")
def hook_normalise_gradient():
    class Enc(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 3))
            self.bias = nn.Parameter(torch.full((2,), -50.0))

        def forward(self, x):
            h = F.linear(x, self.weight, self.bias)  # ORIGIN
            if h.requires_grad:
                h.register_hook(lambda g: g / g.norm())  # ORIGIN
            return F.relu(h)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = Enc()

        def forward(self, x):
            return self.enc(x).sum()

    net = track(Net())
    loss = net(torch.randn(4, 3))
    loss.backward()
    return loss, net.enc.weight.grad


@case("module-backward-hook", "register_full_backward_hook rescales by the largest gradient, which is 0",
      "", "hooks", "nan", ["div"], node="BackwardHookFunctionBackward", module="fc")
def module_backward_hook():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Linear(2, 2)
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            h = self.emb(x)
            return F.relu(self.fc(h))  # ORIGIN

    def rescale(module, grad_in, grad_out):
        return (grad_in[0] / grad_in[0].abs().max(),)  # ORIGIN

    net = Net()
    with torch.no_grad():
        net.fc.bias.fill_(-100.0)
    net.fc.register_full_backward_hook(rescale)
    track(net)
    y = net(torch.randn(3, 2))
    y.sum().backward()
    return y, net.emb.weight.grad


@case("module-backward-pre-hook", "register_full_backward_pre_hook divides by the batch's gradient variance",
      "", "hooks", "nan", ["div"], node="BackwardHookFunctionBackward", module="head")
def module_backward_pre_hook():
    net = nn.Sequential()
    net.add_module("body", nn.Linear(2, 2))
    net.add_module("head", nn.Linear(2, 1))

    def whiten(module, grad_output):
        g, = grad_output
        return ((g - g.mean()) / g.std(),)  # ORIGIN

    net.head.register_full_backward_pre_hook(whiten)
    track(net)
    y = net(torch.randn(3, 2))  # ORIGIN
    y.mean().backward()
    return y, net.body.weight.grad


@case("post-accumulate-normalise", "register_post_accumulate_grad_hook divides .grad by its norm; a frozen branch has none",
      "", "hooks", "nan", ["div_", "div"], node="torch::autograd::AccumulateGrad",
      module=None)
def post_accumulate_normalise():
    a = torch.tensor([1.0, -2.0], requires_grad=True)
    b = torch.tensor([0.5, 0.5], requires_grad=True)

    def normalise(q):
        q.grad.div_(q.grad.norm())  # ORIGIN

    for p in (a, b):
        p.register_post_accumulate_grad_hook(normalise)
    out = (a * 3 + b * 0.0).sum()  # ORIGIN
    out.backward()
    return out, a.grad, b.grad


@case("leaf-hook-log-gradient", "parameter hook takes the log of gradient magnitudes and keeps the sign",
      "", "hooks", "inf", ["log"], node="torch::autograd::AccumulateGrad", module=None,
      step=2)
def leaf_hook_log_gradient():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    w.register_hook(lambda g: torch.log(g.abs()))  # ORIGIN
    opt = torch.optim.SGD([w], lr=0.1)
    for k, x in ((1, [1.0, 1.0]), (2, [0.0, 1.0])):
        mark_step(k)
        opt.zero_grad()
        loss = (w * torch.tensor(x)).sum()  # ORIGIN
        loss.backward()
        opt.step()
    return loss, w.grad, w


# =========================================================================== who runs backward, and when

@case("vmap-grad-per-sample", "per-sample gradients with vmap(grad): one pair of points coincides",
      "", "functorch", "inf", ["div", "mul"], node="SqrtBackward0", module=None)
def vmap_grad_per_sample():
    def dist(w, x, y):
        d = w * (x - y)
        return d.pow(2).sum().sqrt()  # ORIGIN

    w = torch.tensor([1.0, 2.0])
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    y = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    per_sample = torch.vmap(torch.func.grad(dist), in_dims=(None, 0, 0))(w, x, y)
    return per_sample


@case("func-grad-functional-call", "torch.func.grad over functional_call: loss module with log of a subnormal",
      "", "functorch", "inf", ["div", "mul", "reciprocal"], node="LogBackward0",
      module="nll")
def func_grad_functional_call():
    class Nll(nn.Module):
        def forward(self, p):
            return -torch.log(p).mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu = nn.Parameter(torch.tensor([0.0, 1.0]))
            self.nll = Nll()

        def forward(self, x):
            return self.nll(torch.exp(-0.5 * (x - self.mu) ** 2))

    net = track(Net())
    params = {k: v.detach() for k, v in net.named_parameters()}
    grads = torch.func.grad(lambda p, x: torch.func.functional_call(net, p, (x,)))(params, torch.tensor([13.9, 1.5]))
    new = {k: params[k] - 0.1 * grads[k] for k in params}
    return grads["mu"], new["mu"]


@case("jacrev-arm-singularity", "jacrev of inverse kinematics at full reach: asin(1)",
      "", "functorch", "inf", ["rsqrt", "mul", "div"], node="AsinBackward0", module=None)
def jacrev_arm_singularity():
    def ik(p):
        reach = p[0] / 2.0
        elbow = torch.asin(reach)  # ORIGIN
        return torch.stack([elbow, p[1] - elbow])

    jac = torch.func.jacrev(ik)(torch.tensor([2.0, 0.1]))
    return jac


@case("backward-in-worker-thread", "graph built by the main thread, backward() called in a worker (parameter server)",
      "", "threads", "inf", ["div", "mul"], node="SqrtBackward0", module="loss")
def backward_in_worker_thread():
    class Rmse(nn.Module):
        def forward(self, a, b):
            mse = F.mse_loss(a, b)
            return torch.sqrt(mse)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 2.0]))
            self.loss = Rmse()

        def forward(self, x):
            return self.loss(self.w * x, torch.tensor([1.0, 4.0]))

    net = track(Net())
    loss = net(torch.tensor([1.0, 2.0]))
    run_threads(loss.backward)
    return loss, net.w.grad


@case("graph-from-worker-thread", "each worker builds its part of the graph; the main thread runs backward over both",
      "", "threads", "nan", ["div", "mul"], node="SqrtBackward0", module=None)
def graph_from_worker_thread():
    w = torch.tensor([0.0, 4.0], requires_grad=True)

    def left():
        return torch.where(w > 0, w.sqrt(), w)  # ORIGIN

    def right():
        return (w + 1.0).sqrt()

    a, b = run_threads(left, right)
    (a + b).sum().backward()
    return a, b, w.grad


@case("second-backward-retained", "retain_graph: the second loss on the same graph reaches the root of a zero",
      "", "retain-graph", "inf", ["div", "mul"], node="SqrtBackward0", module="trunk",
      step=2)
def second_backward_retained():
    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x):
            h = self.w * x
            return h, (h - torch.tensor([1.0, 2.0])).pow(2).sum().sqrt()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = Trunk()

        def forward(self, x):
            return self.trunk(x)

    net = track(Net())
    h, rmse = net(torch.ones(2))
    mark_step(1)
    h.mean().backward(retain_graph=True)
    first = net.trunk.w.grad.clone()
    mark_step(2)
    rmse.backward()
    return first, net.trunk.w.grad


@case("inplace-chain", "everything in place: sub_, pow_, sqrt_; the root of a zero",
      "", "sqrt-grad", "inf", ["div", "mul"], node="SqrtBackward0", module="rms")
def inplace_chain():
    class Rms(nn.Module):
        def forward(self, x, y):
            d = x.sub(y)
            d.pow_(2)
            s = d.sum(-1)
            s.sqrt_()  # ORIGIN
            return s

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.rms = Rms()

        def forward(self, x):
            h = self.fc(x)
            return self.rms(h, h.detach())

    net = track(Net())
    out = net(torch.randn(3, 2))
    out.sum().backward()
    return out, net.fc.weight.grad


@case("sparse-embedding-norm", "sparse embedding gradients: distance between a word and itself",
      "", "sqrt-grad", "inf", ["div", "mul"], node="SqrtBackward0", module="metric",
      step=1)
def sparse_embedding_norm():
    class Metric(nn.Module):
        def forward(self, a, b):
            return (a - b).pow(2).sum(-1).sqrt()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5, 3, sparse=True)
            self.metric = Metric()

        def forward(self, i, j):
            return self.metric(self.emb(i), self.emb(j))

    net = track(Net())
    opt = torch.optim.SparseAdam(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.tensor([0, 1]), torch.tensor([0, 3])).sum()
    loss.backward()
    opt.step()
    return loss, net.emb.weight


@case("float-power-double", "torch.float_power goes through float64 and back: infinite slope at 0",
      "", "pow-grad", "inf", ["pow", "mul"], node="PowBackward0", module=None)
def float_power_double():
    mag = torch.tensor([[0.0, 0.5], [0.2, 0.9]], requires_grad=True)
    compressed = torch.float_power(mag, 0.3)  # ORIGIN
    loss = F.mse_loss(compressed, torch.full((2, 2), 0.5, dtype=torch.float64))
    loss.backward()
    return loss, mag.grad


@case("meta-addcdiv", "torch.addcdiv with a vanishing divisor: quotient 1e25, slope 1e50",
      "", "overflow", "inf", ["div", "mul", "neg"], node="AddcdivBackward0",
      module="cell")
def meta_addcdiv():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.v = nn.Parameter(torch.tensor([1e-25, 0.5]))

        def forward(self, p, m):
            return torch.addcdiv(p, m, self.v, value=-0.1)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Cell()

        def forward(self, p, m):
            return self.cell(p, m)

    net = track(Net())
    out = net(torch.ones(2), torch.ones(2))
    out.sum().backward()
    return out, net.cell.v.grad


# =========================================================================== clean: repaired inside PyTorch's own formulas

@case("clean-masked-formulas", "backward formulas that make NaN and mask it: std, norm, dist, cumprod, renorm, sinc, x ** 0",
      "", "clean", "clean")
def clean_masked_formulas():
    x = torch.zeros(2, 3, requires_grad=True)
    tiny = torch.tensor([1e-25, 1.0], requires_grad=True)
    e = torch.tensor([0.0], requires_grad=True)
    total = (x.std() + torch.dist(x, torch.zeros(2, 3)) + x.norm(p=2, dim=1).sum() + x.cumprod(1).sum()
             + torch.renorm(x, 2, 0, 1.0).sum() + torch.sinc(tiny).sum() + x[0].pow(e).sum() + tiny.norm(p=3)
             + F.lp_pool1d(x[None], 2, 3).sum() + F.normalize(x, eps=1e-30).sum())
    total.backward()
    return total, x.grad, tiny.grad, e.grad


@case("clean-masked-fill-kills", "the NaN gradient of a dead attention row ends in the masked_fill before the softmax",
      "", "clean", "clean")
def clean_masked_fill_kills():
    lin = track(nn.Linear(4, 12))
    q, k, v = lin(torch.randn(2, 3, 4)).chunk(3, -1)
    allowed = torch.ones(3, 3).tril(-1).bool()
    p = torch.softmax((q @ k.transpose(1, 2)).masked_fill(~allowed, -INF), -1)
    y = torch.where(allowed.any(-1, keepdim=True), p, torch.zeros_like(p)) @ v
    opt = torch.optim.SGD(lin.parameters(), lr=0.1)
    y.sum().backward()
    opt.step()
    return y, lin.weight.grad, lin.weight


@case("clean-hook-cleans", "tensor hook replaces the NaN gradient of sqrt at 0 by 0",
      "", "clean", "clean")
def clean_hook_cleans():
    net = track(nn.Linear(2, 2))
    h = net(torch.randn(3, 2))
    d = (h - h.detach()).pow(2)
    d.register_hook(lambda g: torch.nan_to_num(g, 0.0, 0.0, 0.0))
    s = d.sqrt().sum()
    s.backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    return s, net.weight.grad, net.weight


@case("clean-unused-input-grad", "autograd.grad towards two inputs; the NaN one is thrown away by the program",
      "", "clean", "clean")
def clean_unused_input_grad():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    y = (x.sqrt() * w).sum()
    _, gw = torch.autograd.grad(y, [x, w])
    del _
    with torch.no_grad():
        w -= 0.1 * gw
    return y, gw, w


# =========================================================================== more of those that were hard

@case("scale-gradient-identity", "fairseq's GradMultiply (forward hands its input on), scaling by 1 / number of live experts",
      "", "custom-function", "nan", ["mul", "div"], node="GradMultiplyBackward",
      module="moe.balance")
def scale_gradient_identity():
    class GradMultiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, live):
            ctx.live = live
            return x.view(x.shape)

        @staticmethod
        def backward(ctx, g):
            return g / ctx.live, None

    class Balance(nn.Module):
        def forward(self, x, live):
            return GradMultiply.apply(x, live)  # ORIGIN

    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.expert = nn.Linear(2, 2)
            self.balance = Balance()

        def forward(self, x, route):
            live = route.sum()
            h = self.balance(self.expert(x), live)
            return h * route[:, None]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.moe = Moe()

        def forward(self, x, route):
            return self.moe(x, route).sum()

    net = track(Net())
    loss = net(torch.randn(3, 2), torch.zeros(3))
    loss.backward()
    return loss, net.moe.expert.weight.grad


@case("reversal-last-in-model", "an identity function with a bad backward is the last thing the model does",
      "", "custom-function", "nan", ["div"], node="UnitGradBackward", module="")
def reversal_last_in_model():
    class UnitGrad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return g / g.norm()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return UnitGrad.apply(self.fc(x))  # ORIGIN

    net = track(Net())
    y = net(torch.randn(3, 2))
    weight = torch.zeros(3, 2)
    (y * weight).sum().backward()
    return y, net.fc.weight.grad


@case("reversible-block", "RevNet: backward calls the sub-module again with gradients on and runs its graph backward",
      "", "custom-function", "inf", ["div", "mul"], node="SqrtBackward0",
      module="rev.f", notes="the inner graph is made and run inside a custom backward, outside every forward call")
def reversible_block():
    class F1(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 1.0]))

        def forward(self, x):
            return (self.w * x).square().sum(-1, keepdim=True).sqrt()  # ORIGIN

    class Run(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, f):
            ctx.f = f
            ctx.save_for_backward(x)
            return x + f(x)

        @staticmethod
        def backward(ctx, g):
            x, = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = x + ctx.f(x)
            torch.autograd.backward(y, g)
            return x.grad, None

    class Rev(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = F1()

        def forward(self, x):
            return Run.apply(x, self.f)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rev = Rev()

        def forward(self, x):
            return self.rev(x)

    net = track(Net())
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    y = net(x)
    y.sum().backward()
    return y, net.rev.f.w.grad


@case("library-custom-op", "torch.library.custom_op with register_autograd: its backward divides by the saved result",
      "", "custom-function", "nan", ["div"],
      node="GeneratedBackwardFor_zoob_root_defaultBackward", module="act")
def library_custom_op():
    @torch.library.custom_op("zoob::root", mutates_args=())
    def root(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0.0).sqrt()

    def setup(ctx, inputs, output):
        ctx.save_for_backward(output)

    def backward(ctx, g):
        y, = ctx.saved_tensors
        return (y > 0) * g / (2 * y)

    root.register_autograd(backward, setup_context=setup)

    class Act(nn.Module):
        def forward(self, x):
            x = x - 1.0
            return root(x)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor([1.0, 3.0]))
            self.act = Act()

        def forward(self):
            return self.act(self.x)

    net = track(Net())
    y = net()
    y.sum().backward()
    return y, net.x.grad


@case("custom-inplace-on-grad", "custom backward that normalises the incoming gradient in place",
      "", "custom-function", "nan", ["div_"], node="ProjectBackward", module=None)
def custom_inplace_on_grad():
    class Project(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            g = g.clone()
            g.div_(g.sum(-1, keepdim=True))
            return g

    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = Project.apply(w)  # ORIGIN
    z = (y * torch.tensor([[1.0, 1.0], [0.0, 0.0]])).sum()
    z.backward()
    return z, w.grad


@case("node-prehook", "a hook on the node itself (grad_fn.register_prehook) rescales by the mean gradient",
      "", "hooks", "nan", ["div"], node="TanhBackward0", module=None)
def node_prehook():
    w = torch.tensor([0.5, -0.5], requires_grad=True)
    h = torch.tanh(w)  # ORIGIN

    def rescale(grads):
        return tuple(g / g.mean() for g in grads)  # ORIGIN

    h.grad_fn.register_prehook(rescale)
    out = (h * torch.tensor([1.0, -1.0])).sum() * 0.0
    out.backward()
    return out, w.grad


@case("batched-jacobian", "jacobian(vectorize=True): the backward runs under vmap",
      "", "functorch", "nan", ["div", "mul"], node="SqrtBackward0", module=None)
def batched_jacobian():
    def polar(v):
        r = (v * v).sum().sqrt()  # ORIGIN
        return torch.stack([r, v[0] * 2])

    jac = torch.autograd.functional.jacobian(polar, torch.zeros(2), vectorize=True)
    return jac


@case("sdpa-half-backward", "scaled_dot_product_attention in half: query gradient overflows inside the fused backward",
      "", "attention", "inf",
      ["_scaled_dot_product_flash_attention_for_cpu_backward"],
      node="ScaledDotProductFlashAttentionForCpuBackward0", module="attn")
def sdpa_half_backward():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.zeros(1, 1, 3, 4, dtype=torch.float16))

        def forward(self, k, v):
            return F.scaled_dot_product_attention(self.q, k, v)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, k, v):
            return self.attn(k, v)

    net = track(Net())
    sign = torch.tensor([1.0, -1.0, 1.0])[:, None]
    k, v = (sign * 20).expand(1, 1, 3, 4).half(), (sign * 150).expand(1, 1, 3, 4).half()
    y = net(k, v)
    y.backward(torch.full_like(y, 100.0))
    return y, net.attn.q.grad


@case("mvn-vanishing-covariance", "MultivariateNormal(covariance_matrix=1e-30 I): the Cholesky factor's gradient overflows",
      "", "linalg", "inf", ["linalg_solve_triangular", "mm", "matmul"],
      node="LinalgCholeskyExBackward0", module="posterior")
def mvn_vanishing_covariance():
    class Posterior(nn.Module):
        def __init__(self):
            super().__init__()
            self.cov = nn.Parameter(torch.eye(2) * 1e-30)

        def forward(self, x):
            d = torch.distributions.MultivariateNormal(torch.zeros(2), covariance_matrix=self.cov)  # ORIGIN
            return -d.log_prob(x)

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.posterior = Posterior()

        def forward(self, x):
            return self.posterior(x)

    vae = track(Vae())
    loss = vae(torch.tensor([1e-10, 0.0]))
    loss.backward()
    return loss, vae.posterior.cov.grad


@case("checkpoint-reentrant-nested-module", "reentrant checkpoint of a bound method two levels down, whole training step",
      "", "checkpoint", "nan", ["div", "mul"], node="DivBackward0",
      module="encoder.layers.1.pool", step=2, also=[alt("forward", "div")])
def checkpoint_reentrant_nested_module():
    class Pool(nn.Module):
        def forward(self, x, mask):
            mean = (x * mask).sum(1) / mask.sum(1)  # ORIGIN
            return torch.where(mask.sum(1) > 0, mean, torch.zeros_like(mean))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.pool = Pool()

        def forward(self, x, mask):
            h = self.fc(x)
            return h + self.pool(h, mask)[:, None]

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x, mask):
            x = self.layers[0](x, torch.ones_like(mask))
            return checkpoint(self.layers[1].forward, x, mask, use_reentrant=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

        def forward(self, x, mask):
            return self.encoder(x, mask)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loss = None
    for k in (1, 2):
        mark_step(k)
        mask = torch.ones(2, 3, 1)
        if k == 2:
            mask[1] = 0.0
        opt.zero_grad()
        loss = net(torch.randn(2, 3, 2), mask).pow(2).mean()
        loss.backward()
        opt.step()
    return loss, net.encoder.layers[1].fc.weight.grad, net.encoder.layers[0].fc.weight


@case("scaler-never-recovers", "a true 0/0 under GradScaler: every step is skipped, the scale only falls, nothing is learnt",
      "", "scaler", "nan", ["div", "mul"], node="SqrtBackward0", module="dist", step=1,
      debatable="skipped steps of a scaler are silent by design; here no scale would ever do")
def scaler_never_recovers():
    class Dist(nn.Module):
        def forward(self, a, b):
            d = (a - b).pow(2).sum(-1)
            return torch.where(d > 0, d.sqrt(), d)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.dist = Dist()

        def forward(self, a, b):
            return self.dist(self.fc(a), self.fc(b)).mean()

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    a = torch.randn(3, 2)
    for k in (1, 2, 3, 4):
        mark_step(k)
        opt.zero_grad()
        loss = net(a, a.roll(1, 0) * torch.tensor([[0.0], [1.0], [1.0]]) + a * torch.tensor([[1.0], [0.0], [0.0]]))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    return loss, net.fc.weight.grad


@case("scaler-clip-then-manual-sgd", "scaler.unscale_(), then a hand-written update that reads .grad",
      "", "overflow-half", "inf", ["_to_copy"], node="ToCopyBackward0", module=None,
      step=1)
def scaler_clip_then_manual_sgd():
    net = track(nn.Linear(4, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
    mark_step(1)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(torch.randn(8, 4))
    loss = F.mse_loss(out.float(), torch.full((8, 2), 5.0))  # ORIGIN
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.01 * p.grad
    return loss, net.weight


@case("user-pack-hook-int8", "activation quantiser as saved_tensors_hooks: a constant row has scale 0, dequantised 0 divides",
      "", "saved-tensors", "inf", ["div"], node="DivBackward0", module=None)
def user_pack_hook_int8():
    def pack(t):
        if t.dtype != torch.float32:
            return t
        s = t.abs().max() / 127.0
        return (t / s).round().to(torch.int8), s

    def unpack(p):
        return p[0].float() * p[1] if isinstance(p, tuple) else p

    num = torch.tensor([1.0, 2.0], requires_grad=True)
    den = torch.tensor([1e-3, 50.0], requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        ratio = num / den  # ORIGIN
        loss = ratio.sum()
    loss.backward()
    return loss, num.grad


@case("clean-skip-by-norm", "the loop looks at the gradient norm and skips the step when it is not finite",
      "", "clean", "clean")
def clean_skip_by_norm():
    net = track(nn.Linear(2, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = None
    for k in (1, 2):
        mark_step(k)
        h = net(torch.randn(3, 2))
        target = h.detach() if k == 1 else torch.zeros(3, 2)
        loss = (h - target).pow(2).sum().sqrt()
        opt.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if torch.isfinite(norm):
            opt.step()
    return loss, net.weight


@case("clean-scaler-unscale-skip", "scaler.unscale_() and clipping before scaler.step(): the overflow is skipped as it should",
      "", "clean", "clean")
def clean_scaler_unscale_skip():
    net = track(nn.Linear(4, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
    x = torch.randn(8, 4)
    for k in range(1, 14):
        mark_step(k)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), torch.full((8, 2), 5.0))
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    return loss, net.weight


# CASES END

own_zoo.end(__name__)
