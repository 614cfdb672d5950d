"""Bugs of the forward pass, written for torchnan. The framework and the conventions are those of zoo_open.py."""
import math
import os
import sys

import torch
import torch.distributions as D
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import own_zoo
from zoo_open import CASES, HOOKS, INF, NAN, SPLIT, alt, applies, case, dirty, mark_step, run_threads, track

own_zoo.begin(__file__)

# CASES BEGIN
# =========================================================================== domain errors


@case("poincare-log-boundary", "log map of the Poincare ball: the clamp at 1 - 1e-8 is 1.0 in float32, log(1 - 1)",
      "", "log-zero", "inf", "log", module="encoder.manifold")
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
            return y / norm / self.c ** 0.5 * self.artanh(self.c ** 0.5 * norm)

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


@case("lorentz-acosh-self-distance", "distance of a point to itself on the hyperboloid: -<x,x> rounds below 1",
      "", "inverse-trig", "nan", "acosh",
      module="manifolds.1")
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


@case("slerp-merge-identical", "spherical merge of two checkpoints: the dot product of a frozen weight with itself is 1 + 2e-7",
      "", "inverse-trig", "nan", ["acos", "arccos"], module=None)
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


@case("bicubic-overshoot-gamma", "gamma correction x ** (1/2.2) of a bicubically enlarged image that overshoots below 0",
      "", "pow-domain", "nan", "pow", module="post.gamma")
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


@case("poisson-nll-negative-rate", "PoissonNLLLoss(log_input=False) fed with a raw linear output",
      "", "log-negative", "nan", "log", module="criterion", step=1)
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


@case("normal-icdf-saturated", "Gaussian copula: the CDF of an outlier is 1.0 in float32, its quantile is infinite",
      "", "inverse-trig", "inf", "erfinv", module=None)
def normal_icdf_saturated():
    flow = track(nn.Linear(2, 2))
    x = torch.tensor([[0.3, -1.0], [12.0, 0.4], [1.0, 2.0]])
    base = D.Normal(torch.zeros(2), torch.ones(2))
    u = base.cdf(x)
    z = base.icdf(u)  # ORIGIN
    corr = z.t() @ z / len(z)
    return flow(corr)


@case("gumbel-uniform-one", "gumbel noise -log(-log(u)) of a uniform sample that is exactly 1 after rounding to half",
      "", "log-zero", "inf", "log", module="quantizer.sampler")
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


@case("quaternion-pitch-rounded", "Euler pitch of quaternions logged with four decimals: 2(wy - zx) is 1.0003, asin",
      "", "inverse-trig", "nan", ["asin", "arcsin"], module=None)
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


@case("focal-bf16-autocast", "focal loss under bfloat16 autocast: 1 - 1e-6 is 1, log1p(-1) times a zero target",
      "", "eps-underflow", "inf", "log1p", module="focal")
def focal_bf16_autocast():
    class Focal(nn.Module):
        def forward(self, logits, y):
            p = torch.sigmoid(logits).clamp(1e-6, 1.0 - 1e-6)
            pos = -y * p.log() * (1 - p) ** 2
            neg = -(1 - y) * torch.log1p(-p) * p ** 2  # ORIGIN
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


# =========================================================================== divisions by zero


@case("hard-negatives-none", "online hard example mining: the mean over an empty selection of negatives",
      "", "zero-count", "nan", "mean", module="mining")
def hard_negatives_none():
    class Mining(nn.Module):
        def __init__(self, margin):
            super().__init__()
            self.margin = margin

        def forward(self, d_pos, d_neg):
            hinge = F.relu(d_pos - d_neg + self.margin)
            hard = hinge[hinge > 0]
            return hard.mean()  # ORIGIN

    class Triplet(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(3, 4)
            self.mining = Mining(0.01)

        def forward(self, a, p, n):
            a, p, n = self.enc(a), self.enc(p), self.enc(n)
            return self.mining((a - p).pow(2).sum(1), (a - n).pow(2).sum(1))

    model = track(Triplet())
    a = torch.randn(4, 3)
    loss = model(a, a, a + 10)
    loss.backward()
    return loss, model.enc.weight.grad


@case("ppo-advantage-single", "PPO normalises the advantages of a last minibatch of one: std of one element",
      "", "degrees-of-freedom", "nan", "std", module=None, step=3)
def ppo_advantage_single():
    policy = track(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    obs, act, adv_all = torch.randn(5, 4), torch.randint(0, 2, (5,)), torch.randn(5)
    k = 0
    for idx in torch.arange(5).split(2):
        k += 1
        mark_step(k)
        advantages = adv_all[idx]
        mean = advantages.mean()
        std = advantages.std()  # ORIGIN
        advantages = (advantages - mean) / (std + 1e-8)
        logp = F.log_softmax(policy(obs[idx]), -1).gather(1, act[idx, None]).squeeze(1)
        loss = -(logp * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
    return loss, policy[0].weight


@case("corrcoef-constant-row", "torch.corrcoef of features with a constant channel",
      "", "zero-division", "nan", ["div", "div_", "true_divide"], module="decor")
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


@case("r2-constant-target", "R2 score against a constant target: residual over a zero total sum of squares",
      "", "zero-division", "inf", "div", module="metrics.r2")
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


@case("miou-absent-class", "mean IoU over classes, one of which occurs neither in prediction nor in target",
      "", "zero-count", "nan", ["div", "true_divide"], module=None)
def miou_absent_class():
    net = track(nn.Conv2d(3, 4, 1))
    with torch.no_grad():
        net.bias[3] = -1e3
        pred = net(torch.randn(2, 3, 5, 5)).argmax(1)
        gt = torch.randint(0, 3, (2, 5, 5))
        hist = torch.bincount((gt * 4 + pred).flatten(), minlength=16).view(4, 4)
        inter = hist.diagonal()
        union = hist.sum(0) + hist.sum(1) - inter
        iou = inter / union  # ORIGIN
        miou = iou.mean()
    print("mIoU %.3f" % miou.item())
    return miou


@case("normalize-half-zero-row", "F.normalize in half precision: its eps of 1e-12 is 0, a padded row is 0/0",
      "", "eps-underflow", "nan", "div", module="retriever.pool")
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


@case("groupnorm-eps-zero", "GroupNorm(eps=0) on a feature map a ReLU has switched off",
      "", "zero-division", "nan", "native_group_norm", module="blocks.1.2")
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


@case("rmsnorm-eps-zero-pad", "nn.RMSNorm(eps=0) on the zero embedding of a padding token",
      "", "zero-division", "inf", ["rsqrt", "_fused_rms_norm", "rms_norm"],
      module="layers.0.norm1")
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


@case("weight-norm-zero-filter", "weight normalisation of a zero-initialised output convolution: v / ||v|| is 0/0",
      "", "zero-division", "nan",
      ["_weight_norm_interface", "_weight_norm", "div"], module="end.parametrizations.weight.0")
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


@case("scatter-mean-empty-segment", "mean pooling by index_add_ and an in-place division by the counts; a graph has no nodes",
      "", "zero-count", "nan", ["div", "div_"], module="readout")
def scatter_mean_empty_segment():
    class Readout(nn.Module):
        def forward(self, x, batch, n):
            out = x.new_zeros(n, x.size(1)).index_add_(0, batch, x)
            cnt = x.new_zeros(n).index_add_(0, batch, torch.ones_like(batch, dtype=x.dtype))
            out.div_(cnt.unsqueeze(1))  # ORIGIN
            return out

    class Gnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 3)
            self.readout = Readout()
            self.out = nn.Linear(3, 1)

        def forward(self, x, batch, n):
            return self.out(self.readout(self.lin(x).relu(), batch, n))

    gnn = track(Gnn())
    y = gnn(torch.randn(5, 2), torch.tensor([0, 0, 2, 2, 2]), 3)
    y.sum().backward()
    return y, gnn.lin.weight.grad


@case("ce-all-classes-weight-zero", "class-weighted cross entropy, the batch holds only the class whose weight is 0",
      "", "zero-count", "nan", ["nll_loss_forward", "nll_loss2d_forward"], module="",
      step=2)
def ce_all_classes_weight_zero():
    class Seg(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 1)
            self.register_buffer("w", torch.tensor([0.0, 1.0, 4.0]))

        def forward(self, x, y):
            out = self.conv(x)
            return F.cross_entropy(out, y, weight=self.w)  # ORIGIN

    seg = track(Seg())
    opt = torch.optim.SGD(seg.parameters(), lr=0.1)
    for k, y in enumerate([torch.randint(0, 3, (1, 4, 4)), torch.zeros(1, 4, 4, dtype=torch.long)], 1):
        mark_step(k)
        opt.zero_grad()
        loss = seg(torch.randn(1, 2, 4, 4), y)
        loss.backward()
        opt.step()
    return loss, seg.conv.weight


@case("inverse-frequency-weights", "class weights 1 / count with a class that never occurs: inf, and inf / inf in the loss",
      "", "zero-division", "inf",
      ["reciprocal", "div", "mul"], module=None)
def inverse_frequency_weights():
    labels = torch.tensor([0, 0, 1, 3, 3, 1])
    counts = torch.bincount(labels, minlength=4)
    weights = 1.0 / counts  # ORIGIN
    weights = weights / weights.sum() * len(counts)
    clf = track(nn.Linear(3, 4))
    loss = nn.CrossEntropyLoss(weight=weights)(clf(torch.randn(6, 3)), labels)
    loss.backward()
    return loss, clf.weight.grad


@case("sinkhorn-kernel-underflow", "entropic transport with a small regulariser: exp(-C/reg) underflows and u = a / 0",
      "", "zero-division", "inf", "div", module="matcher.ot")
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


@case("gradcam-flat-map", "Grad-CAM: the map is all 0 after its ReLU, in-place min-max normalisation is 0/0",
      "", "zero-division", "nan", ["div", "div_"], module=None)
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


@case("raft-width-one", "optical flow on a thumbnail: the finest correlation level is one pixel wide, 2x/(W-1)",
      "", "zero-division", "nan", "div", module="corr_fn")
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
                out.append(bilinear_sampler(lvl, coords / 2 ** i))
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


@case("uncertainty-list-stack", "per-task losses collected in a list; one task has no labelled sample in the batch",
      "", "zero-count", "nan", "div", module="tasks.depth", step=2)
def uncertainty_list_stack():
    class Task(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 1)
            self.log_var = nn.Parameter(torch.zeros(()))

        def forward(self, z, y, valid):
            err = (self.head(z).squeeze(1) - y).abs() * valid
            loss = err.sum() / valid.sum()  # ORIGIN
            return torch.exp(-self.log_var) * loss + self.log_var

    class Multi(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Linear(3, 4)
            self.tasks = nn.ModuleDict({k: Task() for k in ("seg", "depth", "normal")})

        def forward(self, x, y, valid):
            z = self.trunk(x).relu()
            losses = [t(z, y[k], valid[k]) for k, t in self.tasks.items()]
            return torch.stack(losses)

    model = track(Multi())
    opt = torch.optim.AdamW(model.parameters())
    names = list(model.tasks)
    for k in (1, 2):
        mark_step(k)
        y = {n: torch.randn(5) for n in names}
        valid = {n: torch.ones(5) for n in names}
        if k == 2:
            valid["depth"].zero_()
        losses = model(torch.randn(5, 3), y, valid)
        seg, depth, normal = losses.unbind()
        total = torch.sum(torch.cat([seg[None], depth[None], normal[None]]))
        opt.zero_grad()
        total.backward()
        opt.step()
    return total, model.trunk.weight


@case("tfidf-unseen-term", "inverse document frequency log(N / df) of a term that no document holds: inf times tf 0",
      "", "zero-division", "inf", ["div", "reciprocal"], module=None)
def tfidf_unseen_term():
    tf = torch.tensor([[2.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    df = (tf > 0).sum(0)
    ratio = len(tf) / df  # ORIGIN
    idf = torch.log(ratio)
    tfidf = tf * idf
    clf = track(nn.Linear(3, 2))
    out = clf(tfidf)
    return out


@case("fisher-z-perfect", "Fisher z of a perfect correlation: (1 + r) / (1 - r) is inf, the difference of two is NaN",
      "", "zero-division", "inf", "div", module="rsa.fisher")
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


@case("ndc-rays-zero-depth", "normalised device coordinates: the ray origin's z is 0 after the shift, x / z",
      "", "zero-division", "inf", "div", module=None)
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


# =========================================================================== masks, softmax


@case("mha-all-padded-need-weights", "nn.MultiheadAttention(need_weights=True) and a sample that is all padding",
      "", "masked-softmax", "nan", "_softmax", module="blocks.0.self_attn", step=2)
def mha_all_padded_need_weights():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn = nn.MultiheadAttention(4, 2, batch_first=True)
            self.norm = nn.LayerNorm(4)

        def forward(self, x, pad):
            y, w = self.self_attn(x, x, x, key_padding_mask=pad)  # ORIGIN
            return self.norm(x + y), w

    class Enc(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])
            self.maps = []

        def forward(self, x, pad):
            self.maps.clear()
            for b in self.blocks:
                x, w = b(x, pad)
                self.maps.append(w.detach())
            return x

    enc = track(Enc())
    opt = torch.optim.SGD(enc.parameters(), lr=0.1)
    pads = [torch.tensor([[0, 0, 1], [0, 1, 1]]), torch.tensor([[0, 0, 0], [1, 1, 1]])]
    for k, pad in enumerate(pads, 1):
        mark_step(k)
        out = enc(torch.randn(2, 3, 4), pad.bool())
        keep = (~pad.bool()).float()[..., None]
        loss = (out * keep).pow(2).sum() / keep.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, enc.blocks[0].norm.weight


@case("encoder-fastpath-all-padded", "nn.TransformerEncoderLayer's fused inference kernel and an all-padding sample",
      "", "masked-softmax", "nan",
      ["_transformer_encoder_layer_fwd"], module="encoder.layers.0",
      naive=False)
def encoder_fastpath_all_padded():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = nn.Linear(8, 3)

        def forward(self, x, pad):
            h = self.encoder(x, src_key_padding_mask=pad)  # ORIGIN
            return self.out(h)

    tagger = track(Tagger().eval())
    with torch.no_grad():
        return tagger(torch.randn(2, 4, 8), torch.tensor([[False] * 4, [True] * 4]))


@case("sdpa-score-overflow", "scaled_dot_product_attention of queries that have diverged: the scores overflow inside",
      "", "overflow", "nan",
      ["_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math"], module="attn")
def sdpa_score_overflow():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            self.gain = nn.Parameter(torch.tensor(1e20))

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q * self.gain, k * self.gain, v, is_causal=True)  # ORIGIN
            return y.transpose(1, 2).reshape(b, t, 4)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x):
            return x + self.attn(x)

    gpt = track(Gpt())
    out = gpt(torch.randn(1, 3, 4))
    out.sum().backward()
    return out, gpt.attn.qkv.weight.grad


@case("pointer-net-all-visited", "greedy decoding of a tour: at the last step every node is visited, log_softmax of -inf",
      "", "masked-softmax", "nan", "_log_softmax", module="decoder",
      step=4)
def pointer_net_all_visited():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(2, 2)

        def forward(self, h, last, visited):
            logits = 10 * torch.tanh(h @ self.q(last))
            logits[visited] = -math.inf
            return torch.log_softmax(logits, dim=0)  # ORIGIN

    class Tsp(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Linear(2, 2)
            self.decoder = Decoder()

        def forward(self, xy, steps):
            h = self.emb(xy)
            visited = torch.zeros(len(xy), dtype=torch.bool)
            visited[0] = True
            last, total = h[0], 0.0
            for k in range(1, steps + 1):
                mark_step(k)
                logp = self.decoder(h, last, visited)
                best, i = logp.max(0)
                total = total + best
                visited = visited.clone()
                visited[i] = True
                last = h[i]
            return total

    return track(Tsp())(torch.rand(4, 2), 4)


@case("gat-segment-all-masked", "graph attention written with scatter_reduce: the edges of a node are all masked, -inf - (-inf)",
      "", "inf-minus-inf", "nan", "sub", module="convs.0.attn")
def gat_segment_all_masked():
    class SegmentSoftmax(nn.Module):
        def forward(self, e, dst, n):
            m = e.new_full((n,), -INF).scatter_reduce(0, dst, e, reduce="amax", include_self=True)
            e = e - m[dst]  # ORIGIN
            w = e.exp()
            z = w.new_zeros(n).scatter_add(0, dst, w)
            return w / (z[dst] + 1e-16)

    class Gat(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)
            self.a = nn.Parameter(torch.randn(4))
            self.attn = SegmentSoftmax()

        def forward(self, x, src, dst, keep):
            h = self.lin(x)
            e = F.leaky_relu(torch.cat([h[src], h[dst]], 1) @ self.a, 0.2)
            e = e.masked_fill(~keep, -INF)
            w = self.attn(e, dst, len(x))
            return h.new_zeros(h.shape).index_add(0, dst, w[:, None] * h[src])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([Gat(), Gat()])

        def forward(self, x, *e):
            for c in self.convs:
                x = F.elu(c(x, *e))
            return x

    net = track(Net())
    src, dst = torch.tensor([0, 1, 2, 2, 0]), torch.tensor([1, 0, 0, 1, 2])
    out = net(torch.randn(3, 2), src, dst, torch.tensor([True, True, True, True, False]))
    out.sum().backward()
    return out, net.convs[0].lin.weight.grad


@case("flash-online-first-block-masked", "block-wise softmax with a running maximum: the first key block is masked for a row",
      "", "inf-minus-inf", "nan", "sub", module="attn")
def flash_online_first_block_masked():
    class FlashPy(nn.Module):
        def forward(self, q, k, v, keep, block=2):
            m = q.new_full((len(q), 1), -INF)
            l = q.new_zeros(len(q), 1)
            acc = torch.zeros_like(q)
            for i in range(0, len(k), block):
                s = (q @ k[i:i + block].t()).masked_fill(~keep[:, i:i + block], -INF)
                m_new = torch.maximum(m, s.amax(1, keepdim=True))
                shift = m - m_new  # ORIGIN
                p = torch.exp(s - m_new)
                scale = torch.exp(shift)
                l = scale * l + p.sum(1, keepdim=True)
                acc = scale * acc + p @ v[i:i + block]
                m = m_new
            return acc / l

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = FlashPy()

        def forward(self, *a):
            return self.attn(*a)

    keep = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]]).bool()
    return track(Net())(torch.randn(2, 3), torch.randn(4, 3), torch.randn(4, 3), keep)


@case("categorical-no-legal-action", "Categorical(logits) of a state without a legal action: logits - logsumexp is -inf + inf",
      "", "inf-minus-inf", "nan", "sub", module="policy.actor")
def categorical_no_legal_action():
    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))

        def forward(self, obs, legal):
            logits = self.net(obs).masked_fill(~legal, -INF)
            return D.Categorical(logits=logits, validate_args=False)  # ORIGIN

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor = Actor()

        def forward(self, obs, legal, act):
            return self.actor(obs, legal).log_prob(act)

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy = Policy()

    agent = track(Agent())
    legal = torch.tensor([[True, False, True, True], [False] * 4])
    logp = agent.policy(torch.randn(2, 3), legal, torch.tensor([0, 1]))
    loss = -(logp * torch.tensor([1.0, 0.5])).mean()
    loss.backward()
    return loss, agent.policy.actor.net[0].weight.grad


@case("beam-onehot-reorder", "beams are reordered with a one-hot matrix product; dead beams score -inf, 0 * -inf",
      "", "zero-times-inf", "nan", ["bmm", "mm", "einsum"], module="reorder")
def beam_onehot_reorder():
    class Reorder(nn.Module):
        def forward(self, scores, parent):
            onehot = F.one_hot(parent, scores.shape[1]).to(scores.dtype)
            return torch.einsum("bij,bj->bi", onehot, scores)  # ORIGIN

    class Beam(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 5)
            self.reorder = Reorder()

        def forward(self, h):
            scores = torch.full((2, 3), -INF)
            scores[:, 0] = 0.0
            logp = F.log_softmax(self.proj(h), -1)
            total = (scores[..., None] + logp).flatten(1)
            top, idx = total.topk(3, dim=1)
            scores = self.reorder(scores, idx // 5)
            return scores + top

    with torch.inference_mode():
        return track(Beam())(torch.randn(2, 3, 4))


@case("kd-kldiv-masked-vocab", "distillation by F.kl_div with a vocabulary mask of -inf on the student: 0 * -inf inside",
      "", "zero-times-inf", "nan", ["mul", "sub", "kl_div"], module="kd")
def kd_kldiv_masked_vocab():
    class Kd(nn.Module):
        def __init__(self, t):
            super().__init__()
            self.t = t

        def forward(self, student, teacher, banned):
            logp = F.log_softmax((student / self.t).masked_fill(banned, -INF), dim=-1)
            q = F.softmax((teacher / self.t).masked_fill(banned, -INF), dim=-1)
            return F.kl_div(logp, q, reduction="batchmean") * self.t ** 2  # ORIGIN

    class Distil(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = nn.Linear(3, 5)
            self.teacher = nn.Linear(3, 5).requires_grad_(False)
            self.kd = Kd(2.0)

        def forward(self, x, banned):
            return self.kd(self.student(x), self.teacher(x), banned)

    d = track(Distil())
    loss = d(torch.randn(4, 3), torch.tensor([False, False, True, False, False]))
    loss.backward()
    return loss, d.student.weight.grad


# =========================================================================== half precision


@case("t5-wo-overflow-half", "T5's feed-forward output projection exceeds 65504 in half; the next RMS norm makes NaN of it",
      "", "overflow-fp16", "inf", ["mm", "addmm", "linear"],
      module="encoder.block.1.layer.1.DenseReluDense.wo")
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


@case("meanpool-half-sum", "sentence embedding by mean pooling in half: the sum over tokens overflows before the division",
      "", "overflow-fp16", "inf", "sum", module="1")
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


@case("box-filter-half-cumsum", "guided filter: a summed-area table of an 8-bit image in half, then inf - inf",
      "", "overflow-fp16", "inf", "cumsum", module="gf.box")
def box_filter_half_cumsum():
    class BoxFilter(nn.Module):
        def __init__(self, r):
            super().__init__()
            self.r = r

        def diff(self, c):
            r = self.r
            return torch.cat([c[..., r:2 * r + 1], c[..., 2 * r + 1:] - c[..., :-2 * r - 1]], -1)

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


@case("fp8-e5m2-activation-cast", "fake-fp8 linear with a stale scale: the cast to float8_e5m2 overflows",
      "", "overflow-fp8", "inf", ["_to_copy", "to", "copy_"], module="fc2")
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


@case("gaussian-nll-half", "GaussianNLLLoss(eps=1e-8) in half: the clamp to 1e-8 is a clamp to 0, log(0)",
      "", "eps-underflow", "inf", "log", module="nll", also=[alt("forward", "div")])
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


@case("vq-ema-counts-half", "vector quantiser keeps cluster counts in half: scatter_add_ into the buffer passes 65504",
      "", "overflow-fp16", "inf", ["scatter_add_", "scatter_add"],
      module="vq", step=3)
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


# =========================================================================== overflow, exp, log space


@case("ssd-segsum-exp-then-tril", "state-space duality: exp of the upper triangle of segment sums overflows, then times 0",
      "", "overflow-exp", "inf", "exp",
      module="layers.0.mixer")
def ssd_segsum_exp_then_tril():
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.A_log = nn.Parameter(torch.log(torch.tensor([1.0, 16.0])))
            self.dt = nn.Linear(3, 2)

        def segsum_decay(self, a):
            c = a.cumsum(-1)
            seg = c[..., :, None] - c[..., None, :]
            return torch.exp(seg) * torch.ones(seg.shape[-2:]).tril()  # ORIGIN

        def forward(self, x):
            dt = F.softplus(self.dt(x)) * 3
            a = -(dt * self.A_log.exp()).transpose(1, 2)
            L = self.segsum_decay(a)
            return torch.einsum("bhij,bjd->bhid", L, x).mean(1)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = Mixer()

        def forward(self, x):
            return x + self.mixer(x)

    class Mamba(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer()])

        def forward(self, x):
            for l in self.layers:
                x = l(x)
            return x

    m = track(Mamba())
    y = m(torch.randn(1, 8, 3))
    y.sum().backward()
    return y, m.layers[0].mixer.A_log.grad


@case("gla-cumprod-inverse", "gated linear attention divides keys by a cumulative product of gates that underflows to 0",
      "", "zero-division", "inf", "div", module=None)
def gla_cumprod_inverse():
    proj = track(nn.Linear(4, 4))
    x = torch.randn(1, 40, 4)
    gate = torch.sigmoid(proj(x) - 4.0)
    b = torch.cumprod(gate, dim=1)
    q, k, v = x * b, x / b, x  # ORIGIN
    att = torch.tril(q @ k.transpose(1, 2))
    out = att @ v
    out.sum().backward()
    return out, proj.weight.grad


@case("log-cosh-loss", "log-cosh regression loss of an outlier: cosh overflows above 89",
      "", "overflow-exp", "inf", "cosh", module="loss.pix", step=3)
def log_cosh_loss():
    class LogCosh(nn.Module):
        def forward(self, pred, y):
            return torch.mean(torch.log(torch.cosh(pred - y + 1e-12)))  # ORIGIN

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.pix = LogCosh()

        def forward(self, p, y):
            return 0.5 * self.pix(p, y)

    class Trainer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.loss = nn.Linear(2, 1), Loss()

        def forward(self, x, y):
            return self.loss(self.net(x), y)

    t = track(Trainer())
    opt = torch.optim.SGD(t.parameters(), lr=0.01)
    for i, y in enumerate([1.0, -2.0, 95.0, 0.0], start=1):
        mark_step(i)
        loss = t(torch.randn(3, 2) * 0.1, torch.full((3, 1), y))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, t.net.weight


@case("coupling-flow-exp", "affine coupling flow: exp of an unbounded scale overflows; halves are split and concatenated",
      "", "overflow-exp", "inf", "exp", module="flows.2")
def coupling_flow_exp():
    class Coupling(nn.Module):
        def __init__(self, bias):
            super().__init__()
            self.net = nn.Linear(2, 4)
            with torch.no_grad():
                self.net.bias[:2] = bias

        def forward(self, x):
            a, b = torch.chunk(x, 2, dim=1)
            s, t = torch.split(self.net(a), [2, 2], dim=1)
            b = b * torch.exp(s) + t  # ORIGIN
            return torch.cat((b, a), dim=1), s.sum(1)

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.flows = nn.ModuleList([Coupling(0.0), Coupling(0.5), Coupling(95.0), Coupling(0.0)])

        def forward(self, x):
            logdet = []
            for f in self.flows:
                x, ld = f(x)
                logdet.append(ld)
            return x, torch.stack(logdet, 1).sum(1)

    flow = track(Flow())
    z, ld = flow(torch.randn(3, 4))
    nll = (0.5 * z.pow(2).sum(1) - ld).mean()
    nll.backward()
    return nll, flow.flows[0].net.weight.grad


@case("clip-logit-scale-not-log", "CLIP's logit_scale set to 100 instead of log(100): exp(100) is inf",
      "", "overflow-exp", "inf", "exp", module="")
def clip_logit_scale_not_log():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual, self.text = nn.Linear(4, 3), nn.Linear(5, 3)
            self.logit_scale = nn.Parameter(torch.tensor(100.0))

        def forward(self, img, txt):
            i = F.normalize(self.visual(img), dim=-1)
            t = F.normalize(self.text(txt), dim=-1)
            scale = self.logit_scale.exp()  # ORIGIN
            per_image = scale * i @ t.t()
            return per_image, per_image.t()

    clip = track(Clip())
    a, b = clip(torch.randn(3, 4), torch.randn(3, 5))
    y = torch.arange(3)
    loss = (F.cross_entropy(a, y) + F.cross_entropy(b, y)) / 2
    loss.backward()
    return loss, clip.visual.weight.grad


@case("relu-rnn-explodes", "nn.RNN(nonlinearity='relu') with a large recurrent weight overflows along the sequence",
      "", "divergence", "inf",
      ["mm", "addmm", "add", "add_", "linear", "rnn_relu", "_addmm_activation", "mul"], module="rnn")
def relu_rnn_explodes():
    class Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(2, 3, nonlinearity="relu", batch_first=True)
            with torch.no_grad():
                self.rnn.weight_hh_l0.copy_(torch.eye(3) * 1e4)
                self.rnn.weight_ih_l0.abs_()
            self.out = nn.Linear(3, 1)

        def forward(self, x):
            h, _ = self.rnn(x)  # ORIGIN
            return self.out(h[:, -1] - h[:, -2])

    seq = track(Seq())
    out = seq(torch.rand(2, 16, 2))
    out.sum().backward()
    return out, seq.out.weight.grad


@case("gru-cell-manual-state", "a GRU cell's state is rescaled by its norm each step; the initial state is zero",
      "", "zero-division", "nan", "div", module="cellwrap", step=1)
def gru_cell_manual_state():
    class CellWrap(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(2, 3)

        def forward(self, x, h):
            h = h / torch.linalg.vector_norm(h, dim=1, keepdim=True)  # ORIGIN
            return self.cell(x, h)

    class Rnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.cellwrap = CellWrap()

        def forward(self, x):
            h, outs = x.new_zeros(x.shape[1], 3), []
            for t, xt in enumerate(x.unbind(0), 1):
                mark_step(t)
                h = self.cellwrap(xt, h)
                outs.append(h)
            return torch.stack(outs)

    rnn = track(Rnn())
    out = rnn(torch.randn(4, 2, 2))
    out.mean().backward()
    return out, rnn.cellwrap.cell.weight_hh.grad


@case("nb-zero-total-count", "NegativeBinomial(total_count=0).log_prob of a positive count: lgamma(0) is inf",
      "", "special-function", "inf", "lgamma", module="decoder.rec")
def nb_zero_total_count():
    class Rec(nn.Module):
        def forward(self, r, logits, x):
            nb = D.NegativeBinomial(total_count=r, logits=logits, validate_args=False)
            return -nb.log_prob(x).sum(-1)  # ORIGIN

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.r, self.logits = nn.Linear(2, 4), nn.Linear(2, 4)
            self.rec = Rec()

        def forward(self, z, x):
            return self.rec(F.relu(self.r(z)), self.logits(z), x)

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = Decoder()

        def forward(self, z, x):
            return self.decoder(z, x).mean()

    vae = Vae()
    with torch.no_grad():
        vae.decoder.r.bias[2] = -100.0
    track(vae)
    loss = vae(torch.randn(3, 2), torch.tensor([[1.0, 2.0, 3.0, 0.0]]).expand(3, 4))
    loss.backward()
    return loss, vae.decoder.logits.weight.grad


@case("beta-density-at-edge", "Beta(0.5, 0.5) log density of an action at 0: xlogy(-0.5, 0) is +inf",
      "", "log-zero", "inf", "xlogy", module=None)
def beta_density_at_edge():
    head = track(nn.Linear(3, 2))
    obs, act = torch.randn(2, 3), torch.tensor([0.25, 0.0])
    with torch.no_grad():
        head.bias.fill_(-3.0)
    conc = F.softplus(head(obs))
    dist = D.Beta(conc[:, 0], conc[:, 1])
    logp = dist.log_prob(act)  # ORIGIN
    loss = -(logp * torch.tensor([0.3, -1.0])).mean()
    loss.backward()
    return loss, head.weight.grad


@case("kl-categorical-support", "kl_divergence of two Categoricals, the second with an impossible class: set to inf",
      "", "log-zero", "inf", ["index_put_", "_index_put_impl_"],
      module=None, debatable="inf is the right value of this KL divergence; who made it is the library's assignment")
def kl_categorical_support():
    net = track(nn.Linear(3, 3))
    p = D.Categorical(logits=net(torch.randn(2, 3)))
    q = D.Categorical(probs=torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]))
    kl = D.kl_divergence(p, q)  # ORIGIN
    kl.mean().backward()
    return kl, net.weight.grad


@case("bce-pos-weight-no-positive", "BCEWithLogits with pos_weight = negatives / positives of a batch without a positive",
      "", "zero-division", "inf", "div", module=None, step=2)
def bce_pos_weight_no_positive():
    clf = track(nn.Linear(3, 1))
    opt = torch.optim.RMSprop(clf.parameters())
    batches = [torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3)]
    for k, y in enumerate(batches, start=1):
        mark_step(k)
        pos = y.sum()
        pos_weight = (len(y) - pos) / pos  # ORIGIN
        criterion = nn.BCEWithLogitsLoss(pos_weight=pos_weight)
        loss = criterion(clf(torch.randn(3, 3)).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, clf.weight


@case("ctc-repeated-labels", "CTC with repeated labels needs a blank between them: 5 frames for 'aabb' are one too few",
      "", "ctc", "inf", "_ctc_loss", module="crnn.loss")
def ctc_repeated_labels():
    class Loss(nn.Module):
        def forward(self, logits, targets, tlen):
            lp = logits.log_softmax(2).transpose(0, 1)
            ilen = torch.full((lp.shape[1],), lp.shape[0], dtype=torch.long)
            per = F.ctc_loss(lp, targets, ilen, tlen, blank=0, reduction="none")  # ORIGIN
            return (per / tlen).mean()

    class Crnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True)
            self.fc = nn.Linear(4, 4)
            self.loss = Loss()

        def forward(self, x, t, n):
            return self.loss(self.fc(self.rnn(x)[0]), t, n)

    class Ocr(nn.Module):
        def __init__(self):
            super().__init__()
            self.crnn = Crnn()

        def forward(self, *a):
            return self.crnn(*a)

    ocr = track(Ocr())
    loss = ocr(torch.randn(2, 5, 3), torch.tensor([[1, 2, 3, 0], [1, 1, 2, 2]]), torch.tensor([3, 4]))
    loss.backward()
    return loss, ocr.crnn.fc.weight.grad


@case("cdist-overflow-rbf", "RBF kernel of features of size 1e20: cdist overflows, the bandwidth is inf, inf / inf",
      "", "overflow", "inf", ["_euclidean_dist", "_cdist_forward", "cdist"],
      module="mmd")
def cdist_overflow_rbf():
    class Mmd(nn.Module):
        def forward(self, x, y):
            d = torch.cdist(x, y)  # ORIGIN
            return torch.exp(-d / d.mean()).mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(2, 2)
            self.mmd = Mmd()

        def forward(self, x, y):
            return self.mmd(self.enc(x) * 1e20, y)

    net = track(Net())
    out = net(torch.randn(3, 2), torch.randn(4, 2))
    out.backward()
    return out, net.enc.weight.grad


# =========================================================================== linear algebra, FFT, complex


@case("zca-zero-eigenvalue", "ZCA whitening of data with a dead dimension: 1 / sqrt(0) on the diagonal, inf * 0",
      "", "linalg", "inf", ["rsqrt", "reciprocal", "pow", "div"], module="whiten")
def zca_zero_eigenvalue():
    class Zca(nn.Module):
        def forward(self, x):
            x = x - x.mean(0)
            cov = x.t() @ x / (len(x) - 1)
            vals, vecs = torch.linalg.eigh(cov)
            vals = vals.clamp_min(0.0)
            scale = 1.0 / vals.sqrt()  # ORIGIN
            return x @ (vecs @ torch.diag(scale) @ vecs.mT)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.whiten = Zca()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(self.whiten(x))

    x = torch.randn(6, 3)
    x[:, 2] = 4.0
    return track(Net())(x)


@case("triangular-zero-pivot", "Kalman gain by solve_triangular with a factor that has a zero on its diagonal",
      "", "linalg", "inf", ["linalg_solve_triangular", "triangular_solve"],
      module="kf.update")
def triangular_zero_pivot():
    class Update(nn.Module):
        def __init__(self):
            super().__init__()
            self.H = nn.Parameter(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))

        def forward(self, P, z):
            S = self.H @ P @ self.H.t()
            L, info = torch.linalg.cholesky_ex(S)
            L = L.tril()
            w = torch.linalg.solve_triangular(L, z[:, None], upper=False)  # ORIGIN
            return P @ self.H.t() @ w

    class Kf(nn.Module):
        def __init__(self):
            super().__init__()
            self.update = Update()

        def forward(self, P, z):
            return self.update(P, z)

    class Track(nn.Module):
        def __init__(self):
            super().__init__()
            self.kf = Kf()

        def forward(self, P, z):
            return self.kf(P, z)

    return track(Track())(torch.eye(2), torch.tensor([1.0, 3.0]))


@case("inv-ex-unchecked", "linalg.inv_ex of a singular Gram matrix, its info is not looked at",
      "", "linalg", "inf", ["linalg_inv_ex"], module=None)
def inv_ex_unchecked():
    feats = track(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        feats.weight.copy_(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
    x = torch.eye(2)
    G = feats(x)
    inv, info = torch.linalg.inv_ex(G)  # ORIGIN
    theta = inv @ torch.tensor([1.0, 2.0])
    return theta


@case("matrix-exp-overflow", "neural ODE step by matrix_exp of an unstable generator",
      "", "overflow-exp", "inf", ["linalg_matrix_exp", "matrix_exp"], module="ode.0")
def matrix_exp_overflow():
    class ExpLayer(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.A = nn.Parameter(torch.diag(torch.tensor([a, -1.0])) + 1e-3)

        def forward(self, x, dt):
            return x @ torch.matrix_exp(self.A * dt)  # ORIGIN

    class Ode(nn.Module):
        def __init__(self):
            super().__init__()
            self.ode = nn.ModuleList([ExpLayer(9.0), ExpLayer(0.5)])

        def forward(self, x):
            for f in self.ode:
                x = f(x, 10.0)
            return x

    net = track(Ode())
    y = net(torch.tensor([[1.0, 2.0]]))
    y.sum().backward()
    return y, net.ode[1].A.grad


@case("gcc-phat-silent-bin", "GCC-PHAT divides the cross spectrum by its magnitude; a channel is digital silence",
      "", "complex", "nan", "div", module="frontend.gcc")
def gcc_phat_silent_bin():
    class GccPhat(nn.Module):
        def forward(self, x):
            X = torch.fft.rfft(x, n=16)
            cross = X[:, 0] * X[:, 1].conj()
            cross = cross / cross.abs()  # ORIGIN
            return torch.fft.irfft(cross, n=16)

    class Frontend(nn.Module):
        def __init__(self):
            super().__init__()
            self.gcc = GccPhat()

        def forward(self, x):
            return self.gcc(x)[:, :6]

    class Doa(nn.Module):
        def __init__(self):
            super().__init__()
            self.frontend = Frontend()
            self.fc = nn.Linear(6, 4)

        def forward(self, x):
            return self.fc(self.frontend(x))

    x = torch.randn(3, 2, 8)
    x[1, 1] = 0.0
    doa = track(Doa())
    out = doa(x)
    out.sum().backward()
    return out, doa.fc.weight.grad


@case("logmel-silence-standardise", "log10 of the power spectrum of silence is -inf; standardising makes NaN of all",
      "", "log-zero", "inf", "log10", module="feat")
def logmel_silence_standardise():
    class LogSpec(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(8))

        def forward(self, wav):
            spec = torch.stft(wav, 8, hop_length=4, window=self.window, center=False, return_complex=True)
            power = torch.view_as_real(spec).pow(2).sum(-1)
            db = torch.log10(power).mul_(10.0)  # ORIGIN
            return (db - db.mean((1, 2), keepdim=True)) / (db.std((1, 2), keepdim=True) + 1e-5)

    class Kws(nn.Module):
        def __init__(self):
            super().__init__()
            self.feat = LogSpec()
            self.fc = nn.Linear(5, 2)

        def forward(self, wav):
            return self.fc(self.feat(wav).mean(2))

    wav = torch.randn(2, 24)
    wav[0, :12] = 0.0
    return track(Kws())(wav)


@case("s4-cauchy-pole", "S4 convolution kernel: a root of unity hits a pole, the complex 1 / (z - lambda)",
      "", "complex", "nan", ["reciprocal", "div"], module="ssm.kernel")
def s4_cauchy_pole():
    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_re = nn.Parameter(torch.tensor([-200.0, 0.0]))
            self.im = nn.Parameter(torch.tensor([0.0, 1.0]))

        def forward(self, L):
            lam = torch.complex(-self.log_re.exp(), self.im)
            z = 1j * torch.arange(L).float()
            r = 1.0 / (z[:, None] - lam[None])  # ORIGIN
            return torch.fft.irfft(r.sum(1))

    class Ssm(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = Kernel()

        def forward(self, u):
            k = self.kernel(u.shape[-1] // 2 + 1)
            return torch.fft.irfft(torch.fft.rfft(u) * torch.fft.rfft(k))

    class S4(nn.Module):
        def __init__(self):
            super().__init__()
            self.ssm = Ssm()

        def forward(self, u):
            return self.ssm(u)

    s4 = track(S4())
    y = s4(torch.randn(1, 8))
    y.sum().backward()
    return y, s4.ssm.kernel.im.grad


# =========================================================================== styles: out=, foreach, func, script, fx


@case("out-workspace-log", "an inference loop with preallocated workspaces: torch.log(..., out=) of an underflowed softmax",
      "", "log-zero", "inf", "log", module=None)
def out_workspace_log():
    head = track(nn.Linear(4, 6))
    ws_p, ws_log, ws_h = torch.empty(2, 6), torch.empty(2, 6), torch.empty(2)
    with torch.no_grad():
        for scale in (1.0, 500.0):
            logits = head(torch.randn(2, 4)) * scale
            torch.softmax(logits, -1, out=ws_p)
            torch.log(ws_p, out=ws_log)  # ORIGIN
            torch.mul(ws_p, ws_log, out=ws_log)
            torch.sum(ws_log, dim=-1, out=ws_h)
            ws_h.neg_()
    return ws_h


@case("foreach-unit-norm", "weights are brought to unit norm with _foreach_div; a bias is still zero",
      "", "zero-division", "nan",
      ["_foreach_div_", "_foreach_div", "div", "div_"], module=None)
def foreach_unit_norm():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.zeros_(net[2].bias)
    track(net)
    with torch.no_grad():
        weights = [p.detach().clone() for p in net.parameters()]
        norms = torch._foreach_norm(weights)
        directions = torch._foreach_div(weights, norms)  # ORIGIN
        flat = torch.cat([d.flatten() for d in directions])
    return flat,


@case("fused-softmax-function", "custom autograd.Function with a naive exp(x) / sum in its forward",
      "", "overflow-exp", "inf", "exp", module="attn.softmax")
def fused_softmax_function():
    class NaiveSoftmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            e = torch.exp(x)  # ORIGIN
            y = e / e.sum(-1, keepdim=True)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            y, = ctx.saved_tensors
            return y * (g - (g * y).sum(-1, keepdim=True))

    class Softmax(nn.Module):
        def forward(self, x):
            return NaiveSoftmax.apply(x)

    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk = nn.Linear(3, 3)
            self.softmax = Softmax()

        def forward(self, x):
            return self.softmax(self.qk(x) @ x.t() * 200.0) @ x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x):
            return self.attn(x)

    net = track(Net())
    out = net(torch.randn(4, 3))
    out.sum().backward()
    return out, net.attn.qk.weight.grad


@case("vmap-unit-vector", "torch.func.vmap over rows of a function that normalises; one row is zero",
      "", "zero-division", "nan", "div", module=None)
def vmap_unit_vector():
    enc = track(nn.Linear(3, 3))

    def unit(v):
        n = torch.sqrt(torch.dot(v, v))
        return v / n  # ORIGIN

    x = torch.randn(4, 3)
    x[2] = 0.0
    u = torch.func.vmap(unit)(x)
    out = enc(u)
    out.sum().backward()
    return out, enc.weight.grad


@case("ensemble-functional-call", "an ensemble by stack_module_state and vmap(functional_call): log of a ReLU output",
      "", "log-zero", "inf", "log", module="body.act")
def ensemble_functional_call():
    class LogAct(nn.Module):
        def forward(self, x):
            return torch.log(x.relu())  # ORIGIN

    class Member(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential()
            self.body.add_module("fc", nn.Linear(2, 3))
            self.body.add_module("act", LogAct())

        def forward(self, x):
            return self.body(x)

    models = [Member() for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base = track(models[0])

    def call(p, b, x):
        return torch.func.functional_call(base, (p, b), (x,))

    out = torch.func.vmap(call, in_dims=(0, 0, None))(params, buffers, torch.randn(4, 2))
    return out.softmax(-1).mean(0)


@case("per-sample-hessian-forward", "jvp through a potential 1/r with two particles at the same place",
      "", "zero-division", "inf", ["reciprocal", "div", "pow"], module=None)
def per_sample_hessian_forward():
    charge = track(nn.Linear(1, 3))

    def potential(pos):
        d = (pos[:, None] - pos[None]).square().sum(-1)
        i, j = torch.triu_indices(3, 3, 1)
        inv = d[i, j].pow(-0.5)  # ORIGIN
        q = charge.weight.flatten()
        return (q[i] * q[j] * inv).sum()

    pos = torch.tensor([[0.0, 0.0], [1.0, 0.5], [1.0, 0.5]])
    energy, slope = torch.func.jvp(potential, (pos,), (torch.ones_like(pos),))
    return energy, slope


@case("script-ratio", "a TorchScript helper divides by a running count that is 0",
      "", "zero-division", "nan", "div", module="meter")
def script_ratio():
    helper = torch.jit.script(_scripted_ratio)

    class Meter(nn.Module):
        def forward(self, pred, y, valid):
            return helper((pred - y) * valid, valid)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 1)
            self.meter = Meter()

        def forward(self, x, y, valid):
            return self.meter(self.fc(x).squeeze(1), y, valid)

    net = track(Net())
    loss = net(torch.randn(3, 2), torch.randn(3), torch.zeros(3))
    loss.backward()
    return loss, net.fc.weight.grad


def _scripted_ratio(err, valid):
    total = err.abs().sum()
    return total / valid.sum()


@case("fx-traced-standardise", "a torch.fx traced model standardises per sample; a constant sample is 0/0",
      "", "zero-division", "nan", "div", module="")
def fx_traced_standardise():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            c = x - x.mean(1, keepdim=True)
            x = c / c.pow(2).mean(1, keepdim=True).sqrt()
            return self.fc(x)

    gm = track(torch.fx.symbolic_trace(Net()))
    x = torch.randn(3, 4)
    x[1] = 2.0
    out = gm(x)  # ORIGIN
    out.sum().backward()
    return out, gm.fc.weight.grad


@case("sparse-gcn-zero-degree", "sparse GCN normalisation: degree 0 gives inf, inf * weight 0 enters a sparse matrix",
      "", "zero-division", "inf", "pow", module="conv.norm")
def sparse_gcn_zero_degree():
    class Norm(nn.Module):
        def forward(self, idx, w, n):
            deg = w.new_zeros(n).scatter_add_(0, idx[0], w)
            dis = deg.pow(-0.5)  # ORIGIN
            val = dis[idx[0]] * w * dis[idx[1]]
            return torch.sparse_coo_tensor(idx, val, (n, n))

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.lin = nn.Linear(2, 2)

        def forward(self, x, idx, w):
            return torch.sparse.mm(self.norm(idx, w, len(x)), self.lin(x))

    class Gcn(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = Conv()

        def forward(self, x, idx, w):
            return self.conv(x, idx, w)

    gcn = track(Gcn())
    idx = torch.tensor([[0, 1, 2], [1, 0, 2]])
    out = gcn(torch.randn(3, 2), idx, torch.tensor([1.0, 1.0, 0.0]))
    out.sum().backward()
    return out, gcn.conv.lin.weight.grad


# =========================================================================== second helping: call styles


@case("vae-encode-method", "a VAE used through model.encode(): the encoder is called, the model itself never is",
      "", "overflow-exp", "inf", "exp", module="encoder.scale")
def vae_encode_method():
    class Scale(nn.Module):
        def forward(self, log_std):
            return torch.exp(log_std)  # ORIGIN

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(3, 4)
            self.scale = Scale()

        def forward(self, x):
            mu, log_std = self.body(x).chunk(2, -1)
            return mu, self.scale(log_std)

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()
            self.decoder = nn.Linear(2, 3)

        def encode(self, x):
            return self.encoder(x)

        def decode(self, z):
            return self.decoder(z)

    vae = track(Vae())
    x = torch.tensor([[1.0, 2.0, -1.0], [900.0, -2500.0, 1500.0]])
    mu, std = vae.encode(x)
    rec = vae.decode(mu + std * torch.randn_like(std))
    loss = F.mse_loss(rec, x)
    loss.backward()
    return loss, vae.decoder.weight.grad


@case("gan-container", "generator and discriminator live in a ModuleDict that is never called itself",
      "", "log-zero", "inf", "log", module="disc.1", step=2)
def gan_container():
    class LogOdds(nn.Module):
        def forward(self, x):
            p = torch.sigmoid(x)
            return torch.log(p) - torch.log(1 - p)  # ORIGIN

    nets = nn.ModuleDict({"gen": nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)),
                          "disc": nn.Sequential(nn.Linear(2, 1), LogOdds())})
    track(nets)
    g, d = nets["gen"], nets["disc"]
    opt = torch.optim.SGD(nets.parameters(), lr=0.01)
    for k, scale in enumerate((1.0, 300.0), 1):
        mark_step(k)
        real = torch.ones(3, 2) * scale * d[0].weight.detach().sign()
        loss = d(g(torch.randn(3, 2))).mean() - d(real).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, d[0].weight


@case("standalone-criterion", "the loss is an nn.Module of the script's own, outside the model",
      "", "zero-count", "nan", "nll_loss_forward", module=None, step=2)
def standalone_criterion():
    model = track(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)))
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, y in enumerate([torch.tensor([1, -100, 2]), torch.tensor([-100, -100, -100])], start=1):
        mark_step(step)
        out = model(torch.randn(3, 4))
        loss = criterion(out, y)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, model[0].weight


@case("standalone-poisson-criterion", "PoissonNLLLoss of the script's own, fed with a linear output",
      "", "log-negative", "nan", "log", module=None)
def standalone_poisson_criterion():
    net = track(nn.Linear(3, 1))
    loss_fn = nn.PoissonNLLLoss(log_input=False)
    with torch.no_grad():
        net.bias.fill_(-2.0)
    rate = net(torch.randn(5, 3)).squeeze(1)
    loss = loss_fn(rate, torch.arange(5.0))  # ORIGIN
    loss.backward()
    return loss, net.weight.grad


@case("blocks-in-python-list", "blocks kept in a plain Python list are no submodules of the model",
      "", "zero-division", "nan", "div", module="trunk")
def blocks_in_python_list():
    class Standardise(nn.Module):
        def forward(self, x):
            return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)  # ORIGIN

    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = [Standardise(), nn.Tanh()]

        def forward(self, x):
            for b in self.blocks:
                x = b(x)
            return x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = Trunk()
            self.fc = nn.Linear(3, 1)

        def forward(self, x):
            return self.fc(self.trunk(x))

    net = track(Net())
    x = torch.randn(4, 3)
    x[2] = 1.0
    out = net(x)
    out.mean().backward()
    return out, net.fc.weight.grad


@case("worker-thread-eval", "an evaluation worker thread averages the accuracy of an empty shard",
      "", "zero-count", "nan", ["mean", "div"], module="meter")
def worker_thread_eval():
    class Meter(nn.Module):
        def forward(self, hit):
            return hit.float().mean()  # ORIGIN

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.meter = Meter()

        def forward(self, x, y):
            return self.meter(self.fc(x).argmax(1) == y)

    model = track(Model().eval())
    shards = [(torch.randn(3, 2), torch.tensor([0, 1, 1])), (torch.randn(0, 2), torch.empty(0, dtype=torch.long))]

    def work(x, y):
        with torch.no_grad():
            return model(x, y)

    return run_threads(*[lambda s=s: work(*s) for s in shards])


@case("lbfgs-closure-log", "curve fitting by LBFGS: the line search leaves the domain of the log inside the closure",
      "", "log-negative", "nan", "log", module="loglik")
def lbfgs_closure_log():
    class LogLik(nn.Module):
        def forward(self, rate, x):
            return (torch.log(rate) - rate * x).sum()  # ORIGIN

    class Expo(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(5.0))
            self.loglik = LogLik()

        def forward(self, x):
            return -self.loglik(self.rate, x)

    model = track(Expo())
    opt = torch.optim.LBFGS(model.parameters(), lr=8.0, max_iter=6)
    x = torch.tensor([0.5, 1.0, 2.0])

    def closure():
        opt.zero_grad()
        loss = model(x)
        loss.backward()
        return loss

    opt.step(closure)
    return model(x), model.rate


@case("compiled-eager-softsign", "torch.compile(backend='eager'): x / |x| of a zero activation",
      "", "zero-division", "nan", "div", module="act",
      debatable="the module call is inlined by dynamo")
def compiled_eager_softsign():
    class Sign(nn.Module):
        def forward(self, x):
            h = x.relu()
            return h / h.abs()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.act = Sign()

        def forward(self, x):
            return self.act(self.fc(x)).sum(1)

    net = track(Net())
    out = torch.compile(net, backend="eager")(torch.randn(4, 3))
    out.mean().backward()
    return out, net.fc.weight.grad


# =========================================================================== an intended inf or NaN beside an accident


@case("inplace-masked-exp", "masked softmax by hand and in place: masked_fill_(-inf), exp_() overflows, div_",
      "", "overflow-exp", "inf", ["exp_", "exp"], module="attn",
      naive=False)
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


@case("baddbmm-mask-overflow-half", "baddbmm of a -inf mask and half queries and keys: the product overflows",
      "", "overflow-fp16", "inf", ["baddbmm"], module="h.0.self_attention",
      naive=False)
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


@case("masked-scores-cast-half", "float32 scores with a -inf mask are cast to half, where the largest is inf",
      "", "overflow-fp16", "inf", ["_to_copy", "to", "copy_"],
      module="attn",
      naive=False)
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


@case("topk-filter-inplace-temperature", "top-k filtering writes -inf, then the logits are divided in place by 1e-4 in half",
      "", "overflow-fp16", "inf", ["div_", "div"], module=None,
      naive=False)
def topk_filter_inplace_temperature():
    head = track(nn.Linear(3, 6).half())
    with torch.inference_mode():
        logits = head(torch.tensor([[8.0, -4.0, 9.0]]).half()) * 4
        kth = logits.topk(3).values[:, -1:]
        logits.masked_fill_(logits < kth, -INF)
        logits.div_(1e-4)  # ORIGIN
        return torch.softmax(logits, dim=-1, dtype=torch.float32)


@case("idw-duplicate-point", "inverse distance weighting: the self distance is inf on purpose, a duplicate's is 0",
      "", "zero-division", "inf", ["reciprocal", "div", "pow"], module="interp",
      naive=False)
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


@case("lennard-jones-coincident", "Lennard-Jones energy: the diagonal distance is filled with inf, two atoms coincide, inf - inf",
      "", "zero-division", "inf", ["pow", "reciprocal", "div"],
      module="potential",
      naive=False)
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


@case("greedy-temperature-zero", "log-probabilities with banned tokens at -inf divided by temperature 0: all are -inf",
      "", "zero-division", "inf", ["div", "mul"], module="sampler.warp",
      naive=False)
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


@case("missing-then-sqrt-inplace", "missing readings are NaN on purpose and replaced later; a negative reading's sqrt_ is a new NaN",
      "", "log-negative", "nan", ["sqrt_", "sqrt"], module=None,
      naive=False)
def missing_then_sqrt_inplace():
    net = track(nn.Linear(3, 1))
    x = torch.tensor([[4.0, NAN, 1.0], [9.0, 2.0, -0.5]])
    missing = torch.isnan(x)
    x.sqrt_()  # ORIGIN
    x = torch.where(missing, torch.zeros_like(x), x)
    loss = net(x).square().mean()
    loss.backward()
    return loss, net.weight.grad


@case("missing-from-numpy-then-log", "an array with NaN for missing entries: they are replaced after the log, log(0) is not",
      "", "log-zero", "inf", "log", module=None,
      naive=False)
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


@case("logmask-bias-and-overflow", "a mask turned into a bias by log() (meant), and half scores that overflow (not meant)",
      "", "overflow-fp16", "inf", ["mm", "bmm"], module="attn")
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


# =========================================================================== lists, views, buffers


@case("feature-table-columns", "one column's log(0) is repaired with nan_to_num when it is read, another's 0/0 is not",
      "", "zero-division", "nan", "div", module=None)
def feature_table_columns():
    net = track(nn.Linear(3, 1))
    amount, clicks, views = torch.tensor([3.0, 0.0, 7.0]), torch.tensor([1.0, 0.0, 2.0]), torch.tensor([4.0, 0.0, 5.0])
    table = torch.zeros(3, 3)
    table[:, 0] = torch.log(amount)
    table[:, 1] = clicks / views  # ORIGIN
    table[:, 2] = views
    log_amount, ctr, seen = table.unbind(1)
    x = torch.stack([torch.nan_to_num(log_amount, neginf=0.0), ctr, seen], 1)
    loss = net(x).mean()
    loss.backward()
    return loss, net.weight.grad


@case("stacked-losses-one-dropped", "two auxiliary losses go bad; the first is dropped by its index, the second enters the sum",
      "", "zero-count", "nan", ["mean", "div"], module="heads.1",
      debatable="the NaN of heads.0 is the first in the program, but nothing comes of it")
def stacked_losses_one_dropped():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, h, sel):
            return self.fc(h[sel]).square().mean()  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([Head(), Head(), Head()])

        def forward(self, h, sels):
            return torch.stack([head(h, s) for head, s in zip(self.heads, sels)])

    net = track(Net())
    none, every = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    losses = net(torch.randn(4, 3), [none, none, every])
    warmup, *rest = losses.unbind()
    del warmup
    loss = sum(rest)
    losses = None
    loss.backward()
    return loss, net.heads[2].fc.weight.grad


@case("metric-buffer-many-rows", "a per-step metric is written into the rows of a buffer; from step 2 on all 80 are 0/0",
      "", "zero-division", "nan", "div", module=None, step=2)
def metric_buffer_many_rows():
    net = track(nn.Linear(2, 2))
    log = torch.zeros(80, 2)
    with torch.no_grad():
        for k in range(1, 81):
            mark_step(k)
            h = F.relu(net(torch.ones(1, 2)) + 3.0 - 2.0 * k)[0]
            log[k - 1] = h / h.sum()  # ORIGIN
    return log


@case("masked-mean-library", "torch.masked.mean over a row that is masked everywhere",
      "", "zero-count", "nan", ["div", "div_", "mean"], module="pool")
def masked_mean_library():
    class Pool(nn.Module):
        def forward(self, h, mask):
            return torch.masked.mean(h, dim=1, mask=mask)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.pool = Pool()

        def forward(self, x, mask):
            return self.pool(self.fc(x), mask[..., None].expand(-1, -1, 3))

    net = track(Net())
    out = net(torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]).bool())
    out.sum().backward()
    return out, net.fc.weight.grad


@case("nanmean-all-missing", "nanmean of a sensor whose readings are all missing: 0/0 inside",
      "", "zero-count", "nan", ["div", "nanmean", "mean"], module=None)
def nanmean_all_missing():
    net = track(nn.Linear(3, 1))
    x = torch.tensor([[1.0, NAN, NAN], [2.0, 3.0, NAN]])
    fill = torch.nanmean(x, dim=0)  # ORIGIN
    x = torch.where(torch.isnan(x), fill, x)
    out = net(x)
    out.sum().backward()
    return out, net.weight.grad


# =========================================================================== third helping


@case("sequential-slice-tail", "the tail of a Sequential, net[2:], is called on cached features",
      "", "log-zero", "inf", "log", module="3")
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


@case("dataset-getitem-normalise", "a Dataset standardises a blank scan in __getitem__, the DataLoader collates it",
      "", "zero-division", "nan", "div", module=None, step=2)
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


@case("median-of-nothing", "scale-and-shift alignment of a depth map: the median of no valid pixel is NaN",
      "", "zero-count", "nan", ["median"], module="loss.align")
def median_of_nothing():
    class Align(nn.Module):
        def forward(self, pred, valid):
            shift = torch.median(pred[valid])  # ORIGIN
            return pred - shift

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.align = Align()

        def forward(self, pred, gt):
            valid = gt > 0
            return (self.align(pred, valid) - self.align(gt, valid)).abs().mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 1)
            self.loss = Loss()

        def forward(self, x, gt):
            return self.loss(self.conv(x), gt)

    net = track(Net())
    loss = net(torch.rand(1, 1, 3, 3), torch.zeros(1, 1, 3, 3))
    loss.backward()
    return loss, net.conv.weight.grad


@case("logsumexp-no-negatives", "the first batch of a contrastive run: the memory holds no negatives, logsumexp of nothing is -inf",
      "", "zero-count", "inf", "logsumexp", module="bank", step=1)
def logsumexp_no_negatives():
    class Bank(nn.Module):
        def __init__(self):
            super().__init__()
            self.store = []

        def forward(self, q, pos):
            neg = torch.stack(self.store) if self.store else q.new_zeros(0, q.shape[1])
            lse = torch.logsumexp(q @ neg.t() / 0.1, dim=1)  # ORIGIN
            self.store += list(pos.detach())
            return (lse - (q * pos).sum(1) / 0.1).mean()

    class Moco(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(3, 4)
            self.bank = Bank()

        def forward(self, a, b):
            return self.bank(F.normalize(self.enc(a), dim=1), F.normalize(self.enc(b), dim=1))

    moco = track(Moco())
    opt = torch.optim.SGD(moco.parameters(), lr=0.1)
    seen = []
    for k in (1, 2):
        mark_step(k)
        loss = moco(torch.randn(2, 3), torch.randn(2, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen.append(loss.detach())
    return torch.stack(seen), moco.enc.weight


@case("smooth-l1-no-positive-roi", "box regression over the positive proposals of an image without any",
      "", "zero-count", "nan", ["smooth_l1_loss", "mean"], module="roi_heads")
def smooth_l1_no_positive_roi():
    class RoiHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls, self.box = nn.Linear(6, 2), nn.Linear(6, 4)

        def forward(self, feats, labels, targets):
            fg = torch.where(labels > 0)[0]
            loss_cls = F.cross_entropy(self.cls(feats), labels)
            loss_box = F.smooth_l1_loss(self.box(feats)[fg], targets[fg], beta=1 / 9)  # ORIGIN
            return {"loss_classifier": loss_cls, "loss_box_reg": loss_box}

    class Rcnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(3, 6)
            self.roi_heads = RoiHeads()

        def forward(self, x, labels, targets):
            return self.roi_heads(self.backbone(x).relu(), labels, targets)

    rcnn = track(Rcnn())
    losses = rcnn(torch.randn(5, 3), torch.zeros(5, dtype=torch.long), torch.randn(5, 4))
    total = sum(losses.values())
    total.backward()
    return total, rcnn.backbone.weight.grad


@case("logspace-half-schedule", "a noise schedule by torch.logspace in half passes 65504",
      "", "overflow-fp16", "inf", ["logspace"], module=None)
def logspace_half_schedule():
    net = track(nn.Linear(2, 2))
    sigmas = torch.logspace(-2, 5, 8, dtype=torch.float16)  # ORIGIN
    x = torch.randn(2, 2)
    for s, s_next in zip(sigmas.flip(0)[:-1], sigmas.flip(0)[1:]):
        d = (x - net(x)) / s.float()
        x = x + d * (s_next.float() - s.float())
    return x.detach()


@case("inverse-softplus-init", "a scale of 100 is stored as log(exp(s) - 1): exp overflows in the constructor",
      "", "overflow-exp", "inf", ["exp", "expm1"], module=None)
def inverse_softplus_init():
    class BayesLinear(nn.Module):
        def __init__(self, i, o, scale):
            super().__init__()
            self.mu = nn.Parameter(torch.zeros(o, i))
            s = torch.full((o, i), scale)
            self.rho = nn.Parameter(torch.log(torch.expm1(s)))  # ORIGIN

        def forward(self, x):
            w = self.mu + F.softplus(self.rho) * torch.randn_like(self.mu)
            return F.linear(x, w)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1, self.l2 = BayesLinear(2, 3, 0.1), BayesLinear(3, 1, 100.0)

        def forward(self, x):
            return self.l2(torch.tanh(self.l1(x)))

    net = track(Net())
    loss = net(torch.randn(4, 2)).square().mean()
    loss.backward()
    return loss, net.l1.mu.grad


@case("var-mean-single-frame", "utterance normalisation by var_mean over time, an utterance of one frame",
      "", "degrees-of-freedom", "nan", ["var_mean"], module="cmvn")
def var_mean_single_frame():
    class Cmvn(nn.Module):
        def forward(self, x):
            var, mean = torch.var_mean(x, dim=1, keepdim=True)  # ORIGIN
            return (x - mean) * torch.rsqrt(var + 1e-5)

    class Asr(nn.Module):
        def __init__(self):
            super().__init__()
            self.cmvn = Cmvn()
            self.gru = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            return self.gru(self.cmvn(x))[0][:, -1]

    asr = track(Asr().eval())
    with torch.inference_mode():
        return asr(torch.randn(1, 1, 3))


@case("manual-adam-no-eps", "Adam written by hand without eps: addcdiv_ of a zero first and a zero second moment",
      "", "zero-division", "nan", ["addcdiv_", "addcdiv"], module=None, step=1)
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


@case("conv-overflow-half", "a convolution in half sums past 65504, instance norm makes NaN of it",
      "", "overflow-fp16", "inf",
      ["convolution", "conv2d", "_convolution", "mkldnn_convolution", "_slow_conv2d_forward", "thnn_conv2d"],
      module="up.0.conv")
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


@case("silu-of-masked", "padding is filled with -inf before a SiLU instead of before the softmax: -inf * 0",
      "", "zero-times-inf", "nan", ["silu"], module="gate.act")
def silu_of_masked():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 1)
            self.act = nn.SiLU()

        def forward(self, x, pad):
            s = self.fc(x).squeeze(-1).masked_fill(pad, -INF)
            return torch.softmax(self.act(s), -1)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = Gate()

        def forward(self, x, pad):
            return (self.gate(x, pad)[..., None] * x).sum(1)

    net = track(Net())
    out = net(torch.randn(2, 3, 3), torch.tensor([[False, False, True], [False, True, True]]))
    out.sum().backward()
    return out, net.gate.fc.weight.grad


@case("masked-max-pool-empty", "masked max pooling of an all-padding row is -inf, the layer norm after it is NaN",
      "", "inf-minus-inf", "nan", ["native_layer_norm", "layer_norm"], module="norm")
def masked_max_pool_empty():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(9, 4)
            self.norm = nn.LayerNorm(4)
            self.fc = nn.Linear(4, 2)

        def forward(self, ids):
            h = self.emb(ids).masked_fill((ids == 0)[..., None], -INF)
            pooled = h.amax(dim=1)
            return self.fc(self.norm(pooled))  # ORIGIN

    net = track(Net())
    loss = F.cross_entropy(net(torch.tensor([[3, 4, 0], [0, 0, 0]])), torch.tensor([0, 1]))
    loss.backward()
    return loss, net.fc.weight.grad


@case("logit-eps-float32", "torch.logit(p, eps=1e-8): 1 - 1e-8 is 1 in float32",
      "", "eps-underflow", "inf", ["logit"], module="calib")
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


@case("von-mises-i0-overflow", "von Mises likelihood by hand: the Bessel function i0 of a large concentration overflows",
      "", "special-function", "inf", ["special_i0", "i0"], module=None)
def von_mises_i0_overflow():
    head = track(nn.Linear(2, 2))
    with torch.no_grad():
        head.bias[1] = 120.0
    mu, kappa = head(torch.randn(3, 2)).unbind(1)
    kappa = F.softplus(kappa)
    theta = torch.tensor([0.1, 2.0, -1.0])
    log_norm = torch.log(2 * math.pi * torch.special.i0(kappa))  # ORIGIN
    nll = (log_norm - kappa * torch.cos(theta - mu)).mean()
    nll.backward()
    return nll, head.weight.grad


@case("phase-wrap-zero-period", "time is wrapped by a period of zero: remainder(x, 0) is NaN",
      "", "zero-division", "nan", ["remainder", "fmod"], module="enc")
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


@case("cov-single-sample", "torch.cov of a batch of one: division by N - 1 = 0",
      "", "degrees-of-freedom", "nan", ["div", "div_", "true_divide"], module="vicreg")
def cov_single_sample():
    class Vicreg(nn.Module):
        def forward(self, z):
            c = torch.cov(z.t())  # ORIGIN
            return c.fill_diagonal_(0).pow(2).sum() / z.shape[1]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(3, 3)
            self.vicreg = Vicreg()

        def forward(self, x):
            return self.vicreg(self.proj(x))

    net = track(Net())
    loss = net(torch.randn(1, 3))
    loss.backward()
    return loss, net.proj.weight.grad


@case("fakequant-zero-row", "absmax fake quantisation with a straight-through estimator: an all-zero row has scale 0",
      "", "zero-division", "nan", ["div"], module="mlp.1")
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


@case("moe-dropped-token", "mixture of experts: all experts of a token are over capacity, its gate weights are renormalised, 0/0",
      "", "zero-division", "nan", ["div", "div_"], module="layers.1.moe.router",
      step=1)
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


@case("ddim-eta-above-one", "DDIM with eta = 1.3: 1 - abar_prev - sigma^2 is negative in the last step",
      "", "log-negative", "nan", ["sqrt", "pow"], module=None, step=1)
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
            direction = (1 - prev - sigma ** 2).sqrt() * eps  # ORIGIN
            x = prev.sqrt() * x0 + direction + sigma * torch.randn(3)
        return x

    return sample(torch.randn(2, 3), 1.3)


# CASES END

own_zoo.end(__name__)
