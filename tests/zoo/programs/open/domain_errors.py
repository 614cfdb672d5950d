"""Domain errors and divisions by zero in the forward pass."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, case, track


@case(
    "log0-manual-ce",
    "hand-written cross entropy: log of a softmax probability that underflowed to 0",
    "RasmussenLab/vamb#12",
    "log-zero",
    "inf",
    "log",
    module="criterion",
)
def log0_manual_ce():
    class ManualCE(nn.Module):
        def forward(self, logits, onehot):
            p = torch.softmax(logits, dim=-1)
            logp = torch.log(p)  # ORIGIN
            return -(onehot * logp).sum(-1).mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3)
            self.criterion = ManualCE()

        def forward(self, x, y):
            return self.criterion(self.body(x) * 400.0, y)

    net = track(Net())
    loss = net(torch.randn(5, 4), F.one_hot(torch.tensor([0, 1, 2, 0, 1]), 3).float())
    loss.backward()
    return loss, net.body.weight.grad


@case(
    "log-zero-target-labels",
    "label smoothing demo: log of a probability table that holds exact zeros",
    "harvardnlp/annotated-transformer#39",
    "log-zero",
    "inf",
    "log",
    module="smoother",
)
def log_zero_target_labels():
    class Smoother(nn.Module):
        def forward(self, prob, target):
            logp = prob.log()  # ORIGIN
            dist = torch.full_like(logp, 0.4 / 3).scatter_(1, target[:, None], 0.6)
            return F.kl_div(logp, dist, reduction="sum")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.smoother = Smoother()

        def forward(self, p, t):
            return self.smoother(p, t)

    p = torch.tensor([[0.0, 0.2, 0.7, 0.1, 0.0]] * 3)
    return track(Net())(p, torch.tensor([2, 1, 0]))


@case(
    "entropy-masked-vocab",
    "entropy as -(exp(logp) * logp): 0 * -inf on legitimately masked tokens",
    "huggingface/trl#7221",
    "zero-times-inf",
    "nan",
    "mul",
    module=None,
    notes="the -inf logits are intended; the product is what goes wrong",
)
def entropy_masked_vocab():
    head = track(nn.Linear(6, 8))
    logits = head(torch.randn(4, 6))
    banned = torch.zeros(8, dtype=torch.bool)
    banned[[2, 5]] = True
    logp = F.log_softmax(logits.masked_fill(banned, -INF), dim=-1)
    plogp = logp.exp() * logp  # ORIGIN
    return -plogp.sum(-1).mean()


@case(
    "supcon-no-positive",
    "supervised contrastive loss, an anchor without any positive: mask.sum(1) == 0",
    "HobbitLong/SupContrast#141",
    "zero-count",
    "nan",
    "div",
    module="criterion",
)
def supcon_no_positive():
    class SupCon(nn.Module):
        def forward(self, z, labels):
            sim = z @ z.t() / 0.8
            eye = torch.eye(len(z), dtype=torch.bool)
            logp = F.log_softmax(sim.masked_fill(eye, -1e9), dim=1)
            pos = (labels[:, None] == labels[None]) & ~eye
            per_anchor = (logp * pos).sum(1) / pos.sum(1)  # ORIGIN
            return -per_anchor.mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(5, 3)
            self.criterion = SupCon()

        def forward(self, x, y):
            return self.criterion(F.normalize(self.enc(x), dim=1), y)

    return track(Net())(torch.randn(4, 5), torch.tensor([0, 1, 1, 3]))


@case(
    "instance-var-1x1",
    "instance variance over a 1x1 feature map: unbiased var of one element",
    "digantamisra98/EvoNorm#5",
    "degrees-of-freedom",
    "nan",
    "var",
    module="stages.1.norm",
)
def instance_var_1x1():
    class InstanceStd(nn.Module):
        def forward(self, x):
            v = x.var(dim=(2, 3), keepdim=True)  # ORIGIN
            return x / (v + 1e-5).sqrt()

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, stride=2, padding=1)
            self.norm = InstanceStd()

        def forward(self, x):
            return self.norm(self.conv(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList([Stage(), Stage()])

        def forward(self, x):
            for s in self.stages:
                x = s(x)
            return x

    return track(Net())(torch.randn(2, 2, 4, 4)[:, :, :3, :2])


@case(
    "nerf-disparity",
    "disparity 1/(depth/acc) on a ray that hits nothing: 0/0 survives torch.max(eps, .)",
    "yenchenlin/nerf-pytorch#28",
    "zero-division",
    "nan",
    "div",
    module="renderer",
)
def nerf_disparity():
    class Renderer(nn.Module):
        def forward(self, sigma, z):
            alpha = 1.0 - torch.exp(-F.relu(sigma) * 0.1)
            trans = torch.cumprod(1.0 - alpha + 1e-10, dim=-1)
            w = alpha * trans
            acc, depth = w.sum(-1), (w * z).sum(-1)
            mean_depth = depth / acc  # ORIGIN
            return 1.0 / torch.max(torch.full_like(depth, 1e-10), mean_depth)

    class Nerf(nn.Module):
        def __init__(self):
            super().__init__()
            self.renderer = Renderer()

        def forward(self, s, z):
            return self.renderer(s, z)

    sigma = torch.randn(3, 5)
    sigma[1] = -1.0
    return track(Nerf())(sigma, torch.linspace(2, 6, 5).expand(3, 5))


@case(
    "cosine-zero-embedding",
    "cosine similarity with a sentence whose averaged word vectors are all zero",
    "huggingface/sentence-transformers#589",
    "zero-division",
    "nan",
    "div",
    module=None,
)
def cosine_zero_embedding():
    emb = track(nn.EmbeddingBag(6, 4, mode="mean", padding_idx=0))
    docs = emb(torch.tensor([[1, 2, 3], [0, 0, 0], [4, 5, 0]]))
    unit = docs / docs.norm(dim=1, keepdim=True)  # ORIGIN
    scores = unit @ unit.t()
    return scores


@case(
    "so3-log-identity",
    "rotation log map at the identity: a clamped angle loses its sign and becomes 0/0",
    "facebookresearch/pytorch3d#189",
    "zero-division",
    "nan",
    "div",
    module="log_map",
)
def so3_log_identity():
    class LogMap(nn.Module):
        def forward(self, R):
            cos = (R.diagonal(dim1=-2, dim2=-1).sum(-1) - 1.0) * 0.5
            phi = torch.acos(cos.clamp(-1.0, 1.0))
            phi_valid = phi.abs().clamp(min=1e-4) * phi.sign()
            factor = phi_valid / (2.0 * phi_valid.sin())  # ORIGIN
            return factor[:, None, None] * (R - R.transpose(1, 2))

    class Pose(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_map = LogMap()

        def forward(self, R):
            return self.log_map(R)

    return track(Pose())(torch.eye(3).expand(2, 3, 3))


@case(
    "msssim-negative-base",
    "MS-SSIM of anti-correlated images: negative contrast raised to a fractional power",
    "VainF/pytorch-msssim#7",
    "pow-domain",
    "nan",
    "pow",
    module="metric",
)
def msssim_negative_base():
    class MsSsim(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.tensor([0.3, 0.7]))

        def forward(self, x, y):
            cs = []
            for _ in range(2):
                cov = ((x - x.mean()) * (y - y.mean())).mean()
                cs.append(2 * cov / (x.var() + y.var() + 1e-4))
                x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
            return (torch.stack(cs) ** self.w).prod()  # ORIGIN

    class Eval(nn.Module):
        def __init__(self):
            super().__init__()
            self.metric = MsSsim()

        def forward(self, x, y):
            return self.metric(x, y)

    x = torch.rand(1, 1, 8, 8)
    return track(Eval())(x, 1 - x)


@case(
    "tanhnormal-atanh-one",
    "log-probability of an expert action at the edge of the box: atanh(1)",
    "rlworkgroup/garage#2129",
    "inverse-trig",
    "inf",
    "atanh",
    module="dist",
)
def tanhnormal_atanh_one():
    class TanhNormal(nn.Module):
        def forward(self, mean, action):
            pre = torch.atanh(action)  # ORIGIN
            return (-0.5 * (pre - mean).pow(2) - torch.log1p(-action.pow(2) + 1e-6)).sum(-1)

    class BC(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 2)
            self.dist = TanhNormal()

        def forward(self, obs, act):
            return -self.dist(self.net(obs), act).mean()

    act = torch.tensor([[0.3, -0.2], [1.0, 0.5]])
    return track(BC())(torch.randn(2, 3), act)


@case(
    "ce-all-ignored",
    "cross entropy of a batch whose labels are all ignore_index: 0/0 inside nll_loss",
    "pytorch/pytorch#70348",
    "zero-count",
    "nan",
    ["nll_loss_forward", "nll_loss2d_forward"],
    module="loss_fct",
)
def ce_all_ignored():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls = nn.Linear(4, 5)
            self.loss_fct = nn.CrossEntropyLoss(ignore_index=-100)

        def forward(self, x, y):
            return self.loss_fct(self.cls(x), y)  # ORIGIN

    model = track(Tagger())
    loss = model(torch.randn(6, 4), torch.full((6,), -100))
    loss.backward()
    return (loss,)


@case(
    "ctc-input-too-short",
    "CTC: fewer frames than labels, the loss is infinite and its gradient NaN",
    "ypwhs/captcha_break#29",
    "ctc",
    "inf",
    "_ctc_loss",
    module="ctc",
)
def ctc_input_too_short():
    class Crnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 6)
            self.ctc = nn.CTCLoss()

        def forward(self, x, y, xl, yl):
            logp = F.log_softmax(self.fc(x), dim=-1)
            return self.ctc(logp, y, xl, yl)  # ORIGIN

    model = track(Crnn())
    loss = model(torch.randn(3, 1, 4), torch.tensor([[1, 2, 3, 4]]), torch.tensor([3]), torch.tensor([4]))
    loss.backward()
    return loss, model.fc.weight.grad


@case(
    "stereo-metric-no-valid-pixel",
    "error over valid pixels of a disparity map that has none",
    "feihuzhang/GANet#89",
    "zero-count",
    "nan",
    "div",
    module=None,
)
def stereo_metric_no_valid_pixel():
    net = track(nn.Conv2d(1, 1, 3, padding=1))
    disp_gt = torch.full((1, 1, 6, 6), 250.0)
    with torch.no_grad():
        pred = net(torch.randn(1, 1, 6, 6))
        valid = (disp_gt < 192).float()
        err = ((pred - disp_gt).abs() * valid).sum() / valid.sum()  # ORIGIN
    return err


@case(
    "minsnr-zero-terminal",
    "min-SNR loss weight min(snr, g)/snr with a zero-terminal-SNR schedule: 0/0",
    "huggingface/diffusers#4505",
    "zero-division",
    "nan",
    "div",
    module=None,
)
def minsnr_zero_terminal():
    unet = track(nn.Linear(4, 4))
    abar = torch.linspace(1.0, 0.0, 11)[1:]
    t = torch.tensor([2, 9])
    snr = (abar / (1 - abar))[t]
    weight = torch.minimum(snr, torch.full_like(snr, 5.0)) / snr  # ORIGIN
    x, noise = torch.randn(2, 4), torch.randn(2, 4)
    loss = (weight * (unet(x) - noise).pow(2).mean(1)).mean()
    loss.backward()
    return loss, unet.weight.grad


@case(
    "flowmatch-one-step",
    "stretching a one-step sigma schedule to its terminal value divides by 1 - sigma == 0",
    "huggingface/diffusers#14411",
    "zero-division",
    "nan",
    "div",
    module="scheduler",
)
def flowmatch_one_step():
    class Scheduler(nn.Module):
        def forward(self, n):
            sigmas = torch.linspace(1.0, 1.0 / n, n)
            one_minus = 1.0 - sigmas
            scale = one_minus[-1] / (1.0 - 0.1)
            return 1.0 - one_minus / scale  # ORIGIN

    class Pipe(nn.Module):
        def __init__(self):
            super().__init__()
            self.scheduler = Scheduler()
            self.net = nn.Linear(4, 4)

        def forward(self, x, n):
            for s in self.scheduler(n):
                x = x - s * self.net(x)
            return x

    return track(Pipe())(torch.randn(2, 4), 1)


@case(
    "gcn-negative-degree",
    "symmetric GCN normalisation with a negative weighted degree: pow(-0.5) is NaN, not inf",
    "pyg-team/pytorch_geometric#61",
    "pow-domain",
    "nan",
    "pow",
    module="conv.norm",
)
def gcn_negative_degree():
    class Norm(nn.Module):
        def forward(self, adj):
            deg = adj.sum(1)
            dis = deg.pow(-0.5)  # ORIGIN
            dis = dis.masked_fill(dis == INF, 0.0)
            return dis[:, None] * adj * dis[None]

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.lin = nn.Linear(3, 2)

        def forward(self, x, adj):
            return self.norm(adj) @ self.lin(x)

    class Gnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = Conv()

        def forward(self, x, adj):
            return self.conv(x, adj)

    adj = torch.tensor([[0.0, 1.0, -3.0], [1.0, 0.0, 1.0], [-3.0, 1.0, 4.0]])
    return track(Gnn())(torch.randn(3, 3), adj)


@case(
    "logdet-singular",
    "log-determinant of a singular kernel matrix is -inf",
    "pytorch/pytorch#154312",
    "linalg",
    "inf",
    ["log", "_linalg_slogdet", "_linalg_det"],
    module="prior",
)
def logdet_singular():
    class Prior(nn.Module):
        def forward(self, K):
            return 0.5 * torch.logdet(K)  # ORIGIN

    class Gp(nn.Module):
        def __init__(self):
            super().__init__()
            self.prior = Prior()

        def forward(self, K):
            return self.prior(K)

    K = torch.tensor([[2.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    return track(Gp())(K)


@case(
    "standardise-constant-column",
    "features are standardised with their std; one column is constant",
    "https://www.codegenes.net/blog/pytorch-cost-result-is-nan",
    "zero-division",
    "nan",
    "div",
    module=None,
)
def standardise_constant_column():
    net = track(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
    x = torch.randn(6, 3)
    x[:, 1] = 7.0
    x = (x - x.mean(0)) / x.std(0)  # ORIGIN
    loss = net(x).pow(2).mean()
    loss.backward()
    return loss, net[0].weight.grad


@case(
    "belm-alpha-zero",
    "sampler coefficient sigma_t / alpha_t at t = T of a zero-SNR schedule",
    "zituitui/BELM#8",
    "zero-division",
    "inf",
    "div",
    module="sampler",
)
def belm_alpha_zero():
    class Sampler(nn.Module):
        def forward(self, x, eps, abar):
            sigma_bar = (1 - abar).sqrt() / abar.sqrt()  # ORIGIN
            h = sigma_bar[1:] - sigma_bar[:-1]
            return x + h[0] * eps + (h[1] - h[0]) * x

    class Pipe(nn.Module):
        def __init__(self):
            super().__init__()
            self.eps = nn.Linear(2, 2)
            self.sampler = Sampler()

        def forward(self, x, abar):
            return self.sampler(x, self.eps(x), abar)

    return track(Pipe())(torch.randn(2, 2), torch.tensor([0.0, 0.3, 0.8]))


@case(
    "cacgmm-complex-zero",
    "direction statistics of a complex multichannel spectrum with a silent bin",
    "tky823/ssspy#275 (PyTorch analogue)",
    "complex",
    "nan",
    "div",
    module="spatial",
)
def cacgmm_complex_zero():
    class Spatial(nn.Module):
        def forward(self, z):
            n = z.abs().pow(2).sum(-1, keepdim=True).sqrt()
            unit = z / n  # ORIGIN
            return (unit[..., :, None] * unit[..., None, :].conj()).mean(0)

    class Bss(nn.Module):
        def __init__(self):
            super().__init__()
            self.spatial = Spatial()

        def forward(self, z):
            return self.spatial(z)

    z = torch.complex(torch.randn(4, 2), torch.randn(4, 2))
    z[2] = 0
    return track(Bss())(z).abs()
