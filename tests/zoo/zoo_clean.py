"""Clean programs that hold non-finite values, written for torchnan. The framework and the conventions are those of zoo_open.py."""
import collections
import contextlib
import copy
import functools
import io
import math
import os
import random
import sys
import warnings

from torch.utils.checkpoint import checkpoint
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import own_zoo
from zoo_open import CASES, HOOKS, INF, NAN, SPLIT, alt, applies, case, dirty, mark_step, run_threads, track

own_zoo.begin(__file__)

# CASES BEGIN
# =========================================================================== attention masks


@case("alibi-causal-buffer", "ALiBi slopes added to a causal -inf buffer, one AdamW step",
      "", "clean-mask", "clean")
def alibi_causal_buffer():
    class AlibiAttention(nn.Module):
        def __init__(self, d, heads, max_len):
            super().__init__()
            self.h, self.qkv, self.out = heads, nn.Linear(d, 3 * d), nn.Linear(d, d)
            slopes = torch.tensor([2.0 ** -(i + 1) for i in range(heads)])
            pos = torch.arange(max_len)
            bias = slopes[:, None, None] * (pos[None, :] - pos[:, None])
            future = torch.triu(torch.full((max_len, max_len), float("-inf")), diagonal=1)
            self.register_buffer("bias", bias + future, persistent=False)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
            w = (q @ k.transpose(-1, -2)) / math.sqrt(d // self.h) + self.bias[:, :t, :t]
            return self.out((w.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

    model = track(nn.Sequential(AlibiAttention(8, 2, 16), nn.GELU(), AlibiAttention(8, 2, 16)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(2, 6, 8)
    for k in range(1, 3):
        mark_step(k)
        loss = (model(x) - x.roll(-1, 1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, model[0].qkv.weight


@case("sliding-window-mask", "Mistral's sliding window: log of a banded 0/1 matrix is the mask",
      "", "clean-mask", "clean")
def sliding_window_mask():
    class Window(nn.Module):
        def __init__(self, d, window):
            super().__init__()
            self.wq, self.wk, self.wv = (nn.Linear(d, d, bias=False) for _ in range(3))
            self.window = window

        def forward(self, x):
            n = x.shape[1]
            full = torch.full((n, n), fill_value=1.0)
            mask = torch.tril(full, diagonal=0).to(x.dtype)
            mask = torch.triu(mask, diagonal=-self.window)
            mask = torch.log(mask)
            scores = self.wq(x) @ self.wk(x).transpose(1, 2) * x.shape[-1] ** -0.5 + mask[None]
            return scores.float().softmax(dim=-1).type_as(x) @ self.wv(x)

    net = track(Window(4, 2))
    loss = net(torch.randn(2, 7, 4)).pow(2).mean()
    loss.backward()
    return loss, net.wq.weight.grad, net.wk.weight.grad


_MASKS = {}


@case("log-tril-mask-cache", "the same mask, kept in a module-level cache for the next call",
      "", "clean-mask", "clean",
      notes="log(0) is how the mask is written; a process-wide cache holds it when the block ends")
def log_tril_mask_cache():
    def causal(n):
        if n not in _MASKS:
            _MASKS[n] = torch.log(torch.tril(torch.ones(n, n)))
        return _MASKS[n]

    net = track(nn.Linear(4, 4))
    x = torch.randn(5, 4)
    outs = []
    for n in (5, 3, 5):
        s = net(x[:n]) @ x[:n].t() + causal(n)
        outs.append(s.softmax(-1).pow(2).sum())
    torch.stack(outs).sum().backward()
    return outs[0], net.weight.grad


@case("finfo-min-twice-bf16", "causal finfo.min plus padding finfo.min overflows to -inf in bfloat16",
      "", "clean-mask", "clean")
def finfo_min_twice_bf16():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk, self.v = nn.Linear(8, 16), nn.Linear(8, 8)

        def forward(self, x, mask):
            q, k = self.qk(x).chunk(2, -1)
            w = torch.matmul(q, k.transpose(1, 2)) + mask
            return torch.matmul(w.float().softmax(-1).to(x.dtype), self.v(x))

    net = track(Attn()).to(torch.bfloat16)
    low = torch.finfo(torch.bfloat16).min
    causal = torch.full((4, 4), low, dtype=torch.bfloat16).triu(1)
    keep = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bfloat16)
    padding = (1.0 - keep)[:, None, :] * low
    out = net(torch.randn(2, 4, 8, dtype=torch.bfloat16), causal[None] + padding)
    loss = (out * keep[:, :, None]).float().pow(2).sum()
    loss.backward()
    return loss, net.v.weight.grad, net.qk.weight.grad


@case("softmax-then-refill-dead-rows", "rows of padding queries are NaN after softmax and are filled with 0",
      "", "clean-mask", "clean")
def softmax_then_refill_dead_rows():
    class GraphAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, x, adj):
            e = (self.q(x) @ self.k(x).t()).masked_fill(adj == 0, float("-inf"))
            alpha = torch.softmax(e, dim=-1).masked_fill(adj == 0, 0.0)
            return alpha @ self.v(x)

    net = track(GraphAttention())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    adj = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    x = torch.randn(4, 3)
    for k in range(1, 4):
        mark_step(k)
        loss = net(x, adj).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.q.weight, net.v.weight


@case("sdpa-dead-row", "scaled_dot_product_attention with a query that may attend to nothing",
      "", "clean-mask", "clean")
def sdpa_dead_row():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x, allowed):
            q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

    net = track(Block())
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    allowed = (valid[:, None, :, None] & valid[:, None, None, :]).expand(2, 2, 5, 5)
    out = net(torch.randn(2, 5, 8), allowed)
    out.square().sum().backward()
    return out, net.qkv.weight.grad


@case("sdpa-math-dead-row-dropout", "the math kernel of attention with a float mask and a dead row, in training mode",
      "", "clean-mask", "clean")
def sdpa_math_dead_row_dropout():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    proj = track(nn.Linear(4, 12))
    q, k, v = proj(torch.randn(1, 2, 4, 4)).chunk(3, -1)
    bias = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -INF)
    bias[2] = -INF
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=0.2)
    out.pow(2).mean().backward()
    return out, proj.weight.grad


@case("mha-both-masks", "MultiheadAttention: float causal mask and boolean key padding, weights averaged and logged",
      "", "clean-mask", "clean")
def mha_both_masks():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn = nn.MultiheadAttention(8, 2, batch_first=True)
            self.cross_attn = nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True)

        def forward(self, x, mem, causal, pad):
            x, w = self.self_attn(x, x, x, attn_mask=causal)
            y, c = self.cross_attn(x, mem, mem, key_padding_mask=pad, average_attn_weights=False)
            return y, w, c

    net = track(Decoder())
    pad = torch.zeros(2, 3).masked_fill(torch.tensor([[0, 0, 1], [1, 1, 1]]).bool(), -INF)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    y, w, c = net(torch.randn(2, 4, 8), torch.randn(2, 3, 8), causal, pad)
    (y.sum() + w.pow(2).sum()).backward()
    return y, w, c, net.cross_attn.in_proj_weight.grad


@case("encoder-eval-fastpath", "TransformerEncoder in eval mode: padding goes through nested tensors and the fused layer",
      "", "clean-mask", "clean")
def encoder_eval_fastpath():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    model = track(nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)).eval()
    x = torch.randn(2, 5, 8)
    pad = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]).bool()
    with torch.inference_mode():
        out = model(x, src_key_padding_mask=pad)
        causal = model(x, mask=torch.full((5, 5), -INF).triu(1), is_causal=True)
    return out.clone(), causal.clone()


@case("checkpointed-causal-block", "a causal block under activation checkpointing, both variants",
      "", "clean-mask", "clean")
def checkpointed_causal_block():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln, self.attn = nn.LayerNorm(4), nn.Linear(4, 12)
            self.register_buffer("tril", torch.tril(torch.ones(8, 8)).view(1, 8, 8))

        def forward(self, x):
            t = x.shape[1]
            q, k, v = self.attn(self.ln(x)).split(4, dim=2)
            att = (q @ k.transpose(-2, -1)) * 0.5
            att = att.masked_fill(self.tril[:, :t, :t] == 0, float("-inf"))
            return x + F.softmax(att, dim=-1) @ v

    net = track(nn.ModuleList([Block(), Block()]))
    x = torch.randn(2, 5, 4, requires_grad=True)
    y = checkpoint(net[0], x, use_reentrant=False)
    y = checkpoint(net[1], y, use_reentrant=True)
    loss = y.pow(2).mean()
    loss.backward()
    return loss, net[0].attn.weight.grad, net[1].attn.weight.grad


@case("moe-noisy-topk-gate", "noisy top-k gating: logits of the experts that were not chosen are -inf",
      "", "clean-mask", "clean")
def moe_noisy_topk_gate():
    class MoE(nn.Module):
        def __init__(self, d=4, experts=5, k=2):
            super().__init__()
            self.gate, self.k = nn.Linear(d, experts, bias=False), k
            self.experts = nn.ModuleList(nn.Linear(d, d) for _ in range(experts))

        def forward(self, x):
            logits = self.gate(x)
            top, idx = logits.topk(self.k, dim=-1)
            kept = torch.full_like(logits, float("-inf")).scatter(-1, idx, top)
            weights = F.softmax(kept, dim=-1)
            out = torch.zeros_like(x)
            for e, expert in enumerate(self.experts):
                rows = (weights[:, e] > 0).nonzero().squeeze(1)
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, e:e + 1])
            return out, weights

    net = track(MoE())
    out, w = net(torch.randn(6, 4))
    loss = out.pow(2).mean() + w.mean(0).pow(2).sum()
    loss.backward()
    return loss, net.gate.weight.grad


@case("pointer-tsp-reinforce", "pointer decoder: visited cities get -inf, log-probability of the tour by gather",
      "", "clean-mask", "clean")
def pointer_tsp_reinforce():
    class Pointer(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.query = nn.Linear(2, 8), nn.Linear(8, 8)

        def forward(self, xy):
            h = self.enc(xy)
            visited = torch.zeros(xy.shape[:2], dtype=torch.bool)
            cur, logps, tour = h.mean(1), [], []
            for _ in range(xy.shape[1]):
                score = 10 * torch.tanh((self.query(cur)[:, None] * h).sum(-1))
                score[visited] = -math.inf
                log_p = torch.log_softmax(score, dim=-1)
                pick = log_p.exp().multinomial(1).squeeze(1)
                logps.append(log_p.gather(1, pick[:, None]).squeeze(1))
                visited = visited.scatter(1, pick[:, None], True)
                cur = h[torch.arange(len(h)), pick]
                tour.append(pick)
            assert (torch.stack(logps) > -1000).all()
            return torch.stack(logps, 1).sum(1), torch.stack(tour, 1)

    net = track(Pointer())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    baseline = None
    for k in range(1, 4):
        mark_step(k)
        xy = torch.rand(3, 5, 2)
        logp, tour = net(xy)
        path = xy.gather(1, tour[:, :, None].expand(-1, -1, 2))
        length = (path - path.roll(1, 1)).norm(dim=-1).sum(1)
        baseline = length.mean() if baseline is None else 0.8 * baseline + 0.2 * length.mean()
        loss = ((length - baseline).detach() * logp).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.enc.weight, length


@case("maskable-policy", "PPO with invalid actions: -inf logits, entropy over the valid ones only",
      "", "clean-mask", "clean")
def maskable_policy():
    net = track(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6)))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    obs = torch.randn(8, 4)
    valid = torch.rand(8, 6) < 0.6
    valid[:, 0] = True
    with torch.no_grad():
        dist = torch.distributions.Categorical(logits=net(obs).masked_fill(~valid, -INF))
        act = dist.sample()
        old = dist.log_prob(act)
    adv = torch.randn(8)
    for k in range(1, 5):
        mark_step(k)
        logp = F.log_softmax(net(obs).masked_fill(~valid, -INF), -1)
        ratio = (logp.gather(1, act[:, None]).squeeze(1) - old).exp()
        finite = logp.masked_fill(~valid, 0.0)
        entropy = -(finite.exp() * finite * valid).sum(-1).mean()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
    return loss, entropy, net[0].weight


@case("threads-masked-inference", "two worker threads run the same causal model",
      "", "clean-mask", "clean")
def threads_masked_inference():
    model = track(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    mask = torch.full((4, 4), -INF).triu(1)

    def serve(seed):
        def work():
            g = torch.Generator().manual_seed(seed)
            x = torch.randn(4, 4, generator=g)
            with torch.no_grad():
                s = model(x) @ x.t() + mask
                p = s.softmax(-1)
                return (p @ x), (-torch.where(p > 0, p * p.log(), torch.zeros(()))).sum(-1)
        return work

    (a, ea), (b, eb) = run_threads(serve(1), serve(2))
    return a, ea, b, eb


@case("print-save-copy-mask", "a mask is printed, turned to lists and numpy, saved, loaded and deep-copied",
      "", "clean-mask", "clean")
def print_save_copy_mask():
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
            self.register_buffer("floor", torch.tensor(float("-inf")))

        def forward(self, x):
            return torch.maximum((self.lin(x) @ x.t() + self.mask).softmax(-1) @ x, self.floor)

    net = track(Lm())
    text = repr(net.mask) + str(net.mask[0]) + "%s" % net.floor + repr(net.mask.tolist()) + "{:.3f}".format(net.floor)
    text += repr(net.mask.numpy().max()) + repr(np.asarray(net.mask)[0, 1]) + str(net.floor.item())
    buf = io.BytesIO()
    torch.save(net.state_dict(), buf)
    buf.seek(0)
    state = torch.load(buf)
    twin = copy.deepcopy(net)
    third = Lm()
    third.load_state_dict(state)
    assert torch.equal(third.mask, net.mask) and text.count("inf") >= 8
    x = torch.randn(3, 3)
    outs = [m(x) for m in (net, twin, third)]
    sum(o.sum() for o in outs).backward()
    return outs[0], outs[2], third.lin.weight.grad


# =========================================================================== decoding and sampling


@case("nucleus-typical-filter", "top-p, then typical sampling: entropy with nansum over already banned tokens",
      "", "clean-sampling", "clean")
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


@case("beam-hypotheses-pool", "beam search that keeps a pool of finished hypotheses with Python floats",
      "", "clean-sampling", "clean")
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


@case("prefix-allowed-tokens", "constrained decoding: everything but the allowed tokens is -inf, batch of processors",
      "", "clean-sampling", "clean")
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


@case("gumbel-max-endpoints", "Gumbel noise from uniforms that hit 0 and 1 exactly; only the argmax is used",
      "", "clean-sampling", "clean")
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


@case("exponential-race-zero-prob", "sampling by argmax(p / exponential) and Efraimidis keys u**(1/w) with zero weights",
      "", "clean-sampling", "clean")
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


@case("speculative-accept", "speculative decoding: p/q with q = 0, and a residual that sums to 0",
      "", "clean-sampling", "clean")
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


@case("inference-mode-generate", "a whole generate loop under inference_mode, with a static cache and a float mask",
      "", "clean-sampling", "clean")
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


# =========================================================================== dynamic programming, log space


@case("ctc-alpha-by-hand", "CTC's alpha recursion in log space from -inf, against F.ctc_loss",
      "", "clean-log-space", "clean")
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


@case("hmm-left-right-baum-welch", "left-to-right HMM: log of structural zeros, forward-backward, one EM step",
      "", "clean-log-space", "clean")
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


@case("hmm-marginals-by-autograd", "posterior marginals as the gradient of log Z with respect to log potentials",
      "", "clean-log-space", "clean",
      notes="the potentials are a leaf that requires grad and holds log(0) for forbidden transitions")
def hmm_marginals_by_autograd():
    allowed = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    score = torch.rand(5, 3, 3)
    potentials = (score * allowed).log()
    potentials.requires_grad_()
    alpha = torch.zeros(3)
    for t in range(5):
        alpha = torch.logsumexp(alpha[:, None] + potentials[t], 0)
    log_z = torch.logsumexp(alpha, 0)
    marginals, = torch.autograd.grad(log_z, potentials)
    return log_z, marginals, marginals.sum((1, 2))


@case("crf-constrained-decode", "a CRF layer with BIO constraints as -inf: loss, backward and Viterbi",
      "", "clean-log-space", "clean")
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


@case("logcumsumexp-prefix", "logcumsumexp, logaddexp and logaddexp2 over sequences that start with -inf",
      "", "clean-log-space", "clean")
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


@case("floyd-warshall-bellman-ford", "shortest paths from +inf, min-plus products and scatter_reduce(amin)",
      "", "clean-dp", "clean")
def floyd_warshall_bellman_ford():
    n = 6
    src = torch.tensor([0, 0, 1, 2, 3])
    dst = torch.tensor([1, 2, 3, 3, 4])
    w = torch.tensor([2.0, 5.0, 1.0, 0.5, 3.0])
    d = torch.full((n, n), float("inf"))
    d[src, dst] = w
    d.fill_diagonal_(0)
    for k in range(n):
        d = torch.minimum(d, d[:, k:k + 1] + d[k:k + 1])
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


@case("dtw-soft-dtw", "DTW with an inf border, and soft-DTW with a finite gamma trained through it",
      "", "clean-dp", "clean")
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


@case("log-sinkhorn-forbidden", "log-domain Sinkhorn with forbidden pairs at inf cost and an empty marginal",
      "", "clean-log-space", "clean")
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


@case("multinomial-diffusion-log-onehot", "log of a one-hot table, mixed by logaddexp with the uniform kernel",
      "", "clean-log-space", "clean")
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


@case("nested-pad-neginf-lse", "ragged rows padded with -inf, logsumexp and max over them",
      "", "clean-log-space", "clean")
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


@case("sparse-softmax", "softmax over a sparse matrix with an empty row; absent entries count as -inf",
      "", "clean-log-space", "clean")
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


# =========================================================================== minima, maxima, extremes


@case("quant-observers", "torch.ao observers start at min = inf, max = -inf; one of them never sees data",
      "", "clean-init", "clean")
def quant_observers():
    from torch.ao.quantization.observer import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver

    class Observed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 3)
            self.inp, self.out, self.idle = MinMaxObserver(), HistogramObserver(bins=16), MinMaxObserver()
            self.weight_obs = PerChannelMinMaxObserver(ch_axis=0)

        def forward(self, x):
            self.weight_obs(self.lin.weight)
            return self.out(self.lin(self.inp(x)))

    net = track(Observed())
    text = repr(net)
    with torch.no_grad():
        for _ in range(2):
            y = net(torch.randn(5, 4))
    scales = [obs.calculate_qparams()[0].flatten() for obs in (net.inp, net.idle, net.weight_obs, net.out)]
    twin = copy.deepcopy(net)
    assert "inf" in text and repr(twin.inp) == repr(net.inp)
    return (y, net.inp.min_val) + tuple(scales)


@case("metric-buffers-inf", "a min/max metric in buffers: reset, update, save, load, printed before any data",
      "", "clean-init", "clean")
def metric_buffers_inf():
    class Range(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("lo", torch.tensor(float("inf")))
            self.register_buffer("hi", torch.tensor(-float("inf")))
            self.register_buffer("last", torch.tensor(float("nan")))

        def reset(self):
            self.lo.fill_(float("inf"))
            self.hi.fill_(-float("inf"))
            self.last.fill_(float("nan"))

        def forward(self, x):
            self.lo = torch.minimum(self.lo, x.min())
            self.hi = torch.maximum(self.hi, x.max())
            self.last = torch.where(self.last.isnan(), x.mean(), 0.9 * self.last + 0.1 * x.mean())
            return self.hi - self.lo

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.range = nn.Linear(3, 3), Range()

        def forward(self, x):
            y = self.lin(x)
            self.range(y.detach())
            return y

    net = track(Net())
    lines = ["%s %s %s" % (net.range.lo, net.range.hi.item(), float(net.range.last))]
    for _ in range(3):
        out = net(torch.randn(4, 3))
    width = net.range.hi - net.range.lo
    fresh = Net()
    fresh.load_state_dict(net.state_dict())
    net.range.reset()
    lines.append(str({k: v.tolist() for k, v in net.range.state_dict().items()}))
    out.sum().backward()
    return width, fresh.range.last, net.lin.weight.grad


@case("early-stopping-plateau", "early stopping with best = inf, ReduceLROnPlateau, deep copy of the best weights",
      "", "clean-init", "clean")
def early_stopping_plateau():
    class EarlyStopping:
        def __init__(self, patience):
            self.best, self.patience, self.bad, self.state = torch.tensor(np.inf), patience, 0, None

        def __call__(self, val, model):
            if val < self.best:
                message = "decreased (%.6f --> %.6f)" % (self.best, val)
                self.best, self.state, self.bad = val.detach(), copy.deepcopy(model.state_dict()), 0
                return message
            self.bad += 1
            return self.bad >= self.patience

    net = track(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)))
    opt = torch.optim.RMSprop(net.parameters(), lr=0.02)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
    stop, x, y = EarlyStopping(2), torch.randn(12, 3), torch.randn(12, 1)
    for k in range(1, 6):
        mark_step(k)
        opt.zero_grad()
        F.mse_loss(net(x[:8]), y[:8]).backward()
        opt.step()
        with torch.no_grad():
            val = F.mse_loss(net(x[8:]), y[8:])
        sched.step(val)
        if stop(val, net) is True:
            break
    net.load_state_dict(stop.state)
    return stop.best, net[0].weight


@case("optimizer-best-metric-state", "an optimizer that keeps the lowest gradient norm seen in its state, from inf",
      "", "clean-init", "clean")
def optimizer_best_metric_state():
    class MinNormSgd(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["step"] = 0
                        state["least_norm"] = torch.tensor(float("inf"))
                        state["least_at"] = torch.full_like(p, float("inf"))
                    state["step"] += 1
                    norm = p.grad.norm()
                    if state["step"] > 1:  # the first gradient is noise
                        state["least_norm"] = torch.minimum(state["least_norm"], norm)
                        state["least_at"] = torch.minimum(state["least_at"], p.grad.abs())
                    scale = torch.clamp(state["least_norm"] / (norm + 1e-12), max=1.0)
                    p.add_(p.grad * scale, alpha=-group["lr"])

    net = track(nn.Linear(3, 2))
    opt = MinNormSgd(net.parameters(), lr=0.1)
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    for k in range(1, 5):
        mark_step(k)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.weight, opt.state[net.weight]["least_norm"]


@case("scatter-amax-empty-segments", "global max pooling: scatter_reduce amax from -inf, graphs without nodes become 0",
      "", "clean-init", "clean")
def scatter_amax_empty_segments():
    class MaxPool(nn.Module):
        def forward(self, x, batch, n):
            out = x.new_full((n, x.shape[1]), float("-inf"))
            out = out.scatter_reduce(0, batch[:, None].expand_as(x), x, reduce="amax", include_self=True)
            return torch.where(out == float("-inf"), torch.zeros_like(out), out)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.pool, self.head = nn.Linear(3, 4), MaxPool(), nn.Linear(4, 1)

        def forward(self, x, batch, n):
            return self.head(self.pool(self.lin(x), batch, n))

    net = track(Net())
    out = net(torch.randn(6, 3), torch.tensor([0, 0, 1, 3, 3, 3]), 5)
    out.sum().backward()
    seg = torch.segment_reduce(torch.randn(6), "max", lengths=torch.tensor([2, 0, 4]), initial=-INF)
    low = torch.full((4,), INF).index_reduce_(0, torch.tensor([0, 0, 2]), torch.tensor([3.0, 1.0, 2.0]), "amin")
    return out, net.lin.weight.grad, seg[[0, 2]], low[torch.isfinite(low)]


@case("neginf-padded-pooling", "dilation of feature maps by max pooling over a border of -inf",
      "", "clean-init", "clean")
def neginf_padded_pooling():
    class Dilate(nn.Module):
        def forward(self, x):
            x = F.pad(x, (1, 1, 1, 1), value=float("-inf"))
            x = F.max_pool2d(x, 3, stride=1)
            lo = -F.max_pool2d(F.pad(-x, (0, 1, 0, 1), value=-INF), 2, stride=2)
            return x, lo

    net = track(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), Dilate()))
    hi, lo = net(torch.randn(2, 1, 4, 4))
    (hi.mean() + lo.mean()).backward()
    return hi, lo, net[0].weight.grad


@case("knn-self-excluded", "self distance set to inf in place, topk, affinities exp(-inf) = 0, SimCLR diagonal",
      "", "clean-init", "clean")
def knn_self_excluded():
    net = track(nn.Linear(3, 2))
    z = F.normalize(net(torch.randn(6, 3)), dim=1)
    sim = z @ z.t() / 0.5
    sim = sim.fill_diagonal_(float("-inf"))
    loss = F.cross_entropy(sim, torch.tensor([1, 0, 3, 2, 5, 4]))
    loss.backward()
    with torch.no_grad():
        d = torch.cdist(z, z).fill_diagonal_(math.inf)
        near, idx = d.topk(3, largest=False)
        order = d.sort(1).indices[:, :-1]
        aff = torch.exp(-d.square())
        aff = aff / aff.sum(1, keepdim=True)
        med = d.median(1).values
    return loss, near, order.float(), aff, med, net.weight.grad


@case("norm-ord-inf-foreach", "inf as an argument: norms, clamps, hardtanh, foreach, clip_grad_norm_(norm_type=inf)",
      "", "clean-init", "clean")
def norm_ord_inf_foreach():
    net = track(nn.Sequential(nn.Linear(3, 3), nn.Hardtanh(-math.inf, 1.0), nn.Linear(3, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True, momentum=0.9)
    for k in range(1, 4):
        mark_step(k)
        x = torch.randn(4, 3).clamp(min=-math.inf, max=2.0)
        loss = net(x).abs().clamp_max(INF).sum()
        opt.zero_grad()
        loss.backward()
        total = nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm_type=math.inf)
        opt.step()
    norms = torch.stack(torch._foreach_norm([p.detach() for p in net.parameters()], math.inf))
    low = [torch.full((3,), -INF), torch.full((3,), -INF)]
    torch._foreach_maximum_(low, [torch.zeros(3), torch.ones(3)])
    return loss, total, norms, torch.linalg.matrix_norm(net[0].weight.detach(), math.inf), low[0]


@case("rank-bucket-compare", "sort, topk, cummax, bucketize with inf edges, isclose/allclose with NaN",
      "", "clean-init", "clean")
def rank_bucket_compare():
    x = torch.tensor([3.0, NAN, -INF, 1.0, INF, 2.0])
    edges = torch.tensor([-INF, 0.0, 1.5, INF])
    ok = x[torch.isfinite(x)]
    bins = torch.bucketize(ok, edges)
    ranks = x.nan_to_num(nan=0.0).argsort().argsort()
    top = x[~x.isnan()].topk(4).values
    mid = top[torch.isfinite(top)]
    run = torch.cummax(torch.where(x.isnan(), -INF, x), 0).values[3]
    both = torch.isclose(x, x.clone(), equal_nan=True)
    assert torch.allclose(x, x.clone(), equal_nan=True) and not torch.equal(x, x.clone())
    torch.testing.assert_close(x, x.clone(), equal_nan=True)
    found = torch.searchsorted(edges, ok)
    q = torch.nanquantile(torch.where(torch.isinf(x), NAN, x), 0.5)
    h = torch.histc(x[torch.isfinite(x)], 3, 0.0, 3.0)
    return bins.float(), ranks.float(), mid, run, both.float(), found.float(), q, h


@case("one-over-inf-optics", "a parameterisation in which inf is an ordinary value: focal lengths, degrees of freedom",
      "", "clean-saturating", "clean")
def one_over_inf_optics():
    class ThinLens(nn.Module):
        def __init__(self):
            super().__init__()
            self.power = nn.Parameter(torch.tensor(0.5))
            self.register_buffer("object_distance", torch.tensor([2.5, 4.0, float("inf")]))

        def forward(self):
            return 1.0 / (self.power - 1.0 / self.object_distance)

    lens = track(ThinLens())
    image = lens()
    image.sum().backward()
    dof = torch.tensor([1.0, 5.0, math.inf])
    t = torch.randn(3)
    tail = (1 + t * t / dof).clamp(min=1)
    return image, lens.power.grad, tail, torch.atan(dof), torch.tanh(dof), torch.erf(-dof), torch.exp(-dof)


# =========================================================================== loss scaling, bad steps


@case("gradscaler-inf-loss-fused", "GradScaler on the CPU with a scale that overflows, clip, fused AdamW",
      "", "clean-amp", "clean")
def gradscaler_inf_loss_fused():
    net = track(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 127, backoff_factor=2.0 ** -30, growth_interval=1000)
    x, y = torch.randn(8, 4), torch.randn(8, 1) * 10
    norms = []
    for k in range(1, 6):
        mark_step(k)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 1.0).item())
        scaler.step(opt)
        scaler.update()
    assert not math.isfinite(norms[0]) and math.isfinite(norms[-1])
    return loss, net[0].weight, torch.tensor(scaler.get_scale())


@case("gradscaler-autocast-half", "float16 autocast: the gradient of a half layer overflows until the scale is right",
      "", "clean-amp", "clean")
def gradscaler_autocast_half():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(torch.relu(self.body(x)))

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
    x, y = torch.randn(8, 4) * 3, torch.randn(8, 1)
    done = 0
    for k in range(1, 12):
        mark_step(k)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() >= before:
            done += 1
            sched.step()
    assert 0 < done < 11
    return loss, net.body.weight, torch.tensor(float(done))


@case("fp16-master-weights", "apex O2: a half model, float32 master weights, overflow test on the half gradients",
      "", "clean-amp", "clean")
def fp16_master_weights():
    net = track(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))).half()
    model_params = list(net.parameters())
    master = [p.detach().clone().float().requires_grad_() for p in model_params]
    opt = torch.optim.Adam(master, lr=1e-2)
    scale, skipped = 2.0 ** 20, 0
    x, y = torch.randn(8, 4).half(), torch.randn(8, 1)
    for k in range(1, 12):
        mark_step(k)
        net.zero_grad()
        loss = F.mse_loss(net(x).float(), y)
        (loss * scale).backward()
        overflow = any(not torch.isfinite(p.grad).all() for p in model_params)
        if overflow:
            scale, skipped = scale / 4, skipped + 1
            continue
        for m, p in zip(master, model_params):
            m.grad = p.grad.float() / scale
        opt.step()
        with torch.no_grad():
            for m, p in zip(master, model_params):
                p.copy_(m)
    assert skipped
    return loss, master[0], torch.tensor(scale)


@case("last-step-overflowed", "hand-written loss scaling whose scale grows again: the very last step is a skipped one",
      "", "clean-amp", "clean",
      notes="the gradients of the skipped step are still in .grad when the program ends, as they are after any AMP run")
def last_step_overflowed():
    net = track(nn.Linear(3, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scale, good = 2.0 ** 124, 0
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    for k in range(1, 6):
        mark_step(k)
        opt.zero_grad()
        out = net(x)
        loss = F.mse_loss(out, y)
        grad_out, = torch.autograd.grad(loss, out, retain_graph=True)
        out.backward(grad_out * scale)
        if all(torch.isfinite(p.grad).all() for p in net.parameters()):
            for p in net.parameters():
                p.grad /= scale
            opt.step()
            good += 1
            scale *= 2.0  # growth after every good step
        else:
            scale /= 2.0
            last_bad = k
    assert last_bad == 5 and good >= 2
    return loss, net.weight, net.bias


@case("skip-bad-loss-isfinite", "`if not torch.isfinite(loss): continue` for a batch without labels",
      "", "clean-skip", "clean")
def skip_bad_loss_isfinite():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 4)

        def forward(self, x, y):
            return F.cross_entropy(self.lin(x), y, ignore_index=-1)

    net = track(Net())
    opt = torch.optim.Adam(net.parameters(), lr=0.05)
    labels = [[0, 1], [-1, -1], [2, -1], [-1, -1]]
    total, seen = torch.zeros(()), 0
    for k, y in enumerate(labels, 1):
        mark_step(k)
        loss = net(torch.randn(2, 3), torch.tensor(y))
        if not torch.isfinite(loss):
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
        total, seen = total + loss.detach(), seen + 1
    return total / seen, net.lin.weight


@case("skip-bad-loss-item", "the same with `loss.item()` and math.isfinite, as MAE and DETR do",
      "", "clean-skip", "clean",
      notes="item() of a non-finite loss is, by torchnan's contract, harm of kind 'read'",
      debatable="a value that is read back counts as harm")
def skip_bad_loss_item():
    net = track(nn.Linear(3, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for k, weight in enumerate(([1.0, 1.0], [0.0, 0.0], [0.0, 1.0]), 1):
        mark_step(k)
        w = torch.tensor(weight)
        per_sample = F.cross_entropy(net(torch.randn(2, 3)), torch.tensor([0, 1]), reduction="none")
        loss = (per_sample * w).sum() / w.sum()
        if not math.isfinite(loss.item()):
            print("non-finite loss, skipping the batch", file=io.StringIO())
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
        kept = loss.detach()
    return kept, net.weight


@case("skip-bad-grad-norm", "the gradient norm decides: zero_grad and go on",
      "", "clean-skip", "clean")
def skip_bad_grad_norm():
    class Norm(nn.Module):
        def forward(self, x):
            return x / x.pow(2).sum(-1, keepdim=True).sqrt()

    net = track(nn.Sequential(nn.Linear(3, 3, bias=False), Norm()))
    opt = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True)
    skipped = 0
    for k in range(1, 5):
        mark_step(k)
        x = torch.randn(4, 3)
        if k == 2:
            x[0] = 0.0  # a corrupt sample
        h = net[0](x)
        loss = torch.where(h.abs().sum(-1, keepdim=True) > 0, net[1](h), h).pow(3).sum()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=False)
        if norm.isnan() or norm.isinf():
            opt.zero_grad()
            skipped += 1
        else:
            opt.step()
    assert skipped == 1
    return loss, net[0].weight


@case("optimizer-skips-bad-grads", "a subclass of AdamW whose step() leaves bad gradients out",
      "", "clean-skip", "clean")
def optimizer_skips_bad_grads():
    class AdamWSkipNonFinite(torch.optim.AdamW):
        def step(self, closure=None):
            bad = [p for g in self.param_groups for p in g["params"]
                   if p.grad is not None and not torch.isfinite(p.grad).all()]
            if bad:
                self.zero_grad()
                return None
            return super().step(closure)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.log_scale = nn.Linear(3, 2), nn.Parameter(torch.zeros(2))

        def forward(self, a, b):
            return ((self.f(a) - self.f(b)) * self.log_scale.exp()).norm(dim=1)

    net = track(Net())
    opt = AdamWSkipNonFinite(net.parameters(), lr=0.01)
    for k in range(1, 5):
        mark_step(k)
        a, b = torch.randn(4, 3), torch.randn(4, 3)
        if k == 3:
            b[1] = a[1]  # a duplicate in the data
        loss = net(a, b).sqrt().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net.f.weight, net.log_scale, loss


@case("optimizer-ignores-bad-elements", "a hand-written sign optimizer: NaN gradients are masked inside step()",
      "", "clean-skip", "clean")
def optimizer_ignores_bad_elements():
    class MaskedSign(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-2):
            super().__init__(params, dict(lr=lr))

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    g = torch.where(torch.isfinite(p.grad), p.grad, torch.zeros_like(p.grad))
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    m.lerp_(g, 0.1)
                    p.add_(m.sign(), alpha=-group["lr"])

    emb = track(nn.Embedding(5, 3))
    with torch.no_grad():
        emb.weight[2] = 0.0
    opt = MaskedSign(emb.parameters())
    for k in range(1, 4):
        mark_step(k)
        rows = emb(torch.tensor([0, 2, 4]))
        loss = rows.square().sum(1).sqrt().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, emb.weight


@case("step-pre-hook-cleans", "the optimizer's own step_pre_hook replaces bad gradients before the step",
      "", "clean-skip", "clean")
def step_pre_hook_cleans():
    net = track(nn.Linear(2, 2, bias=False))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)

    def clean(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    torch.nan_to_num_(p.grad, nan=0.0, posinf=0.0, neginf=0.0)

    opt.register_step_pre_hook(clean)
    for k in range(1, 4):
        mark_step(k)
        x = torch.randn(3, 2)
        x[0] = 0.0 if k == 2 else x[0]
        loss = net(x).abs().sum(1).sqrt().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.weight, opt.state[net.weight]["exp_avg"]


@case("grad-hooks-clean", "tensor hooks, post-accumulate hooks and clip_grad_value_ that repair NaN and inf",
      "", "clean-skip", "clean")
def grad_hooks_clean():
    class SafeSqrt(nn.Module):
        def forward(self, x):
            if x.requires_grad:
                x.register_hook(lambda g: torch.nan_to_num(g, posinf=1.0, neginf=-1.0))
            return x.sqrt()

    net = track(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), SafeSqrt()))
    scale = nn.Parameter(torch.zeros(3))

    def repair(p):
        p.grad.nan_to_num_(0.0, 0.0, 0.0)

    handle = scale.register_post_accumulate_grad_hook(repair)
    opt = torch.optim.SGD(list(net.parameters()) + [scale], lr=0.01, momentum=0.9, nesterov=True)
    for k in range(1, 4):
        mark_step(k)
        out = net(torch.randn(4, 2))
        loss = out.sum() + scale.abs().sqrt().sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 1.0)
        opt.step()
    handle.remove()
    return loss, net[0].weight, scale


@case("clip-value-repairs-inf", "infinite slope of sqrt at 0, clamped by clip_grad_value_ before the step",
      "", "clean-skip", "clean")
def clip_value_repairs_inf():
    sigma = nn.Parameter(torch.tensor([0.0, 1.0, 4.0]))
    track(nn.ParameterList([sigma]))
    opt = torch.optim.Adagrad([sigma], lr=0.05)
    for k in range(1, 3):
        mark_step(k)
        loss = -sigma.sqrt().sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_([sigma], 0.5)
        opt.step()
    return loss, sigma


@case("closure-zeroes-bad-grads", "Lightning's recipe: on_after_backward inside the closure zeroes invalid gradients",
      "", "clean-skip", "clean")
def closure_zeroes_bad_grads():
    class Lit(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 2)

        def training_step(self, x):
            d = self.net(x[:2]) - self.net(x[2:])
            return d.norm(dim=1).pow(0.5).mean()

        def on_after_backward(self):
            if not all(torch.isfinite(p.grad).all() for p in self.parameters() if p.grad is not None):
                self.zero_grad()

    model = track(Lit())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(1, 5):
        mark_step(k)
        x = torch.randn(4, 2)
        if k == 2:
            x[2] = x[0]

        def closure():
            opt.zero_grad()
            loss = model.training_step(x)
            loss.backward()
            model.on_after_backward()
            return loss

        opt.step(closure)
    return model.net.weight, model.training_step(torch.randn(4, 2))


@case("accumulate-skip-micro-batch", "gradient accumulation: micro-batches with non-finite gradients do not count",
      "", "clean-skip", "clean")
def accumulate_skip_micro_batch():
    net = track(nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1)))
    params = list(net.parameters())
    opt = torch.optim.AdamW(params, lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        total, n = [torch.zeros_like(p) for p in params], 0
        for micro in range(3):
            x = torch.randn(2, 3)
            if micro == 1:
                x[1] = x[0]  # two records that are the same
            pair = net(x)
            loss = F.pairwise_distance(pair[:1], pair[1:], eps=0.0).sqrt().mean() + pair.square().mean()
            grads = torch.autograd.grad(loss, params)
            if all(bool(g.isfinite().all()) for g in grads):
                torch._foreach_add_(total, grads)
                n += 1
        for p, t in zip(params, total):
            p.grad = t / n
        opt.step()
    return net[0].weight, torch.tensor(float(n))


@case("unused-branch-bad-grad", "the gradient of a parameter that no optimizer owns is NaN and is thrown away",
      "", "clean-skip", "clean")
def unused_branch_bad_grad():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.temperature = nn.Linear(3, 2), nn.Parameter(torch.zeros(1))

        def forward(self, x):
            h = self.body(x)
            return h.pow(2).mean() + (self.temperature * h.detach().mean()).abs().sqrt().sum()

    net = track(Net())
    opt = torch.optim.SGD(net.body.parameters(), lr=0.1)  # the temperature is frozen by leaving it out
    for k in range(1, 4):
        mark_step(k)
        loss = net(torch.randn(4, 3))
        net.zero_grad(set_to_none=True)
        loss.backward()
        net.temperature.grad = None
        opt.step()
    return loss, net.body.weight, net.temperature


@case("rollback-on-divergence", "a step blows the weights up; the trainer loads the last snapshot and halves the rate",
      "", "clean-skip", "clean",
      debatable="a parameter was non-finite for a moment, and the program repaired it")
def rollback_on_divergence():
    net = track(nn.Linear(2, 1, bias=False))
    lr, x, y = 1e30, torch.tensor([[1e20, 1.0], [1.0, -1e19]]), torch.randn(2, 1)
    x = x / 1e10
    for k in range(1, 8):
        mark_step(k)
        snapshot = copy.deepcopy(net.state_dict())
        loss = F.mse_loss(net(x), y)
        g, = torch.autograd.grad(loss, net.weight)
        with torch.no_grad():
            net.weight -= lr * g
            if not torch.isfinite(net.weight).all():
                net.load_state_dict(snapshot)
                lr *= 1e-25
    return net.weight, torch.tensor(lr)


# =========================================================================== missing data


@case("multitask-nan-labels", "Tox21-style targets: NaN where a molecule was not assayed, loss on the labelled ones",
      "", "clean-missing-data", "clean")
def multitask_nan_labels():
    table = np.random.RandomState(0).randint(0, 2, (8, 3)).astype(np.float32)
    table[[0, 1, 5, 7], [2, 0, 1, 1]] = np.nan
    y = torch.from_numpy(table)
    net = track(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    x = torch.randn(8, 4)
    for k in range(1, 4):
        mark_step(k)
        logits = net(x)
        labelled = y == y
        loss = F.binary_cross_entropy_with_logits(logits[labelled], y[labelled])
        other = F.mse_loss(logits.sigmoid(), torch.where(labelled, y, logits.sigmoid().detach()))
        opt.zero_grad()
        (loss + other).backward()
        opt.step()
    return loss, net[0].weight


@case("grud-forward-fill", "GRU-D: gaps marked NaN, last observation carried forward, decay towards the mean",
      "", "clean-missing-data", "clean")
def grud_forward_fill():
    class GruD(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.decay, self.out = nn.GRUCell(4, 6), nn.Linear(2, 2), nn.Linear(6, 1)

        def forward(self, x):
            seen = ~torch.isnan(x)
            mean = torch.nanmean(x, dim=(0, 1))
            scale = torch.nanmedian(x.abs().flatten(0, 1), 0).values
            h, last, gap = x.new_zeros(x.shape[0], 6), mean.expand(x.shape[0], 2), x.new_zeros(x.shape[0], 2)
            for t in range(x.shape[1]):
                gap = torch.where(seen[:, t], torch.zeros_like(gap), gap + 1)
                last = torch.where(seen[:, t], x[:, t], last)
                g = torch.exp(-F.relu(self.decay(gap)))
                h = self.cell(torch.cat([(g * last + (1 - g) * mean) / scale, seen[:, t].float()], 1), h)
            return self.out(h)

    x = torch.randn(3, 5, 2)
    x[torch.rand(3, 5, 2) < 0.4] = float("nan")
    x[0, 0] = NAN
    net = track(GruD())
    out = net(x)
    out.square().mean().backward()
    return out, net.decay.weight.grad


@case("ratings-with-nan", "matrix factorisation: the error is NaN where there is no rating; select, nansum, weights",
      "", "clean-missing-data", "clean")
def ratings_with_nan():
    r = torch.tensor([[5.0, NAN, 3.0], [NAN, NAN, 1.0], [4.0, 2.0, NAN]])
    have = torch.isfinite(r)

    class Mf(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.v = nn.Embedding(3, 2), nn.Embedding(3, 2)

        def forward(self):
            return self.u.weight @ self.v.weight.t()

    net = track(Mf())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for k in range(1, 4):
        mark_step(k)
        err = net() - r
        loss = err[have].square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        rmse = (net().detach() - r).square().nanmean().sqrt()
    return loss, rmse, net.u.weight


@case("queue-nan-slots", "a nearest-neighbour queue whose unfilled slots are NaN, filled bit by bit",
      "", "clean-missing-data", "clean")
def queue_nan_slots():
    class Queue(nn.Module):
        def __init__(self, size, d):
            super().__init__()
            self.register_buffer("bank", torch.full((size, d), float("nan")))
            self.register_buffer("ptr", torch.zeros((), dtype=torch.long))

        def forward(self, z):
            sim = z @ self.bank.t()
            sim = torch.where(torch.isnan(sim), torch.full_like(sim, -INF), sim)
            empty = torch.isnan(self.bank).any(1)
            return sim.masked_fill(empty, -INF)

        @torch.no_grad()
        def push(self, z):
            idx = (self.ptr + torch.arange(len(z))) % len(self.bank)
            self.bank[idx] = z.detach()
            self.ptr += len(z)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.queue = nn.Linear(4, 3), Queue(7, 3)

        def forward(self, x):
            return F.normalize(self.enc(x), dim=1)

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k in range(1, 5):
        mark_step(k)
        a, b = net(torch.randn(2, 4)), net(torch.randn(2, 4)).detach()
        with torch.no_grad():
            neg = net.queue(a)
        logits = torch.cat([(a * b).sum(1, keepdim=True), neg], 1)
        loss = F.cross_entropy(logits, torch.zeros(2, dtype=torch.long))
        opt.zero_grad()
        loss.backward()
        opt.step()
        net.queue.push(b)
    return loss, net.enc.weight


@case("loader-nan-batches", "DataLoader with a collate that pads with NaN, and one worker process",
      "", "clean-missing-data", "clean")
def loader_nan_batches():
    class Ragged(torch.utils.data.Dataset):
        def __init__(self):
            g = torch.Generator().manual_seed(1)
            self.rows = [torch.randn(n, generator=g) for n in (2, 4, 1, 3)]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return self.rows[i]

    def collate(rows):
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=float("nan"))

    net = track(nn.Linear(1, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for workers in (0, 1):
        loader = torch.utils.data.DataLoader(Ragged(), batch_size=2, collate_fn=collate, num_workers=workers,
                                             multiprocessing_context="fork" if workers else None)
        for batch in loader:
            valid = ~batch.isnan()
            x = batch.masked_fill(~valid, 0.0)
            pred = net(x[..., None]).squeeze(-1)
            loss = ((pred - x - 1).square() * valid).sum() / valid.sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            per_row = torch.nanmean(batch, dim=1)
    return loss, per_row, net.weight


@case("nan-border-crop", "a NaN border marks pixels without neighbours; the crop in the middle is what is used",
      "", "clean-missing-data", "clean")
def nan_border_crop():
    img = torch.rand(1, 1, 6, 6)
    padded = F.pad(img, (1, 1, 1, 1), value=float("nan"))
    lap = (padded[..., :-2, 1:-1] + padded[..., 2:, 1:-1] + padded[..., 1:-1, :-2] + padded[..., 1:-1, 2:] - 4 * img)
    inner = lap[..., 1:-1, 1:-1]
    conv = track(nn.Conv2d(1, 1, 3, bias=False))
    conv(inner).sum().backward()
    return inner, conv.weight.grad


# =========================================================================== guarded and repaired arithmetic


@case("safe-divide-double-where", "where inside and outside the division and the square root, forward and backward",
      "", "clean-sanitised", "clean")
def safe_divide_double_where():
    class SafeNormalize(nn.Module):
        def forward(self, v):
            n2 = v.square().sum(-1, keepdim=True)
            ok = n2 > 0
            n = torch.where(ok, n2, torch.ones_like(n2)).sqrt()
            return torch.where(ok, v / n, torch.zeros_like(v))

    net = track(nn.Sequential(nn.Linear(3, 3, bias=False), SafeNormalize()))
    x = torch.randn(4, 3)
    x[1] = 0.0
    out = net(x)
    out.pow(3).sum().backward()
    with torch.no_grad():
        x0 = net[0](x)
        unsafe = torch.where(x0.norm(dim=1, keepdim=True) > 0, x0 / x0.norm(dim=1, keepdim=True), torch.zeros(()))
    return out, net[0].weight.grad, unsafe - out.detach()


@case("precision-recall-f1", "per-class precision and recall 0/0, repaired by nan_to_num and where",
      "", "clean-sanitised", "clean")
def precision_recall_f1():
    net = track(nn.Linear(4, 5))
    with torch.no_grad():
        net.bias[4] = -100.0  # a class that is never predicted
        pred = net(torch.randn(20, 4)).argmax(1)
        true = torch.randint(0, 4, (20,))
        conf = torch.bincount(true * 5 + pred, minlength=25).view(5, 5).float()
        tp = conf.diagonal()
        precision = torch.nan_to_num(tp / conf.sum(0))
        recall = tp / conf.sum(1)
        recall = torch.where(recall.isnan(), torch.zeros_like(recall), recall)
        f1 = 2 * precision * recall / (precision + recall)
        f1[f1 != f1] = 0.0
        iou = tp / (conf.sum(0) + conf.sum(1) - tp)
        miou = iou.nanmean()
    return precision, recall, f1, miou


@case("miou-table-numpy", "mmsegmentation's mIoU: NaN for classes that do not occur, np.nanmean and a printed table",
      "", "clean-sanitised", "clean",
      notes="numpy() and tolist() of a 0/0: by torchnan's contract harm of kind 'read'; 'an expected behavior' (#83)",
      debatable="a value that is read back counts as harm")
def miou_table_numpy():
    net = track(nn.Conv2d(2, 4, 1))
    with torch.no_grad():
        net.bias[3] = -100.0
        pred = net(torch.randn(1, 2, 5, 5)).argmax(1)
        label = torch.randint(0, 3, (1, 5, 5))
        hist = lambda a: torch.histc(a.float(), 4, 0, 3)
        inter = hist(pred[pred == label])
        iou = inter / (hist(pred) + hist(label) - inter)
        acc = inter / hist(label)
    table = ["%d %.2f %.2f" % (i, 100 * u, 100 * a) for i, (u, a) in enumerate(zip(iou.tolist(), acc.tolist()))]
    miou = np.nanmean(iou.numpy())
    assert "nan" in table[3]
    return torch.tensor(miou), inter


@case("ddpm-schedule-buffers", "posterior log variance at t = 0 is log(0): clipped; SNR is inf at t = 0: min-SNR",
      "", "clean-sanitised", "clean")
def ddpm_schedule_buffers():
    class Diffusion(nn.Module):
        def __init__(self, t=10):
            super().__init__()
            betas = torch.linspace(1e-4, 0.4, t, dtype=torch.float64)
            bar = torch.cumprod(1 - betas, 0)
            prev = F.pad(bar[:-1], (1, 0), value=1.0)
            var = betas * (1 - prev) / (1 - bar)
            self.register_buffer("log_var", torch.log(var.clamp(min=1e-20)).float())
            self.register_buffer("log_var2", torch.log(torch.cat([var[1:2], var[1:]])).float())
            snr = prev / (1 - prev)
            self.register_buffer("weight", torch.minimum(snr, torch.full_like(snr, 5.0)).float())
            self.register_buffer("log_snr", torch.log(snr).clamp(-15, 15).float())
            self.register_buffer("bar", bar.float())
            self.net = nn.Linear(3, 2)

        def forward(self, x, t):
            noise = torch.randn_like(x)
            a = self.bar[t][:, None]
            xt = a.sqrt() * x + (1 - a).sqrt() * noise
            pred = self.net(torch.cat([xt, self.log_snr[t][:, None]], 1))
            return (self.weight[t][:, None] * (pred - noise).square()).mean()

    model = track(Diffusion())
    loss = model(torch.randn(4, 2), torch.tensor([0, 3, 9, 0]))
    loss.backward()
    return loss, model.log_var, model.log_var2, model.weight, model.net.weight.grad


@case("inverse-frequency-weights", "1/f noise: the DC bin is 1/0 and set to 0; class weights 1/count likewise",
      "", "clean-sanitised", "clean")
def inverse_frequency_weights():
    f = torch.fft.rfftfreq(16)
    s = f ** -1.0
    s[0] = 0.0
    white = torch.fft.rfft(torch.randn(16))
    pink = torch.fft.irfft(white * s, n=16)
    count = torch.bincount(torch.tensor([0, 0, 2, 2, 2, 3]), minlength=5).float()
    weight = 1.0 / count
    weight[torch.isinf(weight)] = 0.0
    net = track(nn.Linear(16, 5))
    loss = F.cross_entropy(net(pink[None].repeat(3, 1)), torch.tensor([0, 2, 3]), weight=weight / weight.sum())
    loss.backward()
    return pink, loss, net.weight.grad


@case("drop-dc-by-slicing", "the same 1/f table, the DC bin left out by slicing: the user keeps f[1:]",
      "", "clean-sanitised", "clean",
      notes="the symptom is a finite view; the element outside of it, in the same memory, is inf")
def drop_dc_by_slicing():
    period = 1.0 / torch.fft.rfftfreq(16)
    log_bins = torch.log(torch.arange(8.0))[1:]
    net = track(nn.Linear(8, 1))
    power = net(period[1:]).sum()
    power.backward()
    return period[1:], log_bins, net.weight.grad


@case("spectrogram-db-clamp", "20 log10(0) of a silent frame is -inf, clamped to -80 dB; phase of zeros",
      "", "clean-sanitised", "clean")
def spectrogram_db_clamp():
    class Db(nn.Module):
        def forward(self, wav):
            z = torch.stft(wav, 8, hop_length=4, window=torch.ones(8), return_complex=True, center=False)
            db = 20 * torch.log10(z.abs())
            return torch.clamp(db, min=-80.0) / 80 + 1, torch.angle(z), z.log().real.clamp(min=-10)

    db, conv = track(Db()), nn.Conv1d(5, 2, 1)
    wav = torch.cat([torch.zeros(16), torch.sin(torch.arange(16.0))])
    with torch.no_grad():
        spec, phase, lg = db(wav[None])
    out = conv(spec)
    out.mean().backward()
    return spec, phase, lg, conv.weight.grad


@case("inverse-distance-coincident", "1/d**2 weights where a query sits on a sample: inf/inf chosen away",
      "", "clean-sanitised", "clean")
def inverse_distance_coincident():
    class Interpolate(nn.Module):
        def forward(self, query, points, feats):
            with torch.no_grad():
                d2 = (query[:, None] - points[None]).square().sum(-1)
                w = 1.0 / d2
                hit = torch.isinf(w).any(1, keepdim=True)
                w = torch.where(hit, torch.isinf(w).float(), w / w.sum(1, keepdim=True))
            return w @ feats

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.feat, self.interp = nn.Linear(3, 4), Interpolate()

        def forward(self, q, p):
            return self.interp(q, p, self.feat(p))

    net, p = track(Net()), torch.randn(5, 3)
    out = net(torch.cat([p[:2], torch.randn(3, 3)]), p)
    out.square().sum().backward()
    return out, net.feat.weight.grad


@case("points-behind-camera", "perspective division by z = 0; invalid points get a coordinate outside the image",
      "", "clean-sanitised", "clean")
def points_behind_camera():
    net = track(nn.Conv2d(1, 3, 3, padding=1))
    fmap = net(torch.randn(1, 1, 6, 6))
    pts = torch.tensor([[0.2, 0.1, 1.0], [0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.3, 0.3, -2.0]])
    with torch.no_grad():
        uv = pts[:, :2] / pts[:, 2:]
        valid = (pts[:, 2] > 0) & (uv.abs() <= 1).all(1)
        uv = torch.where(valid[:, None], uv, torch.full_like(uv, 2.0))
        depth = torch.full((4,), INF)
        depth = torch.where(valid, pts[:, 2], depth)
        nearest = depth.min()
    feat = F.grid_sample(fmap, uv[None, :, None], align_corners=False, padding_mode="zeros")
    feat.sum().backward()
    return feat, nearest, net.weight.grad


@case("nerf-infinite-last-interval", "the last ray interval is infinite: 1 - exp(-sigma * inf) = 1; disparity planes to inf",
      "", "clean-saturating", "clean")
def nerf_infinite_last_interval():
    field = track(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 4)))
    s = torch.linspace(0, 1, 6)
    t = 1.0 / (s / math.inf + (1 - s) / 0.5)  # inverse depth from 0.5 to infinity
    near = t[:-1]
    delta = t[1:] - t[:-1]
    with torch.no_grad():
        raw = field(near[:, None])
        sigma, rgb = F.softplus(raw[:, 3]) + 1e-3, raw[:, :3].sigmoid()
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat([torch.ones(1), 1 - alpha[:-1]]), 0)
        color = ((alpha * trans)[:, None] * rgb).sum(0)
    return color, alpha


@case("softplus-by-hand-forward", "where(x > 20, x, log1p(exp(x))), sigmoid and tanh by hand, at inference",
      "", "clean-saturating", "clean")
def softplus_by_hand_forward():
    class HandMade(nn.Module):
        def forward(self, x):
            e = torch.exp(x)
            softplus = torch.where(x > 20, x, torch.log1p(e))
            sigmoid = 1 - 1 / (1 + e)
            e2 = torch.exp(-2 * x.abs())
            tanh = x.sign() * (1 - e2) / (1 + e2)
            gelu = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
            return softplus, sigmoid, tanh, gelu

    net = track(nn.Sequential(nn.Linear(1, 1, bias=False), HandMade())).eval()
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        return net(torch.tensor([[-200.0], [0.5], [30.0], [95.0], [1000.0]]))


@case("pinv-eigh-threshold", "pseudo-inverse and whitening: 1/s and rsqrt of zero eigenvalues are selected away",
      "", "clean-sanitised", "clean")
def pinv_eigh_threshold():
    x = torch.randn(6, 2)
    x = torch.cat([x, torch.zeros(6, 1)], 1)
    cov = x.t() @ x / 6
    s, u = torch.linalg.eigh(cov)
    s = torch.where(s.abs() < 1e-6, torch.zeros_like(s), s)
    inv_sqrt = s.rsqrt()
    inv_sqrt[s == 0] = 0.0
    inv = 1 / s
    inv = torch.where(torch.isfinite(inv), inv, torch.zeros(()))
    white = x @ (u * inv_sqrt)
    head = track(nn.Linear(3, 1))
    head(white).sum().backward()
    return white, (u * inv) @ u.t(), head.weight.grad


@case("cholesky-jitter-retry", "GPyTorch's psd_safe_cholesky: cholesky_ex fails, NaN-free jitter is added until it works",
      "", "clean-sanitised", "clean")
def cholesky_jitter_retry():
    class Gp(nn.Module):
        def __init__(self):
            super().__init__()
            self.raw = nn.Parameter(torch.tensor(1.0))

        def safe(self, k):
            chol, info = torch.linalg.cholesky_ex(k)
            jitter = 1e-8
            while torch.any(info):
                chol, info = torch.linalg.cholesky_ex(k + jitter * torch.eye(len(k)))
                jitter *= 10
            return chol

        def forward(self, x, y):
            k = torch.exp(-(x[:, None] - x[None]).square() * F.softplus(self.raw))
            k = k.clone()
            bad, info = torch.linalg.inv_ex(k.detach()[:2, :2] * 0)  # singular: inf, and info says so
            scale = torch.where(info == 0, bad.abs().amax(), torch.ones(()))
            chol = self.safe(k)
            alpha = torch.cholesky_solve(y[:, None], chol)
            return (0.5 * y @ alpha.squeeze(1) + chol.diagonal().log().sum()) * scale

    gp = track(Gp())
    x = torch.cat([torch.linspace(0, 1, 5), torch.linspace(0, 1, 5)])
    loss = gp(x, x.sin())
    loss.backward()
    return loss, gp.raw.grad


@case("ema-debias-at-zero", "1/(1 - beta**0) of a counter that is still 0: skipped by where until there is data",
      "", "clean-sanitised", "clean")
def ema_debias_at_zero():
    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            debiased = self.mean / (1 - 0.9 ** self.count)
            center = torch.where(self.count > 0, debiased, x.mean(0))
            if self.training:
                with torch.no_grad():
                    self.count += 1
                    self.mean.lerp_(x.mean(0), 0.1)
            return x - center

    net = track(nn.Sequential(nn.Linear(3, 3), Ema()))
    opt = torch.optim.Adam(net.parameters())
    for k in range(1, 4):
        mark_step(k)
        loss = net(torch.randn(5, 3)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[1].mean, net[0].weight


@case("lars-foreach-trust", "LARS: ||w||/||g|| is x/0 and 0/0 for idle layers, where() takes 1",
      "", "clean-sanitised", "clean")
def lars_foreach_trust():
    class Lars(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, dict(lr=lr))

        @torch.no_grad()
        def step(self):
            for g in self.param_groups:
                ps = [p for p in g["params"] if p.grad is not None]
                grads = [p.grad for p in ps]
                wn, gn = torch._foreach_norm(ps), torch._foreach_norm(grads)
                ratio = torch._foreach_div(wn, gn)
                ratio = [torch.where((a > 0) & (b > 0), r, torch.ones_like(r)) for a, b, r in zip(wn, gn, ratio)]
                torch._foreach_add_(ps, torch._foreach_mul(grads, ratio), alpha=-g["lr"])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle, self.gate = nn.Linear(3, 2), nn.Linear(2, 2), nn.Parameter(torch.zeros(2))

        def forward(self, x):
            h = self.used(x)
            return h + self.gate * 0 + self.idle(h) * 0

    net = track(Net())
    opt = Lars(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(4, 3)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.used.weight, net.idle.weight, net.gate


@case("polyak-step-clamped", "Polyak step (f - f*)/||g||^2 is inf at a flat point and clamped to the maximum",
      "", "clean-sanitised", "clean")
def polyak_step_clamped():
    class Sps(torch.optim.Optimizer):
        def __init__(self, params, cap):
            super().__init__(params, dict(cap=cap))

        def step(self, closure):
            with torch.enable_grad():
                loss = closure()
            with torch.no_grad():
                ps = [p for g in self.param_groups for p in g["params"]]
                sq = sum(p.grad.square().sum() for p in ps)
                size = torch.clamp(loss / sq, max=self.param_groups[0]["cap"])
                for p in ps:
                    p.sub_(size * p.grad)
            return loss

    net = track(nn.Linear(2, 1))
    opt = Sps(net.parameters(), 0.5)
    x, y = torch.randn(4, 2), torch.randn(4, 1)
    for k in range(1, 5):
        mark_step(k)

        def closure():
            opt.zero_grad()
            flat = 0.0 if k == 2 else 1.0
            loss = ((net(x) - y).abs() * flat).mean() + (0.1 if k == 2 else 0.0)
            loss.backward()
            return loss

        loss = opt.step(closure)
    return loss, net.weight


@case("escape-time-fractal", "complex iteration overflows to inf and nan for points that escaped long ago",
      "", "clean-complex", "clean")
def escape_time_fractal():
    c = torch.complex(torch.linspace(-2, 2, 9)[None].expand(5, 9), torch.linspace(-1, 1, 5)[:, None].expand(5, 9))
    z, n = torch.zeros_like(c), torch.zeros(5, 9)
    for _ in range(14):
        z = z * z + c
        n += (z.abs() <= 2).float()
    inside = z.abs() <= 2
    smooth = torch.where(inside, z.abs(), torch.zeros(()))
    net = track(nn.Linear(9, 2))
    net(n).sum().backward()
    return n, smooth, net.weight.grad


# =========================================================================== sampling theory, solvers


@case("adaptive-ode-rejected-steps", "an adaptive solver: too large a step overflows, the error is inf/nan, step rejected",
      "", "clean-solver", "clean")
def adaptive_ode_rejected_steps():
    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.tensor(-1.0))

        def forward(self, y):
            return self.rate * y ** 3

    f = track(Field())
    y, t, h, rejected = torch.tensor([1.0, 2.0]), 0.0, torch.tensor(1e30), 0
    while t < 1.0:
        with torch.no_grad():
            k1 = f(y)
            k2 = f(y + h * k1)
            low, high = y + h * k1, y + 0.5 * h * (k1 + k2)
            err = ((high - low) / (1e-3 + 1e-3 * torch.max(y.abs(), high.abs()))).square().mean().sqrt()
            accept = err <= 1
            factor = torch.where(torch.isfinite(err), (0.9 * err ** -0.5).clamp(0.2, 5.0), torch.tensor(1e-8))
        if accept:
            y, t = y + 0.5 * h * (f(y) + f(y + h * f(y))), t + float(h)
        else:
            rejected += 1
        h = torch.minimum(h * factor, torch.tensor(max(1.0 - t, 1e-3)))
    assert rejected >= 2
    y.sum().backward()
    return y, f.rate.grad, torch.tensor(float(rejected))


@case("barrier-backtracking", "log barrier: outside the feasible set the objective is nan/inf, the step is halved",
      "", "clean-solver", "clean")
def barrier_backtracking():
    a, b = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), torch.tensor([1.0, 1.0, 1.0])

    def objective(x):
        return -torch.log(b - a @ x).sum() + x.square().sum() + x[0] * 20

    x, halved = torch.zeros(2), 0
    for _ in range(4):
        x.requires_grad_()
        f0 = objective(x)
        g, = torch.autograd.grad(f0, x)
        x, step = x.detach(), 1.0
        for _ in range(40):
            f1 = objective(x - step * g)
            if torch.isfinite(f1) and f1 < f0.detach():
                break
            step, halved = step / 2, halved + 1
        x = x - step * g
    assert halved > 3
    return x, objective(x)


@case("metropolis-python-floats", "Metropolis in Python: log-density -inf outside the support, read with .item()",
      "", "clean-solver", "clean",
      notes="item() of log(0): by torchnan's contract harm of kind 'read'",
      debatable="a value that is read back counts as harm")
def metropolis_python_floats():
    prior = torch.distributions.Uniform(-1.0, 1.0, validate_args=False)
    rng, x, chain = random.Random(0), torch.tensor(0.1), []
    logp = (prior.log_prob(x) - x.square()).item()
    for _ in range(10):
        prop = x + torch.randn(()) * 1.5
        new = (prior.log_prob(prop) - prop.square()).item()
        if math.log(rng.random()) < new - logp:
            x, logp = prop, new
        chain.append(x)
    return torch.stack(chain), torch.tensor(logp)


@case("hmc-divergent-trajectory", "Hamiltonian Monte Carlo with a coarse step: the energy overflows, proposal rejected",
      "", "clean-solver", "clean",
      debatable="a root of backward counts as harm")
def hmc_divergent_trajectory():
    def energy(q):
        return (q ** 4).sum()

    q, kept, divergent = torch.tensor([0.5, -0.3]), [], 0
    for it in range(6):
        eps = 2.0 if it % 2 else 0.05
        p = torch.randn(2)
        h0 = energy(q) + 0.5 * p.square().sum()
        qq, pp = q.clone(), p
        for _ in range(8):
            leaf = qq.detach().requires_grad_()
            g, = torch.autograd.grad(energy(leaf), leaf)
            pp = pp - eps * g
            qq = qq + eps * pp
        dh = energy(qq) + 0.5 * pp.square().sum() - h0
        dh = torch.where(torch.isnan(dh), torch.tensor(INF), dh)
        divergent += int(dh > 1000)
        accept = torch.rand(()) < torch.exp(-dh)
        q = torch.where(accept, qq, q)
        kept.append(q)
    assert divergent >= 1
    return torch.stack(kept), torch.tensor(float(divergent))


@case("mixture-outside-support", "mixture of distributions with bounded support: some components say -inf",
      "", "clean-log-space", "clean")
def mixture_outside_support():
    class Mix(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits, self.rate = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            lp = torch.stack([torch.distributions.Uniform(0.0, 2.0, validate_args=False).log_prob(x),
                              torch.distributions.Exponential(self.rate.exp(), validate_args=False).log_prob(x.abs()),
                              torch.distributions.Uniform(-3.0, -1.0, validate_args=False).log_prob(x)], -1)
            return torch.logsumexp(lp + F.log_softmax(self.logits, -1), -1)

    mix = track(Mix())
    opt = torch.optim.Adam(mix.parameters(), lr=0.1)
    x = torch.tensor([0.5, 1.9, 2.5, -2.0, -0.5])
    for k in range(1, 4):
        mark_step(k)
        loss = -mix(x).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, mix.logits, mix.rate


@case("xlogy-entr-zeros", "xlogy, entr, kl_div and BCE at exact zeros and ones",
      "", "clean-log-space", "clean")
def xlogy_entr_zeros():
    net = track(nn.Linear(2, 3))
    q = net(torch.randn(4, 2)).softmax(-1)
    p = F.one_hot(torch.tensor([0, 2, 1, 1]), 3).float()
    ce = -torch.xlogy(p, q).sum()
    kl = F.kl_div(q.log(), p, reduction="sum")
    ent = torch.special.entr(p).sum()
    hard = F.binary_cross_entropy(p, p)
    raw = torch.where(p > 0, p * torch.log(p), torch.zeros(()))
    (ce + kl).backward()
    return ce, kl, ent, hard, raw, net.weight.grad


@case("vmap-masked-softmax-per-sample", "torch.func: per-sample gradients and Jacobians of a masked softmax",
      "", "clean-functorch", "clean")
def vmap_masked_softmax_per_sample():
    net = track(nn.Linear(3, 4))
    params = dict(net.named_parameters())

    def loss(p, x, length):
        logits = torch.func.functional_call(net, p, (x,))
        logits = torch.where(torch.arange(4) < length, logits, float("-inf"))
        return -F.log_softmax(logits, -1)[0]

    x, n = torch.randn(5, 3), torch.tensor([1, 2, 3, 4, 4])
    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, n)
    jac = torch.func.jacrev(lambda v: F.softmax(v.masked_fill(torch.tensor([0, 1, 0]).bool(), -INF), 0))(torch.randn(3))
    out, tangent = torch.func.jvp(lambda v: torch.logsumexp(v.masked_fill(v < 0, -INF), 0),
                                  (torch.tensor([1.0, -1.0, 2.0]),), (torch.ones(3),))
    ratio = torch.func.vmap(lambda a, b: torch.where(b != 0, a / b, 0.0))(torch.ones(3), torch.tensor([0.0, 1.0, 2.0]))
    return grads["weight"], jac, out, tangent, ratio


@case("backward-from-masked-logp", "backward with an explicit gradient that is 0 where the log-probabilities are -inf",
      "", "clean-log-space", "clean",
      notes="the root of backward holds the mask's -inf; every gradient is finite")
def backward_from_masked_logp():
    net = track(nn.Linear(3, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, banned = torch.randn(4, 3), torch.tensor([0, 1, 0, 0, 1]).bool()
    action, reward = torch.tensor([0, 2, 3, 0]), torch.randn(4)
    for k in range(1, 3):
        mark_step(k)
        logp = F.log_softmax(net(x).masked_fill(banned, -INF), -1)
        grad = torch.zeros_like(logp).scatter_(1, action[:, None], -reward[:, None])
        opt.zero_grad()
        logp.backward(gradient=grad)
        opt.step()
    return net.weight, logp[:, 0].clone()


# =========================================================================== memory that was never written


@case("ragged-batch-in-empty", "a padded batch in torch.empty: only the written part is read, by slices and by mask",
      "", "clean-memory", "clean")
def ragged_batch_in_empty():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 2)

        def forward(self, rows):
            n = torch.tensor([len(r) for r in rows])
            buf = dirty(torch.empty(len(rows), int(n.max()), 3))
            for i, r in enumerate(rows):
                buf[i, :len(r)] = r
            valid = torch.arange(buf.shape[1]) < n[:, None]
            flat = self.lin(buf[valid])
            out = dirty(flat.new_empty(len(rows), buf.shape[1], 2))
            out[valid] = flat
            return torch.stack([o[:k].mean(0) for o, k in zip(out, n.tolist())])

    net = track(Pool())
    out = net([torch.randn(k, 3) for k in (2, 5, 1)])
    out.square().sum().backward()
    return out, net.lin.weight.grad


@case("kv-cache-empty-view", "a KV cache from torch.empty, filled by index_copy_; the caller gets a view of what is filled",
      "", "clean-memory", "clean",
      notes="the returned view is finite; the tail of the same memory was never written and never read")
def kv_cache_empty_view():
    class Cached(nn.Module):
        def __init__(self, d=4, length=8):
            super().__init__()
            self.qkv = nn.Linear(d, 3 * d)
            self.register_buffer("k", dirty(torch.empty(length, d)), persistent=False)
            self.register_buffer("v", dirty(torch.empty(length, d)), persistent=False)
            self.n = 0

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            at = torch.arange(self.n, self.n + len(x))
            self.k.index_copy_(0, at, k)
            self.v[at] = v
            self.n += len(x)
            k, v = self.k[:self.n], self.v[:self.n]
            return (q @ k.t() * 0.5).softmax(-1) @ v, k

    net = track(Cached())
    with torch.no_grad():
        out, _ = net(torch.randn(3, 4))
        for _ in range(2):
            out, keys = net(torch.randn(1, 4))
    return out, keys


@case("kv-cache-paged-masked", "paged cache with garbage pages: keys and values gathered, garbage replaced by where",
      "", "clean-memory", "clean")
def kv_cache_paged_masked():
    pages = dirty(torch.empty(4, 2, 3))
    proj = track(nn.Linear(3, 3))
    with torch.no_grad():
        seq = proj(torch.randn(5, 3))
        table = torch.tensor([2, 0, 3])
        for i, row in enumerate(seq):
            pages[table[i // 2], i % 2] = row
        gathered = pages[table].view(6, 3)
        valid = torch.arange(6) < 5
        k = torch.where(valid[:, None], gathered, torch.zeros(()))
        scores = (seq[-1] @ gathered.t()).masked_fill(~valid, -INF)
        out = scores.softmax(0) @ k
    return out, k


@case("baddbmm-beta-zero", "attention scores by baddbmm(empty, q, k, beta=0): the empty input is ignored by contract",
      "", "clean-memory", "clean")
def baddbmm_beta_zero():
    class Core(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            buf = dirty(torch.empty(x.shape[0], x.shape[1], x.shape[1]))
            s = torch.baddbmm(buf, q, k.transpose(1, 2), beta=0.0, alpha=0.5)
            return torch.bmm(s.softmax(-1), v)

    net = track(Core())
    loss = net(torch.randn(2, 3, 4)).square().mean()
    loss.backward()
    work = dirty(torch.empty(3, 3))
    with torch.no_grad():
        work.addmm_(torch.eye(3), torch.ones(3, 3), beta=0)
    return loss, net.qkv.weight.grad, work


@case("out-workspaces", "results into workspaces of torch.empty by out=, in place on slices, and reused",
      "", "clean-memory", "clean")
def out_workspaces():
    lin = track(nn.Linear(4, 4))
    with torch.no_grad():
        ws, vec = dirty(torch.empty(4, 4)), dirty(torch.empty(4))
        torch.mm(lin.weight, lin.weight.t(), out=ws)
        torch.sum(ws, 0, out=vec)
        torch.div(vec, torch.tensor([1.0, 0.0, 2.0, 0.0]), out=vec)
        torch.where(torch.isfinite(vec), vec, torch.zeros(()), out=vec)
        big = dirty(torch.empty(2, 4))
        torch.exp(vec, out=big[0])
        big[1].zero_().add_(1.0)
        part = dirty(torch.empty(6))
        part[:4].copy_(vec)
        part[4:] = 0.5
        gathered = torch.gather(ws, 1, torch.zeros(4, 1, dtype=torch.long), out=dirty(torch.empty(4, 1)))
        acc = dirty(torch.empty(4)).fill_(0.0).addcmul_(vec, vec)
    return ws, vec, big, part, gathered, acc


@case("init-over-garbage", "a custom layer allocates with torch.empty and initialises with nn.init and normal_",
      "", "clean-memory", "clean")
def init_over_garbage():
    class Layer(nn.Module):
        def __init__(self, n, m):
            super().__init__()
            self.weight = nn.Parameter(dirty(torch.empty(m, n)))
            self.bias = nn.Parameter(dirty(torch.empty(m)))
            self.scale = nn.Parameter(dirty(torch.empty(m)))
            self.register_buffer("running", dirty(torch.empty(m)))
            self.reset()

        def reset(self):
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
            nn.init.zeros_(self.bias)
            self.scale.data.normal_(1.0, 0.02)
            self.running.copy_(torch.zeros_like(self.running))

        def forward(self, x):
            y = F.linear(x, self.weight, self.bias) * self.scale
            with torch.no_grad():
                self.running.lerp_(y.mean(0), 0.1)
            return y

    net = track(nn.Sequential(Layer(3, 4), nn.ReLU(), Layer(4, 2)))
    opt = torch.optim.NAdam(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(4, 3)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight, net[0].running


@case("init-quantile-grid", "learned quantile knots: linspace, logit and clamp in place on the parameter itself",
      "", "clean-init", "clean",
      notes="the parameter holds +-inf between two lines of its initialisation")
def init_quantile_grid():
    class Quantiles(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.knots = nn.Parameter(torch.empty(n))
            self.reset_parameters()

        def reset_parameters(self):
            with torch.no_grad():
                self.knots.copy_(torch.linspace(0, 1, len(self.knots)))
                self.knots.mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2.0))
                self.knots.clamp_(min=-3.0, max=3.0)

        def forward(self, x):
            return torch.sigmoid((x[:, None] - self.knots) * 4).mean(-1)

    net = track(Quantiles(9))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    loss = net(torch.randn(6)).square().mean()
    loss.backward()
    opt.step()
    return loss, net.knots


@case("trunc-normal-timm-edge", "timm's trunc_normal_(std=.02): one uniform draw is exactly -1, erfinv is -inf, clamped to a",
      "", "clean-init", "clean",
      debatable="the weight that results is a 100-sigma outlier: a quality bug of the initialiser, not a NaN")
def trunc_normal_timm_edge():
    def trunc_normal_(t, mean=0.0, std=1.0, a=-2.0, b=2.0):
        cdf = lambda x: (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0
        with torch.no_grad():
            lo, hi = cdf((a - mean) / std), cdf((b - mean) / std)
            t.uniform_(2 * lo - 1, 2 * hi - 1)
            t.view(-1)[7] = -1.0  # one draw in 2**24 is; not worth waiting for
            t.erfinv_()
            t.mul_(std * math.sqrt(2.0))
            t.add_(mean)
            t.clamp_(min=a, max=b)
        return t

    net = track(nn.Linear(4, 4))
    trunc_normal_(net.weight, std=0.02)
    out = net(torch.randn(2, 4))
    out.sum().backward()
    return out, net.weight.grad


# =========================================================================== garbage, life times


@case("recursive-closure-memo", "a recursive closure over a table with log(0): dead when the function returns",
      "", "clean-lifetime", "clean",
      notes="the closure refers to itself, so the table is garbage that only the cyclic collector frees")
def recursive_closure_memo():
    rules = torch.tensor([[0.5, 0.0], [0.25, 0.25]])
    table = rules.log()
    words = track(nn.Embedding(4, 2))
    leaf = F.log_softmax(words(torch.tensor([0, 1, 2])), -1)

    def span(i, j):
        if j - i == 1:
            return leaf[i]
        parts = [torch.logsumexp(span(i, k) + span(k, j) + table, 1) for k in range(i + 1, j)]
        return torch.logsumexp(torch.stack(parts), 0)

    total = torch.logsumexp(span(0, 3), 0)
    (-total).backward()
    return total, words.weight.grad


@case("kept-exception", "a failed attempt is remembered as an exception; its traceback keeps the failed tensors",
      "", "clean-lifetime", "clean",
      notes="the exception and the frame refer to each other: garbage, not something that the program holds")
def kept_exception():
    net = track(nn.Linear(2, 2))
    x = net(torch.randn(3, 2))

    def solve(a, jitter):
        scaled = a / jitter
        if not torch.isfinite(scaled).all():
            raise ValueError("jitter %g is too small" % jitter)
        return torch.linalg.cholesky(scaled)

    last = None
    for jitter in (0.0, 1.0):
        try:
            chol = solve(x.t() @ x + torch.eye(2), jitter)
            break
        except ValueError as err:
            last = err
    assert "too small" in str(last)
    chol.sum().backward()
    return chol, net.weight.grad


@case("scheduler-cycle-skipped-last", "a cosine schedule, and a last batch whose gradients are bad and not used",
      "", "clean-lifetime", "clean",
      notes="nothing but garbage (optimizer and scheduler refer to each other) holds the gradients at the end")
def scheduler_cycle_skipped_last():
    def train():
        net = track(nn.Linear(2, 1, bias=False))
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)
        for k in range(1, 5):
            mark_step(k)
            x = torch.randn(3, 2) if k < 4 else torch.zeros(3, 2)
            loss = net(x).abs().sqrt().mean()
            opt.zero_grad()
            loss.backward()
            if torch.isfinite(net.weight.grad).all():
                opt.step()
            sched.step()
        return net.weight.detach().clone(), loss.detach()

    return train()


# =========================================================================== further


@case("mask-as-frozen-parameter", "a mask kept as nn.Parameter(requires_grad=False), handed to the optimizer with the rest",
      "", "clean-mask", "clean")
def mask_as_frozen_parameter():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 4)
            self.mask = nn.Parameter(torch.full((5, 5), -INF).triu(1), requires_grad=False)
            self.dist = nn.Parameter(-torch.log(1.0 / (torch.arange(5.0) - torch.arange(5.0)[:, None]).clamp(min=0)),
                                     requires_grad=False)

        def forward(self, x):
            bias = torch.where(torch.isinf(self.dist), torch.zeros(()), self.dist)
            return (self.proj(x) @ x.transpose(1, 2) + self.mask + bias).softmax(-1) @ x

    net = track(Attn())
    opt = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(2, 5, 4)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.proj.weight


@case("padded-vocab-bias-neginf", "the output bias of padded vocabulary entries is -inf and stays it through training",
      "", "clean-mask", "clean",
      debatable="docs/harm.md holds that nobody makes a weight infinite; here somebody does, on purpose")
def padded_vocab_bias_neginf():
    head = track(nn.Linear(4, 8))
    with torch.no_grad():
        head.bias[6:] = -INF
    opt = torch.optim.Adam(head.parameters(), lr=0.01)
    for k in range(1, 4):
        mark_step(k)
        loss = F.cross_entropy(head(torch.randn(5, 4)), torch.tensor([0, 1, 2, 5, 3]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, head.weight


@case("saliency-with-missing", "input gradients of a sample with missing features: NaN in a leaf, replaced before use",
      "", "clean-missing-data", "clean",
      notes="the leaf is alive only through the graph of the loss that is returned")
def saliency_with_missing():
    net = track(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)))
    x = torch.tensor([[0.5, NAN, 1.0, -1.0], [NAN, NAN, 0.1, 0.2]]).requires_grad_()
    ratio = (torch.tensor([[1.0, 0.0, 2.0, 1.0]]) / torch.tensor([[2.0, 0.0, 1.0, 0.0]])).requires_grad_()
    filled = torch.where(x.isnan(), torch.zeros(()), x)
    other = torch.where(torch.isfinite(ratio), ratio, torch.ones(()))
    score = net(filled * other).sum()
    gx, gr = torch.autograd.grad(score, (x, ratio))
    return score, gx, gr


@case("scripted-decoder-step", "a TorchScript function with -inf filters and a module-level constant",
      "", "clean-sampling", "clean")
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


@case("compiled-eager-mask", "torch.compile(backend='aot_eager') around a masked attention step",
      "", "clean-mask", "clean")
def compiled_eager_mask():
    net = track(nn.Linear(4, 4))

    @torch.compile(backend="aot_eager")
    def attend(x, n):
        s = net(x) @ x.transpose(1, 2)
        s = s.masked_fill(torch.arange(5)[None, None] >= n[:, None, None], float("-inf"))
        return torch.nan_to_num(s.softmax(-1)) @ x

    out = attend(torch.randn(3, 5, 4), torch.tensor([5, 2, 0]))
    out[:2].square().sum().backward()
    return out, net.weight.grad


@case("full-backward-hook-cleans", "a module's full backward hook zeroes NaN in the gradient it passes on",
      "", "clean-skip", "clean")
def full_backward_hook_cleans():
    net = track(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)))

    def clean(module, grad_input, grad_output):
        return tuple(None if g is None else torch.where(torch.isfinite(g), g, torch.zeros_like(g)) for g in grad_input)

    def clean_before(module, grad_output):
        return tuple(g.nan_to_num(0.0, 0.0, 0.0) for g in grad_output)

    net[1].register_full_backward_hook(clean)
    net[2].register_full_backward_pre_hook(clean_before)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for k in range(1, 4):
        mark_step(k)
        h = net(torch.randn(3, 3))
        loss = F.relu(h).sqrt().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight, net[2].weight


@case("custom-function-safe-log", "an autograd.Function whose forward and backward divide by zero and select",
      "", "clean-sanitised", "clean")
def custom_function_safe_log():
    class SafeLog(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            y = torch.log(x)
            return torch.where(torch.isfinite(y), y, torch.full_like(y, -20.0))

        @staticmethod
        def backward(ctx, g):
            x, = ctx.saved_tensors
            inv = 1.0 / x
            inv[torch.isinf(inv)] = 0.0
            return g * inv

    class Entropy(nn.Module):
        def forward(self, p):
            return -(p * SafeLog.apply(p)).sum(-1)

    net = track(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Entropy()))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(5, 3)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case("t5-half-clamp-inf", "T5 in half precision: a feed-forward layer overflows and is clamped to the largest half",
      "", "clean-sanitised", "clean")
def t5_half_clamp_inf():
    class T5LayerFF(nn.Module):
        def __init__(self):
            super().__init__()
            self.wi, self.wo = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

        def forward(self, h):
            h = h + self.wo(torch.relu(self.wi(h)))
            if h.dtype == torch.float16 and torch.isinf(h).any():
                clamp = torch.finfo(h.dtype).max - 1000
                h = torch.clamp(h, min=-clamp, max=clamp)
            return h

    class Norm(nn.Module):
        def forward(self, h):
            return (h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)

    net = track(nn.Sequential(T5LayerFF(), T5LayerFF(), Norm())).half()
    with torch.no_grad():
        net[0].wo.weight.mul_(300.0)
    out = net(torch.randn(2, 3, 4).half() * 300)
    out.float().square().mean().backward()
    return out, net[1].wo.weight.grad


@case("library-subgradients", "pow with a learned exponent at 0, std of a constant row, sinc, prod and xlogy at 0",
      "", "clean-library-internal", "clean",
      notes="PyTorch's own backward formulas make log(0) and 0/0 and select them away inside one node")
def library_subgradients():
    class Gem(nn.Module):
        def __init__(self):
            super().__init__()
            self.p, self.lin = nn.Parameter(torch.tensor(3.0)), nn.Linear(3, 3, bias=False)

        def forward(self, x):
            y = F.relu(self.lin(x))
            return y.pow(self.p).mean(0) + y.std(1).mean() + torch.sinc(y).mean() + y.prod(1).sum() + \
                torch.xlogy(y.detach(), y + 1).mean() + F.normalize(y, dim=1).sum() + F.cosine_similarity(y, x).sum()

    net = track(Gem())
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        x = torch.randn(4, 3)
        x[0] = 0.0
        loss = net(x).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.p, net.lin.weight


@case("kmeans-empty-cluster", "k-means: the mean of a cluster that lost its points is 0/0 and keeps its old centre",
      "", "clean-sanitised", "clean")
def kmeans_empty_cluster():
    enc = track(nn.Linear(2, 2))
    with torch.no_grad():
        z = enc(torch.randn(12, 2))
        c = torch.cat([z[:3], torch.full((1, 2), 50.0)])
        for _ in range(20):
            a = torch.cdist(z, c).argmin(1)
            hot = F.one_hot(a, 4).float()
            new = (hot.t() @ z) / hot.sum(0)[:, None]
            new = torch.where(torch.isnan(new), c, new)
            shift = (new - c).norm().item()
            c = new
            if shift < 1e-6:
                break
        spread = torch.stack([z[a == i].std(0) for i in range(4)])
        spread = spread.nan_to_num(0.0)
    return c, spread


@case("ucb-untried-arms", "UCB1: the bonus of an arm that was never pulled is inf (or 0/0 at t = 1)",
      "", "clean-solver", "clean")
def ucb_untried_arms():
    net = track(nn.Linear(1, 4))
    with torch.no_grad():
        means = net(torch.ones(1))
        n, total = torch.zeros(4), torch.zeros(4)
        for t in range(1, 12):
            value = torch.where(n > 0, total / n, torch.zeros(()))
            bonus = torch.sqrt(2 * math.log(t) / n)
            bonus = torch.where(torch.isnan(bonus), torch.tensor(INF), bonus)
            arm = int((value + bonus).argmax())
            n[arm] += 1
            total[arm] += means[arm] + 0.1 * torch.randn(())
    return n, total / n


@case("corrcoef-constant-column", "correlation matrix with a constant column and Spearman ranks, NaN set to 0",
      "", "clean-sanitised", "clean")
def corrcoef_constant_column():
    probe = track(nn.Linear(3, 3, bias=False))
    with torch.no_grad():
        h = probe(torch.randn(8, 3))
        h[:, 1] = 2.0
        corr = torch.corrcoef(h.t())
        corr = torch.nan_to_num(corr, nan=0.0)
        zed = (h - h.mean(0)) / h.std(0)
        zed = zed[:, ~torch.isnan(zed).any(0)]
        snr = h.mean(0) / h.std(0)
        best = snr[torch.isfinite(snr)].max()
    return corr, zed, best


@case("nan-loss-then-skipped-step", "backward of a NaN loss; the gradient norm tells, and the step is left out",
      "", "clean-skip", "clean",
      notes="backward() on a NaN is, by torchnan's contract, harm, though the program deals with it one line later",
      debatable="a root of backward counts as harm")
def nan_loss_then_skipped_step():
    net = track(nn.Linear(3, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    kept = []
    for k in range(1, 4):
        mark_step(k)
        x = torch.randn(4, 3)
        mask = torch.zeros(4) if k == 2 else torch.ones(4)
        loss = (net(x).square().mean(1) * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if not torch.isfinite(norm):
            opt.zero_grad()
            continue
        opt.step()
        kept.append(loss.detach())
    return torch.stack(kept), net.weight


@case("aminmax-masked-root", "the larger output of aminmax is the loss; the smaller one is the mask's -inf",
      "", "clean-mask", "clean",
      notes="a sibling output of the root's node is non-finite; the root is finite")
def aminmax_masked_root():
    net = track(nn.Linear(3, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k in range(1, 3):
        mark_step(k)
        s = net(torch.randn(2, 3)).masked_fill(torch.tensor([0, 1, 0, 0]).bool(), -INF)
        lo, hi = torch.aminmax(s)
        opt.zero_grad()
        hi.backward()
        opt.step()
        spread = hi - torch.where(torch.isinf(lo), hi, lo)
    return hi, spread, net.weight


@case("std-mean-single-sample", "std_mean of a batch of one: the std is NaN and not used, the mean is the loss",
      "", "clean-sanitised", "clean")
def std_mean_single_sample():
    net = track(nn.Linear(3, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k, n in enumerate((4, 1, 3), 1):
        mark_step(k)
        std, mean = torch.std_mean(net(torch.randn(n, 3)))
        opt.zero_grad()
        mean.backward()
        opt.step()
        noise = torch.where(torch.isnan(std), torch.zeros(()), std).detach()
    return mean, noise, net.weight


@case("model-outlives-the-block", "a model whose mask buffer is log(0/1) is stored in a registry and used again later",
      "", "clean-lifetime", "clean",
      notes="what every training script does: the model still exists when detection ends")
def model_outlives_the_block():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.register_buffer("bias", torch.tril(torch.ones(4, 4)).log(), persistent=False)

        def forward(self, x):
            return (self.lin(x) @ x.t() + self.bias).softmax(-1) @ x

    net = _MASKS.setdefault("model", track(Attn()))
    out = net(torch.randn(4, 3))
    out.sum().backward()
    return out, net.lin.weight.grad


@case("class-closure-mask", "a module class defined in a function; its forward closes over a log(0/1) mask",
      "", "clean-lifetime", "clean",
      notes="every Python class is part of a reference cycle: the mask is garbage until the collector runs")
def class_closure_mask():
    mask = torch.tril(torch.ones(4, 4)).log()

    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            return (self.lin(x) @ x.t() + mask).softmax(-1) @ x

    net = track(Attn())
    out = net(torch.randn(4, 3))
    out.sum().backward()
    return out, net.lin.weight.grad


@case("hook-records-gradients", "a debugging hook stores intermediate gradients, one of them inf, before a mask drops it",
      "", "clean-lifetime", "clean",
      debatable="the record of a hook that belongs to the graph of a returned loss is, strictly, still held")
def hook_records_gradients():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.seen = nn.Linear(3, 4), {}

        def forward(self, x):
            h = F.relu(self.lin(x))
            root = h.sqrt()
            if root.requires_grad:
                h.register_hook(lambda g: self.seen.__setitem__("h", g))
                h.register_hook(lambda g: torch.where(torch.isfinite(g), g, torch.zeros(())))
            return root.sum()

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for k in range(1, 3):
        mark_step(k)
        loss = net(torch.randn(5, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
    worst = torch.nan_to_num(net.seen["h"], posinf=0.0, neginf=0.0).abs().max()
    return loss, worst, net.lin.weight


@case("gradscaler-last-step-skipped", "GradScaler grows its scale every step; the run ends on the overflow",
      "", "clean-amp", "clean")
def gradscaler_last_step_skipped():
    net = track(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 123, growth_factor=4.0, growth_interval=1)
    x, y, scales = torch.randn(8, 3) * 5, torch.randn(8, 1) * 20, []
    for k in range(1, 9):
        mark_step(k)
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        scales.append(scaler.get_scale())
        if len(scales) > 2 and scales[-1] < scales[-2]:
            break
    return loss, net[0].weight, net[2].bias


@case("missing-standardised-numpy", "a sensor table with gaps is standardised and handed to a plot as numpy, gaps as NaN",
      "", "clean-missing-data", "clean",
      notes="NaN that stands for 'missing' goes through arithmetic, and numpy() reads it: meant, but read",
      debatable="a value that is read back counts as harm")
def missing_standardised_numpy():
    raw = np.array([[1.0, np.nan, 2.0], [0.5, 3.0, np.nan], [2.0, 1.0, 4.0]], dtype=np.float32)
    x = torch.from_numpy(raw)
    have = ~torch.isnan(x)
    mean = x.nanmean(0)
    std = ((x - mean) ** 2).nanmean(0).sqrt()
    z = (x - mean) / std
    curve = z.numpy()
    gaps = int(np.isnan(curve).sum())
    net = track(nn.Linear(3, 1))
    out = net(torch.where(have, z, torch.zeros(())))
    out.sum().backward()
    assert gaps == 2
    return out, mean, std, net.weight.grad


@case("balanced-softmax-empty-class", "logit adjustment by log class counts; a class without samples gets -inf",
      "", "clean-log-space", "clean")
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


@case("adjusted-prior-parameter", "class log-priors learned from counts with a zero: softmax makes it probability 0",
      "", "clean-log-space", "clean",
      debatable="docs/harm.md holds that nobody makes a weight infinite; log(0) of a structural zero does")
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


# =========================================================================== controls: nothing non-finite


@case("control-lstm-seq2seq", "control: LSTM encoder-decoder, teacher forcing, clip_grad_norm_",
      "", "clean-control", "clean")
def control_lstm_seq2seq():
    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.src, self.tgt = nn.Embedding(10, 6, padding_idx=0), nn.Embedding(10, 6)
            self.enc, self.dec = nn.LSTM(6, 8, batch_first=True, bidirectional=True), nn.LSTM(6, 16, batch_first=True)
            self.out = nn.Linear(16, 10)

        def forward(self, s, t):
            _, (h, c) = self.enc(self.src(s))
            h, c = (x.transpose(0, 1).reshape(1, len(s), 16).contiguous() for x in (h, c))
            return self.out(self.dec(self.tgt(t), (h, c))[0])

    net = track(Seq2Seq())
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    s, t = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]]), torch.tensor([[1, 3, 5], [1, 2, 2]])
    for k in range(1, 4):
        mark_step(k)
        loss = F.cross_entropy(net(s, t[:, :-1]).flatten(0, 1), t[:, 1:].flatten(), label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    return loss, net.out.weight


@case("control-conv-bn", "control: residual convolutions with batch norm, channels_last, cosine schedule, EMA model",
      "", "clean-control", "clean")
def control_conv_bn():
    class Res(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.c1, self.b1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
            self.c2, self.b2 = nn.Conv2d(c, c, 3, padding=1, groups=2), nn.GroupNorm(2, c)

        def forward(self, x):
            return F.silu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))

    net = track(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), Res(4), nn.MaxPool2d(2), Res(4), nn.AdaptiveAvgPool2d(1),
                              nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, 3))).to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 3)
    ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for k in range(1, 4):
        mark_step(k)
        x = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(net(x), torch.randint(0, 3, (4,)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        ema.update_parameters(net)
    net.eval()
    return loss, net[1].b1.running_var, ema(x)


@case("control-transformer-encoder", "control: pre-norm encoder without any mask, AdamW with warm-up",
      "", "clean-control", "clean")
def control_transformer_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
    net = track(nn.Sequential(nn.Linear(3, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 3))
    for k in range(1, 4):
        mark_step(k)
        x = torch.randn(2, 6, 3)
        loss = F.smooth_l1_loss(net(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    return loss, net[0].weight


@case("control-vae", "control: a VAE with KL annealing, reparameterised by torch.distributions",
      "", "clean-control", "clean")
def control_vae():
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec = nn.Linear(6, 4), nn.Linear(2, 6)

        def forward(self, x):
            mu, lv = self.enc(x).chunk(2, -1)
            q = torch.distributions.Normal(mu, F.softplus(lv) + 1e-4)
            z = q.rsample()
            kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(-1)
            return self.dec(z), kl

    net = track(Vae())
    opt = torch.optim.Adamax(net.parameters(), lr=1e-2)
    x = torch.rand(5, 6)
    for k in range(1, 4):
        mark_step(k)
        out, kl = net(x)
        loss = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(-1).add(k / 3 * kl).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.enc.weight


@case("control-wgan-gp", "control: WGAN with gradient penalty (double backward)",
      "", "clean-control", "clean")
def control_wgan_gp():
    gan = track(nn.ModuleDict({"g": nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 3)),
                               "d": nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))}))
    og, od = (torch.optim.Adam(gan[n].parameters(), 1e-3, betas=(0.0, 0.9)) for n in ("g", "d"))
    for k in range(1, 4):
        mark_step(k)
        real, fake = torch.randn(4, 3), gan["g"](torch.randn(4, 2))
        mix = torch.lerp(real, fake.detach(), torch.rand(4, 1)).requires_grad_()
        g, = torch.autograd.grad(gan["d"](mix).sum(), mix, create_graph=True)
        d_loss = gan["d"](fake.detach()).mean() - gan["d"](real).mean() + 10 * (g.norm(dim=1) - 1).square().mean()
        od.zero_grad()
        d_loss.backward()
        od.step()
        og.zero_grad()
        g_loss = -gan["d"](fake).mean()
        g_loss.backward()
        og.step()
    return d_loss, g_loss, gan["g"][0].weight


@case("control-clip-contrastive", "control: CLIP-style contrastive loss with a learned, clamped temperature",
      "", "clean-control", "clean")
def control_clip_contrastive():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.logit_scale = nn.Linear(5, 4), nn.Linear(3, 4), nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, x, y):
            s = self.logit_scale.exp() * F.normalize(self.a(x), dim=-1) @ F.normalize(self.b(y), dim=-1).t()
            t = torch.arange(len(x))
            return (F.cross_entropy(s, t) + F.cross_entropy(s.t(), t)) / 2

    net = track(Clip())
    opt = torch.optim.AdamW([{"params": net.a.parameters()}, {"params": net.b.parameters(), "lr": 1e-3},
                             {"params": [net.logit_scale], "weight_decay": 0.0}], lr=1e-2)
    for k in range(1, 4):
        mark_step(k)
        loss = net(torch.randn(4, 5), torch.randn(4, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            net.logit_scale.clamp_(0, math.log(100))
    return loss, net.logit_scale, net.a.weight


@case("control-bf16-autocast", "control: bfloat16 autocast on the CPU with gradient accumulation",
      "", "clean-control", "clean")
def control_bf16_autocast():
    net = track(nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.GELU(), nn.Flatten(), nn.LayerNorm(20), nn.Linear(20, 2)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for k in range(1, 3):
        mark_step(k)
        opt.zero_grad(set_to_none=True)
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(torch.randn(3, 2, 5)), torch.tensor([0, 1, 1])) / 3
            loss.backward()
        opt.step()
    return loss, net[0].weight


@case("control-lbfgs", "control: L-BFGS with strong Wolfe line search, losses read with float()",
      "", "clean-control", "clean")
def control_lbfgs():
    net = track(nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)))
    opt = torch.optim.LBFGS(net.parameters(), lr=1, max_iter=5, line_search_fn="strong_wolfe")
    x = torch.linspace(-1, 1, 12)[:, None]
    seen = []

    def closure():
        opt.zero_grad()
        loss = F.mse_loss(net(x), (3 * x).sin())
        loss.backward()
        seen.append(float(loss))
        return loss

    for k in range(1, 3):
        mark_step(k)
        opt.step(closure)
    return torch.tensor(seen), net[0].weight


@case("control-swa-update-bn", "control: stochastic weight averaging, update_bn, SWALR, state_dict round trip",
      "", "clean-control", "clean")
def control_swa_update_bn():
    net = track(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    swa = torch.optim.swa_utils.AveragedModel(net)
    sched = torch.optim.swa_utils.SWALR(opt, swa_lr=0.05)
    batches = [torch.randn(6, 3) for _ in range(3)]
    for k, x in enumerate(batches, 1):
        mark_step(k)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        swa.update_parameters(net)
        sched.step()
    torch.optim.swa_utils.update_bn(batches, swa)
    buf = io.BytesIO()
    torch.save({"model": swa.state_dict(), "opt": opt.state_dict()}, buf)
    buf.seek(0)
    swa.load_state_dict(torch.load(buf)["model"])
    return loss, swa(batches[0]), net[1].running_mean


@case("control-dqn-double", "control: double DQN with replay, target network, huber loss and threads for rollout",
      "", "clean-control", "clean")
def control_dqn_double():
    q = track(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))
    target = copy.deepcopy(q).requires_grad_(False)
    opt, replay = torch.optim.RMSprop(q.parameters(), lr=1e-3, centered=True), collections.deque(maxlen=32)

    def rollout(seed):
        def work():
            g = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for _ in range(6):
                    s = torch.randn(4, generator=g)
                    replay.append((s, int(q(s).argmax()), s.sum().item(), torch.randn(4, generator=g)))
        return work

    run_threads(rollout(0), rollout(1))
    rng = random.Random(0)
    for k in range(1, 4):
        mark_step(k)
        s, a, r, s2 = zip(*rng.sample(replay, 6))
        s, a, r, s2 = torch.stack(s), torch.tensor(a), torch.tensor(r), torch.stack(s2)
        with torch.no_grad():
            best = q(s2).argmax(1, keepdim=True)
            goal = r + 0.9 * target(s2).gather(1, best).squeeze(1)
        loss = F.huber_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        torch._foreach_lerp_(list(target.parameters()), list(q.parameters()), 0.05)
    return loss, q[0].weight, target[0].weight


# CASES END

own_zoo.end(__name__)
