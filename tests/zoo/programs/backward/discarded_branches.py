"""Gradients of branches that torch.where and masks throw away."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, alt, case, track


@case(
    "bce-log-clamp",
    "BCE by hand with log().clamp(min=-100): the clamp saves the loss, not the gradient",
    "",
    "where-trap",
    "nan",
    ["div", "mul"],
    node="LogBackward0",
    module="criterion",
    also=[alt("forward", "log")],
)
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


@case(
    "plogp-nan-to-num",
    "entropy (p * log p).nan_to_num(0): 0 * -inf is repaired forward, and made again backward",
    "",
    "where-trap",
    "nan",
    ["mul"],
    node="MulBackward0",
    module=None,
    also=[alt("forward", ["log", "mul"]), alt("backward", ["div"], "LogBackward0")],
)
def plogp_nan_to_num():
    w = torch.tensor([0.0, 0.25, 0.75], requires_grad=True)
    p = w / w.sum()
    plogp = p * torch.log(p)  # ORIGIN
    entropy = -plogp.nan_to_num(0.0).sum()
    entropy.backward()
    return entropy, w.grad


@case(
    "mish-by-hand",
    "x * tanh(log1p(exp(x))): exp overflows, tanh saturates, the forward is right",
    "",
    "where-trap",
    "nan",
    ["mul"],
    node="ExpBackward0",
    module="stem.act",
    also=[alt("forward", "exp")],
)
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


@case(
    "srgb-transfer-curve",
    "sRGB curve by torch.where: the power branch of a black pixel has an infinite slope",
    "",
    "where-trap",
    "nan",
    ["pow", "mul"],
    node="PowBackward0",
    module="tonemap",
)
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


@case(
    "offdiagonal-distances",
    "pairwise distances, diagonal removed by a boolean index after the square root",
    "",
    "where-trap",
    "nan",
    ["div", "mul"],
    node="SqrtBackward0",
    module=None,
)
def offdiagonal_distances():
    emb = track(nn.Linear(3, 2, bias=False))
    z = emb(torch.randn(4, 3))
    sq = (z[:, None] - z[None]).pow(2).sum(-1)
    dist = sq.sqrt()  # ORIGIN
    off = dist[~torch.eye(4, dtype=torch.bool)]
    loss = F.relu(1.0 - off).mean()
    loss.backward()
    return loss, emb.weight.grad


@case(
    "smape-masked-select",
    "SMAPE over the elements that are not NaN, selected after the division",
    "",
    "where-trap",
    "nan",
    ["div", "mul"],
    node="DivBackward0",
    module=None,
    also=[alt("forward", "div")],
)
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


@case(
    "reproject-behind-camera",
    "points on the camera plane project far outside; grid_sample's zero gradient meets 1/z^2",
    "",
    "zero-times-inf",
    "nan",
    ["div", "mul"],
    node="DivBackward0",
    module="project",
)
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


@case(
    "nerf-log-cumsum",
    "transmittance as exp(cumsum(log(1 - alpha))): an opaque sample is fine forward",
    "",
    "where-trap",
    "nan",
    ["div", "mul"],
    node="LogBackward0",
    module="composite",
    also=[alt("forward", "log")],
)
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


@case(
    "clamp-after-sqrt",
    "sqrt(x).maximum(0): on a tie maximum splits the gradient, half of it meets 1/0",
    "",
    "sqrt-grad",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module="gem",
)
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


@case(
    "clamp-min-after-norm",
    "std = sqrt(var).clamp(min=eps): the clamp comes one operation too late",
    "",
    "where-trap",
    "nan",
    ["div", "mul"],
    node="SqrtBackward0",
    module="stats",
)
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


@case(
    "softmax-dead-row-where",
    "attention rows without any key give NaN and are replaced by where: too late for softmax",
    "",
    "attention",
    "nan",
    ["_softmax"],
    module="layer.attn",
    also=[alt("backward", "_softmax_backward_data", "SoftmaxBackward0")],
    notes="the NaN of the forward is thrown away, and read again by the backward",
)
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


@case(
    "mha-padded-sample",
    "nn.MultiheadAttention on a batch with a fully padded sample, dropped afterwards by indexing",
    "",
    "attention",
    "nan",
    ["_softmax"],
    module="encoder.mha",
    also=[alt("backward", "_softmax_backward_data", "SoftmaxBackward0")],
)
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


@case(
    "ce-ignored-but-masked",
    "cross entropy ignores a position whose vocabulary is fully masked: loss right, gradient NaN",
    "",
    "attention",
    "nan",
    ["_log_softmax"],
    module=None,
    also=[alt("backward", "_log_softmax_backward_data", "LogSoftmaxBackward0")],
)
def ce_ignored_but_masked():
    table = torch.randn(3, 4, requires_grad=True)
    banned = torch.tensor([[False, True, False, False], [True, True, True, True], [False, False, False, True]])
    logits = table + torch.zeros(3, 4).masked_fill(banned, -INF)
    loss = F.cross_entropy(logits, torch.tensor([0, -100, 2]))  # ORIGIN
    loss.backward()
    return loss, table.grad


@case(
    "logcumsumexp-dead-prefix",
    "log-space prefix sums that begin with impossible states",
    "",
    "inf-minus-inf",
    "nan",
    ["log", "add", "sub", "mul", "exp"],
    node="LogcumsumexpBackward0",
    module=None,
    notes="the -inf are the zeros of the log semiring",
)
def logcumsumexp_dead_prefix():
    score = torch.zeros(4, requires_grad=True)
    start = torch.tensor([-INF, -INF, 0.0, 0.0])
    alpha = torch.logcumsumexp(score + start, 0)  # ORIGIN
    nll = -alpha[-1]
    nll.backward()
    return nll, score.grad


@case(
    "sdpa-half-backward",
    "scaled_dot_product_attention in half: query gradient overflows inside the fused backward",
    "",
    "attention",
    "inf",
    ["_scaled_dot_product_flash_attention_for_cpu_backward"],
    node="ScaledDotProductFlashAttentionForCpuBackward0",
    module="attn",
)
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
