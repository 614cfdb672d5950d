"""Uninitialized memory that is read."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from tests.zoo.framework import alt, case, dirty, mark_step, track


@case(
    "parameter-never-initialised",
    "nn.Parameter(torch.empty(...)) in a constructor that forgets reset_parameters()",
    "",
    "uninitialised",
    "nan",
    origin="parameter",
    name="bg_embeddings",
    module="",
    also=[alt("forward", ["cat", "mm", "matmul", "linalg_vector_norm", "div"])],
)
def parameter_never_initialised():
    class Stale(nn.Module):
        def __init__(self):
            super().__init__()
            self.bg_embeddings = nn.Parameter(dirty(torch.empty(1, 4)))  # ORIGIN
            self.visual = nn.Linear(3, 4)

        def forward(self, x, text):
            text = torch.cat([text, self.bg_embeddings])
            text = text / text.norm(dim=-1, keepdim=True)
            return self.visual(x) @ text.t()

    net = track(Stale())
    loss = F.cross_entropy(net(torch.randn(2, 3), torch.randn(2, 4)), torch.tensor([0, 1]))
    loss.backward()
    return loss, net.visual.weight.grad


@case(
    "crf-half-initialised",
    "CRF: only the start scores are initialised, the transition matrix is raw memory",
    "",
    "uninitialised",
    "nan",
    origin="parameter",
    name="crf.transitions",
    module="crf",
    also=[alt("forward", ["add"])],
)
def crf_half_initialised():
    class Crf(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.start = nn.Parameter(torch.empty(n))
            self.transitions = nn.Parameter(torch.Tensor(n, n))
            nn.init.uniform_(self.start, -0.1, 0.1)
            dirty(self.transitions)  # ORIGIN

        def forward(self, emissions):
            score = self.start + emissions[0]
            for e in emissions[1:]:
                score = torch.logsumexp(score[:, None] + self.transitions + e[None], 0)
            return torch.logsumexp(score, 0)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4)
            self.crf = Crf(4)

        def forward(self, x):
            return self.crf(self.lstm(x)[0])

    net = track(Tagger())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = net(torch.randn(5, 3))
    loss.backward()
    opt.step()
    return loss, net.crf.start


@case(
    "legacy-tensor-accumulator",
    "torch.Tensor(n) is taken for zeros and used as a running confusion matrix",
    "",
    "uninitialised",
    "nan",
    ["empty"],
    module=None,
    origin="uninit",
    name="hist",
    also=[alt("forward", ["add", "add_"])],
)
def legacy_tensor_accumulator():
    net = track(nn.Linear(3, 2))
    hist = dirty(torch.Tensor(2, 2))  # ORIGIN
    with torch.no_grad():
        for _ in range(3):
            x, y = torch.randn(4, 3), torch.randint(2, (4,))
            pred = net(x).argmax(1)
            hist += torch.bincount(2 * y + pred, minlength=4).view(2, 2)
    iou = hist.diag() / (hist.sum(0) + hist.sum(1) - hist.diag())
    return (iou.mean(),)


@case(
    "collate-new-empty-padding",
    "a collate function pads with new_empty and never writes the padding",
    "",
    "uninitialised",
    "nan",
    ["new_empty"],
    module="proj",
    origin="uninit",
    name="batch",
    also=[alt("forward", ["addmm", "mm"])],
)
def collate_new_empty_padding():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(2, 3)

        def forward(self, x, n):
            h = self.proj(x)
            keep = (torch.arange(x.shape[1])[None] < n[:, None]).float()[..., None]
            return (h * keep).sum(1) / n[:, None]

    def collate(items):
        n = torch.tensor([len(i) for i in items])
        out = dirty(items[0].new_empty(len(items), int(n.max()), 2))  # ORIGIN
        for row, item in zip(out, items):
            row[: len(item)] = item
        return out, n

    data = [torch.randn(3, 2), torch.randn(1, 2), torch.randn(2, 2)]
    net = track(Pool())
    for x, n in DataLoader(data, batch_size=3, collate_fn=collate):
        loss = net(x, n).pow(2).mean()
        loss.backward()
    return loss, net.proj.weight.grad


@case(
    "masked-writer-empty-like",
    "router: each expert writes its tokens into empty_like(x); tokens of no expert stay garbage",
    "",
    "uninitialised",
    "nan",
    ["empty_like"],
    module="moe",
    origin="uninit",
    name="out",
    step=1,
    also=[alt("forward", ["add"])],
)
def masked_writer_empty_like():
    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x, route):
            out = dirty(torch.empty_like(x))  # ORIGIN
            for e, expert in enumerate(self.experts):
                out[route == e] = expert(x[route == e])
            return x + out

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.moe = Moe()
            self.out = nn.Linear(4, 1)

        def forward(self, x, r):
            return self.out(self.moe(x, r))

    net = track(Net())
    opt = torch.optim.Adam(net.parameters())
    mark_step(1)
    loss = net(torch.randn(5, 4), torch.tensor([0, 1, -1, 1, 0])).mean()
    loss.backward()
    opt.step()
    return loss, net.out.weight


@case(
    "baddbmm-beta-one",
    "scores = baddbmm(torch.empty(...), q, k) with beta left at 1: raw memory is added",
    "",
    "uninitialised",
    "nan",
    ["empty"],
    module="attn",
    origin="uninit",
    name="baddbmm_input",
    also=[alt("forward", ["baddbmm"])],
)
def baddbmm_beta_one():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = torch.baddbmm(
                dirty(torch.empty(q.shape[0], q.shape[1], k.shape[1])),  # ORIGIN
                q,
                k.transpose(1, 2),
                alpha=0.5,
            )
            return scores.softmax(-1) @ v

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x):
            return x + self.attn(x)

    net = track(Block())
    with torch.inference_mode():
        return net(torch.randn(2, 3, 4)).sum().item(), net(torch.randn(2, 3, 4))


@case(
    "gru-empty-h0",
    "the initial hidden state of a decoder is allocated with torch.empty",
    "",
    "uninitialised",
    "nan",
    ["empty"],
    module="dec.gru",
    origin="uninit",
    name="h0",
    also=[alt("forward", ["addmm", "gru", "mm"])],
)
def gru_empty_h0():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(3, 4, batch_first=True)
            self.out = nn.Linear(4, 3)

        def init_hidden(self, b):
            return dirty(torch.empty(1, b, 4))  # ORIGIN

        def forward(self, y):
            h, _ = self.gru(y, self.init_hidden(len(y)))
            return self.out(h)

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.dec = Decoder()

        def forward(self, y):
            return self.dec(y)

    net = track(Seq2Seq())
    loss = F.mse_loss(net(torch.randn(2, 3, 3)), torch.zeros(2, 3, 3))
    loss.backward()
    return loss, net.dec.out.bias.grad


@case(
    "grad-empty-accumulates",
    "gradient buffers are preallocated with empty_like; backward accumulates into them",
    "",
    "uninitialised",
    "nan",
    ["empty_like"],
    module=None,
    origin="uninit",
    name="grad",
    phase="backward",
    also=[alt("backward", [], ["torch::autograd::AccumulateGrad"])],
)
def grad_empty_accumulates():
    net = track(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for p in net.parameters():
        p.grad = dirty(torch.empty_like(p))  # ORIGIN
    loss = net(torch.randn(4, 2)).mean()
    loss.backward()
    opt.step()
    return net[0].weight, net[1].bias


@case(
    "momentum-buffer-empty",
    "a home-made optimizer allocates its momentum with empty_like",
    "",
    "uninitialised",
    "nan",
    ["empty_like"],
    module=None,
    origin="uninit",
    name="momentum",
    phase="optimizer",
    step=1,
    also=[alt("forward", ["mul_"])],
)
def momentum_buffer_empty():
    class HeavyBall(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, dict(lr=lr))

        @torch.no_grad()
        def step(self):
            for g in self.param_groups:
                for p in g["params"]:
                    if p.grad is None:
                        continue
                    s = self.state[p]
                    if "momentum" not in s:
                        s["momentum"] = dirty(torch.empty_like(p, memory_format=torch.preserve_format))  # ORIGIN
                    p.sub_(s["momentum"].mul_(0.9).add_(p.grad), alpha=g["lr"])

    net = track(nn.Linear(3, 1))
    opt = HeavyBall(net.parameters(), 0.1)
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        opt.step()
    return (net.weight,)


@case(
    "resize-grow-tail",
    "a ring of features is grown with resize_(): the new tail is garbage",
    "",
    "uninitialised",
    "nan",
    ["resize_"],
    module="score",
    origin="uninit",
    name="bank",
    also=[alt("forward", ["addmm", "mm"])],
)
def resize_grow_tail():
    class Matcher(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(3, 1)

        def forward(self, bank):
            return self.score(bank).max()

    net = track(Matcher())
    bank = torch.randn(2, 3)
    bank.resize_(4, 3)  # ORIGIN
    dirty(bank[2:])
    bank[2] = torch.ones(3)
    loss = net(bank)
    loss.backward()
    return loss, net.score.weight.grad


@case(
    "position-table-buffer",
    "a learned position table, frozen into a buffer, is NaN for one position; it is looked up by index",
    "",
    "nan-weights",
    "nan",
    origin="buffer",
    name="pos.table",
    module="pos",
    also=[alt("forward", ["index", "add", "native_layer_norm"])],
    notes="the lookup that reads the buffer is in pos",
)
def position_table_buffer():
    class Pos(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.register_buffer("table", table)

        def forward(self, ids):
            return self.table[ids]

    class Net(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.pos = Pos(table)
            self.tok = nn.Embedding(5, 4)
            self.ln = nn.LayerNorm(4)

        def forward(self, ids, where):
            return self.ln(self.tok(ids) + self.pos(where))

    table = np.random.RandomState(0).randn(8, 4).astype(np.float32)
    table[6] = np.nan
    net = track(Net(torch.from_numpy(table)))  # ORIGIN
    loss = net(torch.tensor([1, 2, 3]), torch.tensor([0, 6, 2])).abs().sum()
    loss.backward()
    return loss, net.tok.weight.grad


@case(
    "meta-to-empty-partial-load",
    "a model built on meta, to_empty(), then a checkpoint that lacks the head (strict=False)",
    "",
    "uninitialised",
    "nan",
    origin="parameter",
    name="lm_head.weight",
    module="lm_head",
)
def meta_to_empty_partial_load():
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(3, 3)
            self.lm_head = nn.Linear(3, 4, bias=False)

        def forward(self, x):
            return self.lm_head(F.silu(self.body(x)))

    with torch.device("meta"):
        net = Lm()
    net = net.to_empty(device="cpu")
    for p in net.parameters():
        dirty(p)  # ORIGIN
    net.load_state_dict({"body.weight": torch.eye(3), "body.bias": torch.zeros(3)}, strict=False)
    net = track(net)
    with torch.no_grad():
        return net(torch.ones(1, 3))


@case(
    "empty-cast-before-use",
    "a mask buffer is allocated in half with torch.empty and cast to float before it is added",
    "",
    "uninitialised",
    "nan",
    ["empty"],
    origin="uninit",
    name="bias",
    module="attn",
    notes="the cast is made outside; the addition in attn",
)
def empty_cast_before_use():
    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(3, 3)

        def forward(self, x, bias):
            return (self.q(x) @ x.t() + bias).softmax(-1) @ x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x, bias):
            return self.attn(x, bias)

    net = track(Net())
    bias = dirty(torch.empty(2, 2, dtype=torch.half)).float()  # ORIGIN
    loss = net(torch.randn(2, 3), bias).sum()
    loss.backward()
    return loss, net.attn.q.weight.grad


@case(
    "legacy-new-constructor",
    "noise = x.new(x.size()) without .normal_(): the old constructor does not initialise",
    "",
    "uninitialised",
    "nan",
    ["empty", "new_empty"],
    origin="uninit",
    name="noise",
    module="gate",
)
def legacy_new_constructor():
    class Gate(nn.Module):
        def forward(self, x):
            noise = dirty(x.new(x.size()))  # ORIGIN
            return x + 0.1 * noise

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 3)
            self.gate = Gate()

        def forward(self, x):
            return self.gate(self.fc(x))

    net = track(Net())
    loss = net(torch.ones(2, 2)).mean()
    loss.backward()
    return loss, net(torch.ones(1, 2))


@case(
    "registered-empty-buffer",
    "a queue of keys is registered with torch.empty and multiplied before it is filled",
    "",
    "uninitialised",
    "nan",
    origin="buffer",
    name="queue",
    module="",
    step=1,
    debatable="unwritten memory or the buffer that owns it: read through clone()",
)
def registered_empty_buffer():
    class Moco(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(3, 2)
            self.register_buffer("queue", dirty(torch.empty(2, 4)))  # ORIGIN

        def forward(self, x):
            q = F.normalize(self.q(x), dim=1)
            with torch.no_grad():
                k = q.clone()
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / 0.07
            self.queue[:, : len(k)] = k.t()
            return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    net = track(Moco())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    mark_step(1)
    loss = net(torch.randn(2, 3))
    loss.backward()
    opt.step()
    return loss, net.q.weight
