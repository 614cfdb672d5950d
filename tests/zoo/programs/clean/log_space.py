"""Dynamic programming and log space."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, case, mark_step, track


@case(
    "ctc-alpha-by-hand",
    "CTC's alpha recursion in log space from -inf, against F.ctc_loss",
    "",
    "clean-log-space",
    "clean",
)
def ctc_alpha_by_hand():
    net = track(nn.Linear(4, 5))
    logp = F.log_softmax(net(torch.randn(6, 4)), -1)
    target = torch.tensor([2, 2, 1])
    ref = F.ctc_loss(logp[:, None], target[None], torch.tensor([6]), torch.tensor([3]), reduction="sum")
    ref.backward()
    with torch.no_grad():
        ext = torch.zeros(7, dtype=torch.long)
        ext[1::2] = target
        skip = torch.zeros(7, dtype=torch.bool)
        skip[2:] = (ext[2:] != 0) & (ext[2:] != ext[:-2])
        alpha = torch.full((7,), -INF)
        alpha[:2] = logp[0, ext[:2]]
        for t in range(1, 6):
            one = F.pad(alpha[:-1], (1, 0), value=-INF)
            two = F.pad(alpha[:-2], (2, 0), value=-INF).masked_fill(~skip, -INF)
            alpha = torch.logsumexp(torch.stack([alpha, one, two]), 0) + logp[t, ext]
        nll = -torch.logaddexp(alpha[-1], alpha[-2])
    return nll, ref, nll - ref.detach(), net.weight.grad


@case(
    "hmm-left-right-baum-welch",
    "left-to-right HMM: log of structural zeros, forward-backward, one EM step",
    "",
    "clean-log-space",
    "clean",
)
def hmm_left_right_baum_welch():
    start = torch.tensor([1.0, 0.0, 0.0])
    trans = torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]])
    emit = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    obs = torch.tensor([0, 0, 1, 1, 0, 1])
    log_a, log_b = trans.log(), emit.log()
    alpha = [start.log() + log_b[:, obs[0]]]
    for o in obs[1:]:
        alpha.append(torch.logsumexp(alpha[-1][:, None] + log_a, 0) + log_b[:, o])
    beta = [torch.zeros(3)]
    for o in obs.flip(0)[:-1]:
        beta.insert(0, torch.logsumexp(log_a + log_b[:, o] + beta[0], 1))
    alpha, beta = torch.stack(alpha), torch.stack(beta)
    ll = torch.logsumexp(alpha[-1], 0)
    gamma = (alpha + beta - ll).exp()
    xi = (alpha[:-1, :, None] + log_a + (log_b[:, obs[1:]].t() + beta[1:])[:, None] - ll).exp()
    new_a = xi.sum(0) / xi.sum((0, 2))[:, None]
    return ll, gamma, new_a


@case(
    "hmm-marginals-by-autograd",
    "posterior marginals as the gradient of log Z with respect to log potentials",
    "",
    "clean-log-space",
    "clean",
    notes="the potentials are a leaf that requires grad and holds log(0) for forbidden transitions",
)
def hmm_marginals_by_autograd():
    allowed = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    score = torch.rand(5, 3, 3)
    potentials = (score * allowed).log()
    potentials.requires_grad_()
    alpha = torch.zeros(3)
    for t in range(5):
        alpha = torch.logsumexp(alpha[:, None] + potentials[t], 0)
    log_z = torch.logsumexp(alpha, 0)
    (marginals,) = torch.autograd.grad(log_z, potentials)
    return log_z, marginals, marginals.sum((1, 2))


@case(
    "crf-constrained-decode",
    "a CRF layer with BIO constraints as -inf: loss, backward and Viterbi",
    "",
    "clean-log-space",
    "clean",
)
def crf_constrained_decode():
    class Crf(nn.Module):
        def __init__(self, tags):
            super().__init__()
            self.transitions = nn.Parameter(torch.randn(tags, tags) * 0.1)
            self.start = nn.Parameter(torch.zeros(tags))
            forbidden = torch.zeros(tags, tags, dtype=torch.bool)
            forbidden[0, 2] = True  # O -> I
            self.register_buffer("forbidden", forbidden)
            self.register_buffer("start_bias", torch.tensor([0.0, 0.0, -INF]))

        def _trans(self):
            return self.transitions.masked_fill(self.forbidden, float("-inf"))

        def forward(self, em, tags):
            tr, st = self._trans(), self.start + self.start_bias
            gold = st[tags[0]] + em[0, tags[0]]
            alpha = st + em[0]
            for t in range(1, len(em)):
                gold = gold + tr[tags[t - 1], tags[t]] + em[t, tags[t]]
                alpha = torch.logsumexp(alpha[:, None] + tr, 0) + em[t]
            return torch.logsumexp(alpha, 0) - gold

        @torch.no_grad()
        def decode(self, em):
            v, back = self.start + self.start_bias + em[0], []
            for t in range(1, len(em)):
                v, ptr = (v[:, None] + self._trans()).max(0)
                v = v + em[t]
                back.append(ptr)
            path = [int(v.argmax())]
            for ptr in reversed(back):
                path.insert(0, int(ptr[path[0]]))
            return path, v.max().item()

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.proj, self.crf = nn.GRU(4, 5), nn.Linear(5, 3), Crf(3)

        def forward(self, x):
            return self.proj(self.rnn(x)[0])

    net = track(Tagger())
    opt = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=1e-4)
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    for k in range(1, 4):
        mark_step(k)
        loss = net.crf(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    path, score = net.crf.decode(net(x))
    return loss, net.crf.transitions, torch.tensor(path).float(), torch.tensor(score)


@case(
    "logcumsumexp-prefix",
    "logcumsumexp, logaddexp and logaddexp2 over sequences that start with -inf",
    "",
    "clean-log-space",
    "clean",
)
def logcumsumexp_prefix():
    net = track(nn.Linear(3, 1))
    x = net(torch.randn(7, 3)).squeeze(1)
    lead = torch.cat([torch.full((2,), -INF), x])
    c = torch.logcumsumexp(lead, 0)
    tail = c[2:]
    one_sided = torch.logaddexp(x, torch.tensor([-INF] * 3 + [0.0] * 4))
    two = torch.logaddexp2(x, torch.tensor(-INF))
    loss = (tail + one_sided + two).mean()
    loss.backward()
    return loss, tail.clone(), net.weight.grad


@case(
    "floyd-warshall-bellman-ford",
    "shortest paths from +inf, min-plus products and scatter_reduce(amin)",
    "",
    "clean-dp",
    "clean",
)
def floyd_warshall_bellman_ford():
    n = 6
    src = torch.tensor([0, 0, 1, 2, 3])
    dst = torch.tensor([1, 2, 3, 3, 4])
    w = torch.tensor([2.0, 5.0, 1.0, 0.5, 3.0])
    d = torch.full((n, n), float("inf"))
    d[src, dst] = w
    d.fill_diagonal_(0)
    for k in range(n):
        d = torch.minimum(d, d[:, k : k + 1] + d[k : k + 1])
    bf = torch.full((n,), math.inf)
    bf[0] = 0
    for _ in range(n - 1):
        bf = bf.scatter_reduce(0, dst, bf[src] + w, "amin", include_self=True)
    assert torch.equal(bf, d[0])
    ecc = torch.where(torch.isinf(d), torch.zeros(()), d).amax(1)
    hops = torch.where(bf.isinf(), torch.full_like(bf, -1.0), bf)
    emb = track(nn.Embedding(8, 2))
    bias = emb(d.nan_to_num(posinf=7.0).clamp(max=7).long())
    bias.sum().backward()
    return ecc, hops, emb.weight.grad


@case(
    "dtw-soft-dtw",
    "DTW with an inf border, and soft-DTW with a finite gamma trained through it",
    "",
    "clean-dp",
    "clean",
)
def dtw_soft_dtw():
    net = track(nn.Linear(1, 1))
    x = net(torch.randn(5, 1)).squeeze(1)
    y = torch.randn(4)
    cost = (x[:, None] - y[None]).square()
    with torch.no_grad():
        r = torch.full((6, 5), math.inf)
        r[0, 0] = 0.0
        for i in range(1, 6):
            for j in range(1, 5):
                r[i, j] = cost[i - 1, j - 1] + min(r[i - 1, j], r[i, j - 1], r[i - 1, j - 1])
        hard = r[5, 4].clone()
    inf, rows = torch.tensor(math.inf), None
    prev = [torch.zeros(())] + [inf] * 4
    for i in range(5):
        rows = [inf]
        for j in range(4):
            z = torch.stack([prev[j], prev[j + 1], rows[j]])
            rows.append(cost[i, j] - 0.1 * torch.logsumexp(-z / 0.1, 0))
        prev = rows
    soft = prev[4]
    soft.backward()
    return hard, soft, net.weight.grad


@case(
    "log-sinkhorn-forbidden",
    "log-domain Sinkhorn with forbidden pairs at inf cost and an empty marginal",
    "",
    "clean-log-space",
    "clean",
)
def log_sinkhorn_forbidden():
    class Sinkhorn(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(2, 2)

        def forward(self, x, y, forbidden):
            cost = torch.cdist(self.f(x), y).masked_fill(forbidden, math.inf)
            with torch.no_grad():
                log_k = -cost / 0.2
                a, b = torch.full((4,), 0.25), torch.tensor([0.5, 0.5, 0.0])
                u, v = torch.zeros(4), torch.zeros(3)
                for _ in range(15):
                    u = a.log() - torch.logsumexp(log_k + v, 1)
                    v = b.log() - torch.logsumexp(log_k + u[:, None], 0)
                plan = (log_k + u[:, None] + v).exp()
            return (plan * cost.masked_fill(forbidden, 0.0)).sum(), plan

    net = track(Sinkhorn())
    forbidden = torch.zeros(4, 3, dtype=torch.bool)
    forbidden[0, 1] = forbidden[2, 0] = True
    loss, plan = net(torch.randn(4, 2), torch.randn(3, 2), forbidden)
    loss.backward()
    return loss, plan, net.f.weight.grad


@case(
    "multinomial-diffusion-log-onehot",
    "log of a one-hot table, mixed by logaddexp with the uniform kernel",
    "",
    "clean-log-space",
    "clean",
)
def multinomial_diffusion_log_onehot():
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.out = nn.Embedding(4, 6), nn.Linear(6, 4)

        def forward(self, x):
            return F.log_softmax(self.out(self.emb(x)), -1)

    net = track(Denoiser())
    x0 = torch.tensor([0, 3, 1, 1])
    log_x0 = F.one_hot(x0, 4).float().log()
    log_a, log_1a = math.log(0.7), math.log(0.3)
    log_xt = torch.logaddexp(log_x0 + log_a, torch.tensor(log_1a - math.log(4.0)))
    gumbel = -torch.log(-torch.log(torch.rand(4, 4).clamp(1e-20, 1)) + 1e-20)
    xt = (log_xt + gumbel).argmax(-1)
    log_pred = net(xt)
    kl = (log_xt.exp() * (log_xt - torch.logaddexp(log_pred + log_a, torch.tensor(log_1a - math.log(4.0))))).sum(-1)
    nll = -(log_x0.exp() * log_pred).sum(-1)
    loss = (kl + nll).mean()
    loss.backward()
    return loss, log_xt, net.out.weight.grad


@case(
    "nested-pad-neginf-lse", "ragged rows padded with -inf, logsumexp and max over them", "", "clean-log-space", "clean"
)
def nested_pad_neginf_lse():
    net = track(nn.Linear(2, 1))
    rows = [net(torch.randn(n, 2)).squeeze(1) for n in (3, 1, 4)]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float("-inf"))
    lse = padded.logsumexp(1)
    top = padded.max(1).values
    nested = torch.nested.as_nested_tensor([r.detach() for r in rows])
    again = torch.nested.to_padded_tensor(nested, -INF).logsumexp(1)
    (lse.sum() + top.sum()).backward()
    return lse, top, again, net.weight.grad


@case(
    "sparse-softmax",
    "softmax over a sparse matrix with an empty row; absent entries count as -inf",
    "",
    "clean-log-space",
    "clean",
)
def sparse_softmax():
    net = track(nn.Linear(2, 1))
    idx = torch.tensor([[0, 0, 2, 2, 2], [1, 3, 0, 1, 2]])
    val = net(torch.randn(5, 2)).squeeze(1)
    s = torch.sparse_coo_tensor(idx, val, (4, 4))
    p = torch.sparse.softmax(s, 1).to_dense()
    lp = torch.sparse.log_softmax(s, 1).coalesce()
    loss = (p * torch.arange(4.0)).sum() - lp.values().mean()
    loss.backward()
    return loss, p, net.weight.grad


@case(
    "balanced-softmax-empty-class",
    "logit adjustment by log class counts; a class without samples gets -inf",
    "",
    "clean-log-space",
    "clean",
)
def balanced_softmax_empty_class():
    class BalancedSoftmax(nn.Module):
        def __init__(self, counts):
            super().__init__()
            self.register_buffer("log_prior", counts.log())

        def forward(self, logits, y):
            return F.cross_entropy(logits + self.log_prior, y)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.criterion = nn.Linear(3, 4), BalancedSoftmax(torch.tensor([10.0, 3.0, 0.0, 1.0]))

        def forward(self, x, y):
            return self.criterion(self.fc(x), y)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(4, 3), torch.tensor([0, 1, 3, 0]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.fc.weight


@case(
    "adjusted-prior-parameter",
    "class log-priors learned from counts with a zero: softmax makes it probability 0",
    "",
    "clean-log-space",
    "clean",
    debatable="docs/harm.md assumes that weights are never infinite on purpose; log(0) of a structural zero is",
)
def adjusted_prior_parameter():
    class Prior(nn.Module):
        def __init__(self, counts):
            super().__init__()
            self.log_pi = nn.Parameter(torch.log(counts / counts.sum()))

        def forward(self, log_lik):
            return torch.logsumexp(log_lik + F.log_softmax(self.log_pi, -1), -1)

    prior = track(Prior(torch.tensor([2.0, 0.0, 3.0])))
    opt = torch.optim.SGD(prior.parameters(), lr=0.1)
    for k in range(1, 3):
        mark_step(k)
        loss = -prior(torch.randn(5, 3)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, prior.log_pi.softmax(-1)
