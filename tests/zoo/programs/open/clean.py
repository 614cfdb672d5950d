"""Programs that hold non-finite values on purpose and are right."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, NAN, case, mark_step, track


@case(
    "clean-key-padding-mha",
    "nn.MultiheadAttention with some padded keys in every sample",
    "georg-wolflein/good-features#1",
    "clean-mask",
    "clean",
)
def clean_key_padding_mha():
    attn = track(nn.MultiheadAttention(4, 2, batch_first=True))
    x = torch.randn(2, 3, 4)
    pad = torch.tensor([[False, False, True], [False, True, True]])
    out, w = attn(x, x, x, key_padding_mask=pad)
    out.sum().backward()
    return out, w, attn.in_proj_weight.grad


@case(
    "clean-transformer-decoder-mask",
    "nn.TransformerEncoder with the square subsequent -inf mask, one training step",
    "jadore801120/attention-is-all-you-need-pytorch#5 (healthy mask)",
    "clean-mask",
    "clean",
)
def clean_transformer_decoder_mask():
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
    model = track(nn.TransformerEncoder(layer, 2))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    mask = torch.full((5, 5), -INF).triu(1)
    loss = model(torch.randn(2, 5, 4), mask=mask).pow(2).mean()
    loss.backward()
    opt.step()
    return loss, next(model.parameters())


@case(
    "clean-wav2vec-neg-is-pos",
    "contrastive logits: negatives identical to the positive are set to -inf",
    "facebookresearch/fairseq#3735",
    "clean-mask",
    "clean",
)
def clean_wav2vec_neg_is_pos():
    proj = track(nn.Linear(4, 4))
    x, y = proj(torch.randn(3, 4)), torch.randn(3, 4)
    neg = torch.stack([y.roll(1, 0), y, y.roll(2, 0)])
    same = (y == neg).all(-1)
    logits = torch.cosine_similarity(x, torch.cat([y[None], neg]), dim=-1) / 0.1
    logits[1:] = logits[1:].masked_fill(same, -INF)
    loss = F.cross_entropy(logits.t(), torch.zeros(3, dtype=torch.long))
    loss.backward()
    return loss, proj.weight.grad


@case(
    "clean-masked-categorical-entropy",
    "Categorical(logits with -inf).entropy(): clamped inside the distribution",
    "pytorch/pytorch#40553",
    "clean-mask",
    "clean",
)
def clean_masked_categorical_entropy():
    pi = track(nn.Linear(3, 4))
    logits = pi(torch.randn(5, 3)).masked_fill(torch.tensor([False, True, False, False]), -INF)
    dist = torch.distributions.Categorical(logits=logits)
    act = dist.sample()
    ent = dist.entropy()
    loss = -(dist.log_prob(act) + 0.01 * ent).mean()
    loss.backward()
    return ent, loss, pi.weight.grad


@case(
    "clean-topk-sampling",
    "top-k filtering sets the other logits to -inf before sampling",
    "karpathy/nanoGPT (generate); see DLLXW/baby-llama2-chinese#33",
    "clean-mask",
    "clean",
)
def clean_topk_sampling():
    lm = track(nn.Linear(4, 10))
    with torch.no_grad():
        logits = lm(torch.randn(3, 4)) / 0.8
        v, _ = torch.topk(logits, 3)
        logits[logits < v[:, [-1]]] = -INF
        prob = torch.softmax(logits, dim=-1)
        idx = torch.multinomial(prob, 2)
    return prob, idx.float()


@case(
    "clean-logsumexp-some-neginf",
    "logsumexp over rows with some -inf entries, forward and backward",
    "pytorch/pytorch#31829 (partly masked)",
    "clean-log-space",
    "clean",
)
def clean_logsumexp_some_neginf():
    w = track(nn.Linear(3, 5))
    x = w(torch.randn(4, 3)).masked_fill(torch.arange(5) > 2, -INF)
    loss = torch.logsumexp(x, -1).mean()
    loss.backward()
    return loss, w.weight.grad


@case(
    "clean-ctc-zero-infinity",
    "CTC with zero_infinity=True and one utterance that is too short",
    "wenet-e2e/wenet#2299",
    "clean-sanitised",
    "clean",
)
def clean_ctc_zero_infinity():
    fc = track(nn.Linear(4, 6))
    logp = F.log_softmax(fc(torch.randn(5, 2, 4)), dim=-1)
    loss = F.ctc_loss(
        logp, torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]]), torch.tensor([3, 5]), torch.tensor([4, 2]), zero_infinity=True
    )
    loss.backward()
    return loss, fc.weight.grad


@case(
    "clean-online-softmax",
    "flash-style running maximum starts at -inf; exp(-inf - m) is 0",
    "Dao-AILab/flash-attention#1884",
    "clean-init",
    "clean",
)
def clean_online_softmax():
    proj = track(nn.Linear(4, 4))
    with torch.no_grad():
        q, k, v = torch.randn(3, 4), proj(torch.randn(6, 4)), torch.randn(6, 4)
        m = torch.full((3, 1), -INF)
        l, o = torch.zeros(3, 1), torch.zeros(3, 4)
        for kb, vb in zip(k.split(2), v.split(2)):
            s = q @ kb.t()
            m_new = torch.maximum(m, s.amax(1, keepdim=True))
            p, c = torch.exp(s - m_new), torch.exp(m - m_new)
            l, o, m = l * c + p.sum(1, keepdim=True), o * c + p @ vb, m_new
        out = o / l
    return out, out - torch.softmax(q @ k.t(), -1) @ v


@case(
    "clean-beam-search-init",
    "beam scores start as 0 and -inf; only the first beam is alive at step 0",
    "huggingface/transformers#40093",
    "clean-init",
    "clean",
)
def clean_beam_search_init():
    lm = track(nn.Embedding(7, 7))
    with torch.no_grad():
        scores = torch.tensor([0.0, -INF, -INF])
        tok = torch.zeros(3, dtype=torch.long)
        for _ in range(4):
            total = (scores[:, None] + F.log_softmax(lm(tok), -1)).view(-1)
            scores, idx = total.topk(3)
            tok = idx % 7
    return (scores,)


@case(
    "clean-missing-data-nanmean",
    "missing readings are NaN; statistics with nanmean and nansum",
    "pytorch/pytorch#89543 (healthy form)",
    "clean-missing-data",
    "clean",
)
def clean_missing_data_nanmean():
    x = torch.tensor([[1.0, NAN, 3.0], [NAN, 2.0, 5.0], [2.0, 4.0, NAN]])
    mean = torch.nanmean(x, dim=0)
    x = torch.where(torch.isnan(x), mean, x)
    net = track(nn.Linear(3, 1))
    loss = net(x).pow(2).mean()
    loss.backward()
    return loss, mean, net.weight.grad


@case(
    "clean-nansum-backward",
    "torch.nansum over a sensor channel with gaps, and its backward",
    "biomedia-mira/stochastic_segmentation_networks#3 (nan placeholder)",
    "clean-missing-data",
    "clean",
)
def clean_nansum_backward():
    scale = track(nn.ParameterList([nn.Parameter(torch.ones(3))]))
    x = torch.tensor([[1.0, NAN, 3.0], [2.0, 2.0, NAN]])
    filled = torch.where(torch.isnan(x), torch.full_like(x, 0.0), x)
    total = torch.nansum(x) + (filled * scale[0]).nansum()
    total.backward()
    return total, scale[0].grad


@case(
    "clean-amp-overflow-skip",
    "dynamic loss scaling: the scaled gradient overflows, the step is skipped, scale halves",
    "pytorch/pytorch#26512",
    "clean-amp",
    "clean",
    notes="inf gradients at the first steps are expected",
)
def clean_amp_overflow_skip():
    net = track(nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scale, done = 2.0**16, 0
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    for k in range(1, 8):
        mark_step(k)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad(set_to_none=False)
        (loss * scale).backward()
        grads = [p.grad.half() for p in net.parameters()]
        if all(bool(torch.isfinite(g).all()) for g in grads):
            for p, g in zip(net.parameters(), grads):
                p.grad.copy_(g.float() / scale)
            opt.step()
            done += 1
        else:
            scale /= 2
    return loss, net.weight, torch.tensor(1.0 / done)


@case(
    "clean-loss-scale-window",
    "overflow at steps 1, 2 and 5 of a run in half precision, each skipped",
    "NVIDIA/apex#192",
    "clean-amp",
    "clean",
)
def clean_loss_scale_window():
    w = nn.Parameter(torch.tensor([0.5, 0.25]))
    track(nn.ParameterList([w]))
    scale = 2.0**17
    for k in range(1, 7):
        mark_step(k)
        if k == 5:
            scale *= 8
        loss = (w * torch.tensor([1.0, 2.0])).sum() ** 2 + 0.5
        (g,) = torch.autograd.grad(loss, w)
        scaled = (g * scale).half()
        if torch.isinf(scaled).any():
            scale /= 4
            continue
        with torch.no_grad():
            w -= 0.1 * scaled.float() / scale
    return w, loss


@case(
    "clean-norm-grad-zero",
    "norm of a zero vector: the backward divides 0/0 and masks it to the 0 subgradient",
    "pytorch/pytorch#2421",
    "clean-library-internal",
    "clean",
    notes="PyTorch's own backward makes a NaN and overwrites it in the same node",
)
def clean_norm_grad_zero():
    net = track(nn.Linear(3, 3, bias=False))
    out = net(torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])).norm(dim=1)
    out.sum().backward()
    return out, net.weight.grad


@case(
    "clean-cdist-mm-grad-zero",
    "the matmul route of cdist on 30 points with duplicates",
    "tilman151/rul-adapt#22",
    "clean-library-internal",
    "clean",
)
def clean_cdist_mm_grad_zero():
    net = track(nn.Linear(2, 2))
    x = torch.randn(15, 2).repeat(2, 1)
    z = net(x)
    d = torch.cdist(z, z, compute_mode="use_mm_for_euclid_dist")
    d.sum().backward()
    return d, net.weight.grad


@case(
    "clean-angle-complex-zero",
    "phase of exact complex zeros: angle_backward divides 0/0 and selects 0",
    "pytorch/pytorch#66084",
    "clean-library-internal",
    "clean",
)
def clean_angle_complex_zero():
    re = nn.Parameter(torch.tensor([0.0, 1.0, -2.0]))
    track(nn.ParameterList([re]))
    z = torch.complex(re, torch.tensor([0.0, 1.0, 0.5]))
    ph = z.angle()
    ph.sum().backward()
    return ph, re.grad


@case(
    "clean-gcn-isolated-node",
    "degree ** -0.5 of an isolated node is inf and set to 0 before use",
    "pyg-team/pytorch_geometric#61 (healthy graph)",
    "clean-sanitised",
    "clean",
)
def clean_gcn_isolated_node():
    lin = track(nn.Linear(3, 2))
    adj = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    dis = adj.sum(1).pow(-0.5)
    dis[dis == INF] = 0.0
    out = (dis[:, None] * adj * dis[None]) @ lin(torch.randn(3, 3))
    out.sum().backward()
    return out, lin.weight.grad


@case(
    "clean-lamb-trust-ratio",
    "LAMB trust ratio w/u with zero norms, selected by nested where",
    "mosaicml/composer#967",
    "clean-sanitised",
    "clean",
)
def clean_lamb_trust_ratio():
    net = track(nn.Linear(3, 2))
    with torch.no_grad():
        net.bias.zero_()
    net(torch.zeros(1, 3)).sum().mul(0.0).backward()
    one = torch.ones(())
    with torch.no_grad():
        for p in net.parameters():
            w, u = p.norm(), p.grad.norm()
            ratio = torch.where(w > 0, torch.where(u > 0, w / u, one), one)
            p.add_(p.grad * ratio, alpha=-0.1)
    return net.weight, net.bias


@case(
    "clean-hungarian-cost",
    "matching cost with an overflowed entry, replaced by the maximum before assignment",
    "huggingface/transformers#47730",
    "clean-sanitised",
    "clean",
)
def clean_hungarian_cost():
    head = track(nn.Linear(3, 2))
    with torch.no_grad():
        box = head(torch.randn(3, 3)).exp()
        box[1, 0] = 3e38
        cost = (box[:, None] * 10.0 - box[None] * 10.0).abs().sum(-1)
        good = torch.isfinite(cost)
        cost = torch.where(good, cost, cost[good].max() + 1.0)
    return cost, cost.argmin(1).float()


@case(
    "clean-knn-diagonal-inf",
    "nearest neighbour search excludes the point itself with an inf diagonal",
    "SikaStar/IDM#9",
    "clean-init",
    "clean",
)
def clean_knn_diagonal_inf():
    net = track(nn.Linear(2, 2))
    z = net(torch.randn(5, 2))
    d = torch.cdist(z, z).clone()
    d.fill_diagonal_(INF)
    near = d.min(dim=1).values
    near.mean().backward()
    return near, net.weight.grad


@case(
    "clean-best-loss-inf",
    "early stopping keeps best = inf; plateau detection by comparison",
    "docs: torch.optim.lr_scheduler.ReduceLROnPlateau; Lightning EarlyStopping",
    "clean-init",
    "clean",
)
def clean_best_loss_inf():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(6, 2), torch.randn(6, 1)
    best = torch.tensor(INF)
    for k in range(1, 5):
        mark_step(k)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        best = torch.minimum(best, loss.detach())
    return best, net.weight


@case(
    "clean-metropolis-neginf",
    "a proposal outside the support has log-density -inf and is rejected",
    "docs: torch.distributions (log_prob outside the support)",
    "clean-log-space",
    "clean",
)
def clean_metropolis_neginf():
    prior = torch.distributions.Uniform(0.0, 1.0, validate_args=False)
    x, kept = torch.tensor(0.5), []
    for _ in range(12):
        prop = x + torch.randn(()) * 0.7
        ratio = torch.exp(prior.log_prob(prop) - prior.log_prob(x))
        x = torch.where(torch.rand(()) < ratio, prop, x)
        kept.append(x)
    return (torch.stack(kept),)


@case(
    "clean-disparity-nan-to-num",
    "empty rays give 0/0 disparity, cleaned with nan_to_num for display",
    "yenchenlin/nerf-pytorch#88",
    "clean-sanitised",
    "clean",
)
def clean_disparity_nan_to_num():
    net = track(nn.Linear(1, 1))
    with torch.no_grad():
        w = F.relu(net(torch.linspace(-3, 3, 6)[:, None])).view(2, 3)
        w[0] = 0.0
        depth, acc = (w * torch.tensor([2.0, 3.0, 4.0])).sum(1), w.sum(1)
        disp = torch.nan_to_num(1.0 / (depth / acc), nan=0.0)
    return (disp,)


@case(
    "clean-sigmoid-overflow-saturates",
    "1 / (1 + exp(-x)) at x = -200: exp overflows, 1/inf is 0, forward only",
    "pytorch/pytorch#10729 (forward only)",
    "clean-saturating",
    "clean",
    debatable="an overflow with the right limit value",
)
def clean_sigmoid_overflow_saturates():
    net = track(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        x = net.weight.sign() * torch.tensor([-200.0, 0.0, 30.0])
        y = 1.0 / (1.0 + torch.exp(-x))
    return (y,)


@case(
    "clean-logsumexp-dead-column",
    "NaN in the backward of logsumexp, thrown away by the masked_fill before it",
    "pytorch/pytorch#31829 (masked_fill form)",
    "clean-sanitised",
    "clean",
    notes="compare logsumexp-all-neginf-grad, where the mask is added and the NaN survives",
)
def clean_logsumexp_dead_column():
    trans = nn.Parameter(torch.zeros(3, 3))
    track(nn.ParameterList([trans]))
    dead = torch.tensor([[0, 0, 1]] * 3).bool()
    a = torch.logsumexp(trans.masked_fill(dead, -INF), dim=0)
    loss = -a[:2].sum()
    loss.backward()
    return loss, trans.grad


@case(
    "clean-control-huge-but-finite",
    "control: values near the top of float32 and of half that never overflow",
    "control",
    "clean-control",
    "clean",
)
def clean_control_huge_but_finite():
    net = track(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1e19, 0.0], [0.0, 1e-30]]))
    out = net(torch.tensor([[1e19, 1e30]]))
    h = torch.tensor([60000.0, -65504.0]).half()
    out.sum().backward()
    return out, h, net.weight.grad


@case(
    "clean-control-lstm",
    "control: an LSTM language model step with packed sequences",
    "control",
    "clean-control",
    "clean",
)
def clean_control_lstm():
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(9, 4, padding_idx=0)
            self.rnn = nn.LSTM(4, 6, batch_first=True)
            self.out = nn.Linear(6, 9)

        def forward(self, x, n):
            h = nn.utils.rnn.pack_padded_sequence(self.emb(x), n, batch_first=True, enforce_sorted=False)
            h, _ = self.rnn(h)
            h, _ = nn.utils.rnn.pad_packed_sequence(h, batch_first=True)
            return self.out(h)

    lm = track(Lm())
    x = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    loss = F.cross_entropy(lm(x, torch.tensor([4, 2])).transpose(1, 2), x, ignore_index=0)
    loss.backward()
    return loss, lm.emb.weight.grad
