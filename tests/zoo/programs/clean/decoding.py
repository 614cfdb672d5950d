"""Decoding and sampling."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, case, track


@case(
    "nucleus-typical-filter",
    "top-p, then typical sampling: entropy with nansum over already banned tokens",
    "",
    "clean-sampling",
    "clean",
)
def nucleus_typical_filter():
    def top_p(scores, p, fill=-float("Inf")):
        sorted_logits, order = torch.sort(scores, descending=False)
        drop = sorted_logits.softmax(-1).cumsum(-1) <= (1 - p)
        return scores.masked_fill(drop.scatter(1, order, drop), fill)

    def typical(scores, mass):
        normalized = F.log_softmax(scores, dim=-1)
        p = torch.exp(normalized)
        ent = -(normalized * p).nansum(-1, keepdim=True)
        shifted = torch.abs((-normalized) - ent)
        order = shifted.sort(descending=False)[1]
        cum = scores.gather(-1, order).softmax(-1).cumsum(-1)
        last = (cum < mass).sum(1).clamp(max=scores.shape[-1] - 1)
        drop = shifted.gather(-1, order) > shifted.gather(-1, order).gather(1, last.view(-1, 1))
        return scores.masked_fill(drop.scatter(1, order, drop), -float("Inf"))

    lm = track(nn.Linear(6, 12))
    with torch.no_grad():
        scores = lm(torch.randn(3, 6)) * 3
        scores = top_p(scores, 0.9)
        scores = torch.where(scores < 0, scores * 1.2, scores / 1.2)
        scores = typical(scores, 0.8)
        probs = scores.softmax(-1)
        tok = torch.multinomial(probs, 1)
    return probs, tok.float()


@case(
    "beam-hypotheses-pool",
    "beam search that keeps a pool of finished hypotheses with Python floats",
    "",
    "clean-sampling",
    "clean",
)
def beam_hypotheses_pool():
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.out = nn.Embedding(9, 5), nn.Linear(5, 9)

        def forward(self, t):
            return self.out(torch.tanh(self.emb(t)))

    lm, eos, beam = track(Lm()), 2, 3
    with torch.inference_mode():
        scores = torch.full((beam,), float("-inf"))
        scores[0] = 0.0
        tokens = torch.ones(beam, 1, dtype=torch.long)
        pool, worst = [], float("-inf")
        for t in range(6):
            lp = F.log_softmax(lm(tokens[:, -1]), -1)
            lp[:, 0] = -math.inf  # padding is never chosen
            if t < 2:
                lp[:, eos] = -math.inf  # minimum length
            cand, idx = (scores[:, None] + lp).view(-1).topk(2 * beam)
            keep = []
            for s, i in zip(cand.tolist(), idx.tolist()):
                if i % 9 == eos and s != float("-inf"):
                    pool.append((s / (t + 1), tokens[i // 9].tolist()))
                    worst = min(p for p, _ in pool)
                elif len(keep) < beam:
                    keep.append((s, i // 9, i % 9))
            tokens = torch.cat([tokens[[b for _, b, _ in keep]], torch.tensor([[w] for _, _, w in keep])], 1)
            scores = torch.tensor([s for s, _, _ in keep])
        best = torch.tensor(max([p for p, _ in pool] + [float(scores.max()) / 7]))
    return best.clone(), tokens.float()


@case(
    "prefix-allowed-tokens",
    "constrained decoding: everything but the allowed tokens is -inf, batch of processors",
    "",
    "clean-sampling",
    "clean",
)
def prefix_allowed_tokens():
    lm = track(nn.Linear(5, 10))
    allowed = {0: [1, 3], 1: [2, 4, 7]}
    with torch.no_grad():
        scores = F.log_softmax(lm(torch.randn(4, 5)), -1).view(2, 2, 10)
        mask = torch.full_like(scores, -math.inf)
        for b in range(2):
            mask[b, :, allowed[b]] = 0
        scores = scores + mask
        static = torch.zeros(10)
        static[[3]] = float("-inf")
        scores = scores + static
        scores = torch.nan_to_num(scores, neginf=-1e4) / 0.7
        out = F.log_softmax(scores, -1)
    return out, out.argmax(-1).float()


@case(
    "gumbel-max-endpoints",
    "Gumbel noise from uniforms that hit 0 and 1 exactly; only the argmax is used",
    "",
    "clean-sampling",
    "clean",
)
def gumbel_max_endpoints():
    net = track(nn.Linear(3, 4))
    u = torch.rand(5, 4)
    u[0, 0], u[1, 2] = 0.0, 1.0
    logits = net(torch.randn(5, 3))
    gumbel = -torch.log(-torch.log(u))
    index = (logits.detach() + gumbel).argmax(-1)
    hard = F.one_hot(index, 4).float()
    soft = logits.softmax(-1)
    y = hard + soft - soft.detach()
    loss = (y * torch.arange(4.0)).sum()
    loss.backward()
    return loss, y, net.weight.grad


@case(
    "exponential-race-zero-prob",
    "sampling by argmax(p / exponential) and Efraimidis keys u**(1/w) with zero weights",
    "",
    "clean-sampling",
    "clean",
)
def exponential_race_zero_prob():
    net = track(nn.Linear(3, 6))
    with torch.no_grad():
        p = net(torch.randn(4, 3)).relu()
        q = torch.empty_like(p).exponential_(1)
        q[0, 0] = 0.0
        pick = (p / q).nan_to_num(nan=0.0).argmax(-1)
        w = p[0]
        keys = torch.rand(6) ** (1.0 / w)
        chosen = keys.topk(2).indices
    return pick.float(), w[chosen], keys


@case(
    "speculative-accept",
    "speculative decoding: p/q with q = 0, and a residual that sums to 0",
    "",
    "clean-sampling",
    "clean",
)
def speculative_accept():
    net = track(nn.Linear(3, 5))
    with torch.no_grad():
        logits = net(torch.randn(4, 3))
        p = logits.softmax(-1)
        q = logits.masked_fill(torch.tensor([1, 0, 0, 1, 0]).bool(), -INF).softmax(-1)
        q[2] = p[2]
        ratio = p / q
        accept = torch.rand(4, 5) < ratio
        residual = (p - q).clamp(min=0)
        total = residual.sum(-1, keepdim=True)
        fixed = torch.where(total > 0, residual / total, p)
        nxt = torch.multinomial(fixed, 1)
    return accept.float(), fixed, nxt.float()


@case(
    "inference-mode-generate",
    "a whole generate loop under inference_mode, with a static cache and a float mask",
    "",
    "clean-sampling",
    "clean",
)
def inference_mode_generate():
    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.qkv, self.head = nn.Embedding(11, 4), nn.Linear(4, 12), nn.Linear(4, 11)
            self.register_buffer("k", torch.zeros(8, 4))
            self.register_buffer("v", torch.zeros(8, 4))

        def forward(self, tok, pos):
            q, k, v = self.qkv(self.emb(tok)).chunk(3, -1)
            self.k[pos], self.v[pos] = k, v
            mask = torch.where(torch.arange(8) <= pos, 0.0, float("-inf"))
            return self.head(F.scaled_dot_product_attention(q[None], self.k, self.v, attn_mask=mask[None])[0])

    net, out = track(Tiny()).eval(), []
    with torch.inference_mode():
        tok = torch.tensor(1)
        for pos in range(6):
            logits = net(tok, torch.tensor(pos))
            if out:
                logits[out[-1]] = -torch.inf
            v, _ = torch.topk(logits, 4)
            logits = torch.where(logits < v[-1], -float("Inf"), logits)
            best, worst = logits.max().item(), logits.min().item()
            assert worst == -math.inf < best
            tok = torch.multinomial(logits.softmax(-1), 1)[0]
            out.append(int(tok))
    return torch.tensor(out).float(), torch.tensor(best)


@case(
    "scripted-decoder-step",
    "a TorchScript function with -inf filters and a module-level constant",
    "",
    "clean-sampling",
    "clean",
)
def scripted_decoder_step():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 9)

        def forward(self, x, banned):
            # type: (torch.Tensor, torch.Tensor) -> torch.Tensor
            s = self.lin(x).masked_fill(banned, -float("inf"))
            kth = torch.topk(s, 4)[0][:, -1:]
            return torch.log_softmax(torch.where(s < kth, torch.full_like(s, -float("inf")), s), -1)

    net = track(Step())
    traced = torch.jit.trace(net, (torch.randn(2, 4), torch.rand(2, 9) < 0.3))
    lp = traced(torch.randn(2, 4), torch.rand(2, 9) < 0.3)
    best = lp.max(-1).values
    best.sum().backward()
    return best, net.lin.weight.grad
