"""Attention masks."""

import copy
import io
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.zoo.framework import INF, case, mark_step, run_threads, track


@case("alibi-causal-buffer", "ALiBi slopes added to a causal -inf buffer, one AdamW step", "", "clean-mask", "clean")
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


@case(
    "sliding-window-mask", "Mistral's sliding window: log of a banded 0/1 matrix is the mask", "", "clean-mask", "clean"
)
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


@case(
    "log-tril-mask-cache",
    "the same mask, kept in a module-level cache for the next call",
    "",
    "clean-mask",
    "clean",
    notes="log(0) is how the mask is written; a process-wide cache holds it when the block ends",
)
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


@case(
    "finfo-min-twice-bf16",
    "causal finfo.min plus padding finfo.min overflows to -inf in bfloat16",
    "",
    "clean-mask",
    "clean",
)
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


@case(
    "softmax-then-refill-dead-rows",
    "rows of padding queries are NaN after softmax and are filled with 0",
    "",
    "clean-mask",
    "clean",
)
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


@case(
    "sdpa-dead-row", "scaled_dot_product_attention with a query that may attend to nothing", "", "clean-mask", "clean"
)
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


@case(
    "sdpa-math-dead-row-dropout",
    "the math kernel of attention with a float mask and a dead row, in training mode",
    "",
    "clean-mask",
    "clean",
)
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


@case(
    "mha-both-masks",
    "MultiheadAttention: float causal mask and boolean key padding, weights averaged and logged",
    "",
    "clean-mask",
    "clean",
)
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


@case(
    "encoder-eval-fastpath",
    "TransformerEncoder in eval mode: padding goes through nested tensors and the fused layer",
    "",
    "clean-mask",
    "clean",
)
def encoder_eval_fastpath():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    model = track(nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)).eval()
    x = torch.randn(2, 5, 8)
    pad = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]).bool()
    with torch.inference_mode():
        out = model(x, src_key_padding_mask=pad)
        causal = model(x, mask=torch.full((5, 5), -INF).triu(1), is_causal=True)
    return out.clone(), causal.clone()


@case(
    "checkpointed-causal-block",
    "a causal block under activation checkpointing, both variants",
    "",
    "clean-mask",
    "clean",
)
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


@case(
    "moe-noisy-topk-gate",
    "noisy top-k gating: logits of the experts that were not chosen are -inf",
    "",
    "clean-mask",
    "clean",
)
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
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, e : e + 1])
            return out, weights

    net = track(MoE())
    out, w = net(torch.randn(6, 4))
    loss = out.pow(2).mean() + w.mean(0).pow(2).sum()
    loss.backward()
    return loss, net.gate.weight.grad


@case(
    "pointer-tsp-reinforce",
    "pointer decoder: visited cities get -inf, log-probability of the tour by gather",
    "",
    "clean-mask",
    "clean",
)
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


@case(
    "maskable-policy",
    "PPO with invalid actions: -inf logits, entropy over the valid ones only",
    "",
    "clean-mask",
    "clean",
)
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


@case("threads-masked-inference", "two worker threads run the same causal model", "", "clean-mask", "clean")
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


@case(
    "print-save-copy-mask",
    "a mask is printed, turned to lists and numpy, saved, loaded and deep-copied",
    "",
    "clean-mask",
    "clean",
)
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
    text = repr(net.mask) + str(net.mask[0]) + "%s" % net.floor + repr(net.mask.tolist()) + f"{net.floor:.3f}"
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


@case(
    "mask-as-frozen-parameter",
    "a mask kept as nn.Parameter(requires_grad=False), handed to the optimizer with the rest",
    "",
    "clean-mask",
    "clean",
)
def mask_as_frozen_parameter():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 4)
            self.mask = nn.Parameter(torch.full((5, 5), -INF).triu(1), requires_grad=False)
            self.dist = nn.Parameter(
                -torch.log(1.0 / (torch.arange(5.0) - torch.arange(5.0)[:, None]).clamp(min=0)), requires_grad=False
            )

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


@case(
    "padded-vocab-bias-neginf",
    "the output bias of padded vocabulary entries is -inf and stays it through training",
    "",
    "clean-mask",
    "clean",
    debatable="docs/harm.md assumes that weights are never infinite on purpose; here one is",
)
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


@case(
    "compiled-eager-mask",
    "torch.compile(backend='aot_eager') around a masked attention step",
    "",
    "clean-mask",
    "clean",
)
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


@case(
    "aminmax-masked-root",
    "the larger output of aminmax is the loss; the smaller one is the mask's -inf",
    "",
    "clean-mask",
    "clean",
    notes="a sibling output of the root's node is non-finite; the root is finite",
)
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
