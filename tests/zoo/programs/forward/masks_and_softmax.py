"""Masks, softmax and arithmetic on their infinities."""

import math

import torch
import torch.distributions as D
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, case, mark_step, track


@case(
    "mha-all-padded-need-weights",
    "nn.MultiheadAttention(need_weights=True) and a sample that is all padding",
    "",
    "masked-softmax",
    "nan",
    "_softmax",
    module="blocks.0.self_attn",
    step=2,
)
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


@case(
    "encoder-fastpath-all-padded",
    "nn.TransformerEncoderLayer's fused inference kernel and an all-padding sample",
    "",
    "masked-softmax",
    "nan",
    ["_transformer_encoder_layer_fwd"],
    module="encoder.layers.0",
    naive=False,
)
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


@case(
    "sdpa-score-overflow",
    "scaled_dot_product_attention of queries that have diverged: the scores overflow inside",
    "",
    "overflow",
    "nan",
    ["_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math"],
    module="attn",
)
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


@case(
    "pointer-net-all-visited",
    "greedy decoding of a tour: at the last step every node is visited, log_softmax of -inf",
    "",
    "masked-softmax",
    "nan",
    "_log_softmax",
    module="decoder",
    step=4,
)
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


@case(
    "gat-segment-all-masked",
    "graph attention written with scatter_reduce: the edges of a node are all masked, -inf - (-inf)",
    "",
    "inf-minus-inf",
    "nan",
    "sub",
    module="convs.0.attn",
)
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


@case(
    "flash-online-first-block-masked",
    "block-wise softmax with a running maximum: the first key block is masked for a row",
    "",
    "inf-minus-inf",
    "nan",
    "sub",
    module="attn",
)
def flash_online_first_block_masked():
    class FlashPy(nn.Module):
        def forward(self, q, k, v, keep, block=2):
            m = q.new_full((len(q), 1), -INF)
            l = q.new_zeros(len(q), 1)
            acc = torch.zeros_like(q)
            for i in range(0, len(k), block):
                s = (q @ k[i : i + block].t()).masked_fill(~keep[:, i : i + block], -INF)
                m_new = torch.maximum(m, s.amax(1, keepdim=True))
                shift = m - m_new  # ORIGIN
                p = torch.exp(s - m_new)
                scale = torch.exp(shift)
                l = scale * l + p.sum(1, keepdim=True)
                acc = scale * acc + p @ v[i : i + block]
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


@case(
    "categorical-no-legal-action",
    "Categorical(logits) of a state without a legal action: logits - logsumexp is -inf + inf",
    "",
    "inf-minus-inf",
    "nan",
    "sub",
    module="policy.actor",
)
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


@case(
    "beam-onehot-reorder",
    "beams are reordered with a one-hot matrix product; dead beams score -inf, 0 * -inf",
    "",
    "zero-times-inf",
    "nan",
    ["bmm", "mm", "einsum"],
    module="reorder",
)
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


@case(
    "kd-kldiv-masked-vocab",
    "distillation by F.kl_div with a vocabulary mask of -inf on the student: 0 * -inf inside",
    "",
    "zero-times-inf",
    "nan",
    ["mul", "sub", "kl_div"],
    module="kd",
)
def kd_kldiv_masked_vocab():
    class Kd(nn.Module):
        def __init__(self, t):
            super().__init__()
            self.t = t

        def forward(self, student, teacher, banned):
            logp = F.log_softmax((student / self.t).masked_fill(banned, -INF), dim=-1)
            q = F.softmax((teacher / self.t).masked_fill(banned, -INF), dim=-1)
            return F.kl_div(logp, q, reduction="batchmean") * self.t**2  # ORIGIN

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


@case(
    "silu-of-masked",
    "padding is filled with -inf before a SiLU instead of before the softmax: -inf * 0",
    "",
    "zero-times-inf",
    "nan",
    ["silu"],
    module="gate.act",
)
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


@case(
    "masked-max-pool-empty",
    "masked max pooling of an all-padding row is -inf, the layer norm after it is NaN",
    "",
    "inf-minus-inf",
    "nan",
    ["native_layer_norm", "layer_norm"],
    module="norm",
)
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
