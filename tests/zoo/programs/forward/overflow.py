"""Overflow of exponentials and arithmetic in log space."""

import math

import torch
import torch.distributions as D
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "ssd-segsum-exp-then-tril",
    "state-space duality: exp of the upper triangle of segment sums overflows, then times 0",
    "",
    "overflow-exp",
    "inf",
    "exp",
    module="layers.0.mixer",
)
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


@case(
    "gla-cumprod-inverse",
    "gated linear attention divides keys by a cumulative product of gates that underflows to 0",
    "",
    "zero-division",
    "inf",
    "div",
    module=None,
)
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


@case(
    "log-cosh-loss",
    "log-cosh regression loss of an outlier: cosh overflows above 89",
    "",
    "overflow-exp",
    "inf",
    "cosh",
    module="loss.pix",
    step=3,
)
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


@case(
    "coupling-flow-exp",
    "affine coupling flow: exp of an unbounded scale overflows; halves are split and concatenated",
    "",
    "overflow-exp",
    "inf",
    "exp",
    module="flows.2",
)
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


@case(
    "clip-logit-scale-not-log",
    "CLIP's logit_scale set to 100 instead of log(100): exp(100) is inf",
    "",
    "overflow-exp",
    "inf",
    "exp",
    module="",
)
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


@case(
    "relu-rnn-explodes",
    "nn.RNN(nonlinearity='relu') with a large recurrent weight overflows along the sequence",
    "",
    "divergence",
    "inf",
    ["mm", "addmm", "add", "add_", "linear", "rnn_relu", "_addmm_activation", "mul"],
    module="rnn",
)
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


@case(
    "gru-cell-manual-state",
    "a GRU cell's state is rescaled by its norm each step; the initial state is zero",
    "",
    "zero-division",
    "nan",
    "div",
    module="cellwrap",
    step=1,
)
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


@case(
    "nb-zero-total-count",
    "NegativeBinomial(total_count=0).log_prob of a positive count: lgamma(0) is inf",
    "",
    "special-function",
    "inf",
    "lgamma",
    module="decoder.rec",
)
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


@case(
    "beta-density-at-edge",
    "Beta(0.5, 0.5) log density of an action at 0: xlogy(-0.5, 0) is +inf",
    "",
    "log-zero",
    "inf",
    "xlogy",
    module=None,
)
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


@case(
    "kl-categorical-support",
    "kl_divergence of two Categoricals, the second with an impossible class: set to inf",
    "",
    "log-zero",
    "inf",
    ["index_put_", "_index_put_impl_"],
    module=None,
    debatable="inf is the right value of this KL divergence; who made it is the library's assignment",
)
def kl_categorical_support():
    net = track(nn.Linear(3, 3))
    p = D.Categorical(logits=net(torch.randn(2, 3)))
    q = D.Categorical(probs=torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]))
    kl = D.kl_divergence(p, q)  # ORIGIN
    kl.mean().backward()
    return kl, net.weight.grad


@case(
    "bce-pos-weight-no-positive",
    "BCEWithLogits with pos_weight = negatives / positives of a batch without a positive",
    "",
    "zero-division",
    "inf",
    "div",
    module=None,
    step=2,
)
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


@case(
    "ctc-repeated-labels",
    "CTC with repeated labels needs a blank between them: 5 frames for 'aabb' are one too few",
    "",
    "ctc",
    "inf",
    "_ctc_loss",
    module="crnn.loss",
)
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


@case(
    "cdist-overflow-rbf",
    "RBF kernel of features of size 1e20: cdist overflows, the bandwidth is inf, inf / inf",
    "",
    "overflow",
    "inf",
    ["_euclidean_dist", "_cdist_forward", "cdist"],
    module="mmd",
)
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


@case(
    "inverse-softplus-init",
    "a scale of 100 is stored as log(exp(s) - 1): exp overflows in the constructor",
    "",
    "overflow-exp",
    "inf",
    ["exp", "expm1"],
    module=None,
)
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


@case(
    "von-mises-i0-overflow",
    "von Mises likelihood by hand: the Bessel function i0 of a large concentration overflows",
    "",
    "special-function",
    "inf",
    ["special_i0", "i0"],
    module=None,
)
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
