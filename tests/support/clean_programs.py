"""Correct programs in which uninitialized memory, or an intentional infinity, takes part.

The result of a program is the value that its user continues with: it is finite. The zoo has longer ones of this kind.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

NAN, INF = float("nan"), float("inf")
Program = Callable[[], object]

FAMILIES: dict[str, list[Program]] = {}


def family(name: str) -> Callable[[Program], Program]:
    """Adds a program to a family."""

    def add(program: Program) -> Program:
        FAMILIES.setdefault(name, []).append(program)
        return program

    return add


@contextlib.contextmanager
def soiled_memory() -> Iterator[None]:
    """Newly allocated memory is full of NaN, as in PyTorch's own mode for finding such reads."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def t(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def trained(x: torch.Tensor) -> torch.Tensor:
    """A step from here back to a weight."""
    weight = nn.Parameter(torch.ones(x.shape[-1]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (x * weight).square().mean().backward()
    optimizer.step()
    return weight.detach()


# -- memory that is written before it is read

WRITERS: dict[str, Callable[[torch.Tensor], object]] = {
    "fill_": lambda x: x.fill_(2.0),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(torch.ones_like(x)),
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.uniform_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "exponential_": lambda x: x.exponential_(),
    "random_": lambda x: x.random_(10),
    "eye_": lambda x: nn.init.eye_(x),
    "orthogonal_": lambda x: nn.init.orthogonal_(x),
    "trunc_normal_": lambda x: nn.init.trunc_normal_(x),
    "setitem": lambda x: x.__setitem__(slice(None), 1.0),
    "rows": lambda x: [row.fill_(i) for i, row in enumerate(x)],
    "columns": lambda x: [x[:, i].copy_(torch.ones(len(x))) for i in range(x.shape[1])],
    "elements": lambda x: [x.__setitem__(at, 1.0) for at in itertools.product(*map(range, x.shape))],
    "mask and its opposite": lambda x: (
        x.masked_fill_(torch.eye(len(x)).bool(), 1.0),
        x.masked_fill_(~torch.eye(len(x)).bool(), 0.0),
    ),
    "index_copy_": lambda x: x.index_copy_(0, torch.arange(len(x)), torch.ones_like(x)),
    "index_fill_": lambda x: x.index_fill_(0, torch.arange(len(x)), 3.0),
    "index_put_": lambda x: x.index_put_((torch.arange(len(x)),), torch.ones_like(x)),
    "scatter_": lambda x: x.scatter_(1, torch.arange(x.shape[1]).expand(x.shape), 1.0),
    "masked_scatter_": lambda x: x.masked_scatter_(torch.ones_like(x).bool(), torch.ones_like(x)),
    "put_": lambda x: x.put_(torch.arange(x.numel()), torch.ones(x.numel())),
    "add(out=)": lambda x: torch.add(torch.ones_like(x), 1.0, out=x),
    "mm(out=)": lambda x: torch.mm(torch.eye(4), torch.eye(4), out=x),
    "cat(out=)": lambda x: torch.cat([torch.ones(2, 4), torch.zeros(2, 4)], out=x),
    "stack(out=)": lambda x: torch.stack([torch.ones(4)] * 4, out=x),
    "where(out=)": lambda x: torch.where(torch.eye(4).bool(), torch.eye(4), torch.ones(4, 4), out=x),
    "sort(out=)": lambda x: torch.sort(torch.rand(4, 4), out=(x, torch.empty(4, 4, dtype=torch.long))),
    "nan_to_num(out=)": lambda x: torch.nan_to_num(torch.eye(4), out=x),
    "addmm_ beta=0": lambda x: x.addmm_(torch.eye(4), torch.eye(4), beta=0),
    "baddbmm_ beta=0": lambda x: x[None].baddbmm_(torch.eye(4)[None], torch.eye(4)[None], beta=0),
    "addr_ beta=0": lambda x: x.addr_(torch.ones(4), torch.ones(4), beta=0),
    "foreach copy": lambda x: torch._foreach_copy_([x], [torch.ones(4, 4)]),
    "foreach zero": lambda x: torch._foreach_zero_([x]),
    "numpy": lambda x: x.numpy().fill(1.0),
    "set_data": lambda x: setattr(x, "data", torch.ones(4, 4)),
}

COPIES: dict[str, Callable[[], torch.Tensor]] = {
    "clone of it": lambda: torch.empty(4, 4).clone(),
    "contiguous copy of it": lambda: torch.empty(4, 4).t().contiguous(),
    "half of it and back": lambda: torch.empty(4, 4).half().float(),
    "cat of it": lambda: torch.cat([torch.empty(2, 4), torch.empty(2, 4)]),
}

FACTORIES: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(4, 4),
    "empty_like": lambda: torch.empty_like(torch.ones(4, 4)),
    "new_empty": lambda: torch.ones(1).new_empty(4, 4),
    "empty_strided": lambda: torch.empty_strided((4, 4), (4, 1)),
    "empty_permuted": lambda: torch.empty_permuted((4, 4), (0, 1)),
    "new_empty_strided": lambda: torch.ones(1).new_empty_strided((4, 4), (4, 1)),
    "Tensor(4, 4)": lambda: torch.Tensor(4, 4),
    "resize_ of nothing": lambda: torch.empty(0).resize_(4, 4),
    "resize_ that grows": lambda: torch.ones(2).resize_(4, 4),
    "resize_as_": lambda: torch.ones(2).resize_as_(torch.ones(4, 4)),
    "to_empty": lambda: nn.Linear(4, 4, device="meta").to_empty(device="cpu").weight.detach(),
    "skip_init": lambda: nn.utils.skip_init(nn.Linear, 4, 4).weight.detach(),
    "shared": lambda: torch.empty(4, 4).share_memory_(),
    "from a storage": lambda: torch.empty(0).set_(torch.UntypedStorage(64), 0, (4, 4)),
    **COPIES,
}


def written(factory: str, writer: str) -> torch.Tensor:
    made = FACTORIES[factory]()
    WRITERS[writer](made)
    return made * 2


for _factory in FACTORIES:
    family("unwritten")(lambda factory=_factory: written(factory, "copy_"))
for _writer in WRITERS:
    family("written")(lambda writer=_writer: written("empty", writer))


@family("unwritten")
def never_touched():
    kept = torch.empty(100), torch.empty(3, dtype=torch.float16), torch.ones(2).resize_(50)
    return len(kept)


@family("unwritten")
def only_the_written_part_is_read():
    grown = torch.ones(3).resize_(1000)
    return grown[:3].sum(), torch.empty(10).index_fill_(0, torch.tensor([2, 5]), 1.0)[[2, 5]].log()


@family("unwritten")
def loaded_from_a_checkpoint():
    layers = nn.Linear(3, 4, device="meta"), nn.BatchNorm1d(4, device="meta")
    model = nn.Sequential(*layers).to_empty(device="cpu").half()
    source = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.float().load_state_dict(source.state_dict())
    return trained(model(torch.randn(8, 3)).detach())


@family("unwritten")
def assigned_from_a_checkpoint():
    model = nn.Linear(3, 4, device="meta").to_empty(device="cpu")
    model.load_state_dict(nn.Linear(3, 4).state_dict(), assign=True)
    return model(torch.ones(2, 3)).detach()


@family("unwritten")
def initialised_late():
    model = nn.LSTM(3, 4, device="meta").to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        nn.init.zeros_(parameter) if "bias" in name else nn.init.xavier_uniform_(parameter)
    return model(torch.ones(2, 1, 3))[0].detach()


@family("unwritten")
def an_integer_in_the_bits_of_a_float():
    packed = torch.tensor([-1, 5, -2], dtype=torch.int32).view(torch.float32)  # two of them are NaN, to a float
    carried = torch.cat([packed, packed]).clone()[1:4]
    return carried.view(torch.int32).sum()


# -- padding

FOUR_BY_FOUR = torch.arange(16.0).view(1, 1, 4, 4)

for _program in (
    lambda: F.max_pool2d(F.pad(FOUR_BY_FOUR, (1, 1, 1, 1), value=-INF), 3),
    lambda: -F.max_pool2d(-F.pad(FOUR_BY_FOUR, (1, 1, 1, 1), value=INF), 3),
    lambda: F.max_pool2d(FOUR_BY_FOUR, 3, padding=1),
    lambda: F.max_pool1d(FOUR_BY_FOUR[0], 3, stride=2, padding=1, ceil_mode=True),
    lambda: F.max_unpool2d(*F.max_pool2d(FOUR_BY_FOUR, 2, return_indices=True), 2),
    lambda: F.adaptive_max_pool2d(F.pad(FOUR_BY_FOUR, (0, 1, 0, 1), value=-INF), 2),
    lambda: F.fractional_max_pool2d(FOUR_BY_FOUR, 2, output_size=3),
    lambda: nn.ConstantPad1d(2, -INF)(FOUR_BY_FOUR[0]).amax(-1),
    lambda: nn.utils.rnn.pad_sequence([t(1, 2), t(3)], padding_value=-INF).softmax(0),
    lambda: nn.utils.rnn.pad_sequence([t(1, 2), t(3)], padding_value=NAN).nansum(0),
    lambda: torch.nested.nested_tensor([t(1, 2), t(3)]).to_padded_tensor(-INF).amax(1),
    lambda: F.pad(FOUR_BY_FOUR, (1, 1, 1, 1), value=-INF).unfold(2, 3, 1).amax(-1).amax(-1),
    lambda: trained(F.max_pool1d(F.pad(torch.ones(1, 1, 4), (1, 1), value=-INF), 3, 1)),
):
    family("padding")(_program)


# -- masks


def attention(dtype: torch.dtype, backend: SDPBackend, mask: str) -> object:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 4, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    future = torch.ones(4, 4).triu(1).bool()
    masks = {
        "boolean": {"attn_mask": ~future},
        "additive": {"attn_mask": torch.zeros(4, 4, dtype=dtype).masked_fill(future, -INF)},
        "causal": {"is_causal": True},
        "dead row": {"attn_mask": torch.ones(4, 4).bool().index_fill(0, torch.tensor([1]), False)},
    }
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, **masks[mask])
    out.float().square().mean().backward()
    return out.detach(), q.grad, k.grad, v.grad


for _dtype, _backend, _mask in itertools.product(
    (torch.float32, torch.bfloat16, torch.float16, torch.float64),
    (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION),
    ("boolean", "additive", "causal", "dead row"),
):
    family("attention")(lambda dtype=_dtype, backend=_backend, mask=_mask: attention(dtype, backend, mask))

SCORES = t(0.5, -INF, 2.0, -INF)
ALL_MASKED = torch.full((2, 4), -INF)

for _program in (
    lambda: SCORES.softmax(0),
    lambda: trained(SCORES.expand(3, 4).softmax(-1)),
    lambda: SCORES.log_softmax(0)[[0, 2]],
    lambda: SCORES.bfloat16().softmax(0),
    lambda: F.softmax(SCORES, 0, dtype=torch.float64),
    lambda: F.gumbel_softmax(SCORES, dim=0),
    lambda: torch.masked.softmax(t(1, 2, 3), 0, mask=torch.tensor([True, False, True]))[[0, 2]],
    lambda: torch.masked.amax(t(1, 2, 3), 0, mask=torch.tensor([True, False, True])),
    lambda: torch.masked.logsumexp(t(1, 2, 3), 0, mask=torch.tensor([True, False, True])),
    lambda: SCORES.exp() + SCORES.sigmoid() + SCORES.tanh() + SCORES.relu(),
    lambda: SCORES.logsumexp(0),
    lambda: ALL_MASKED.logsumexp(1).exp(),
    lambda: torch.logaddexp(SCORES, t(0, 0, 0, 0)),
    lambda: torch.logaddexp(SCORES, t(0, -INF, 0, -INF)).exp(),
    lambda: SCORES.logcumsumexp(0),
    lambda: SCORES.cummax(0).values,
    lambda: torch._safe_softmax(ALL_MASKED, -1),
    lambda: F.cross_entropy(SCORES[None], torch.tensor([2])),
    lambda: F.cross_entropy(torch.stack([SCORES, t(1, 2, 3, 4)]), torch.tensor([-100, 2])),
    lambda: F.cross_entropy(torch.cat([ALL_MASKED, SCORES[None]]), torch.tensor([-100, -100, 0])),
    lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 2]), weight=t(1, 0, 2)),
    lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 2]), weight=t(1, 5, 2), label_smoothing=0.1),
    lambda: F.nll_loss(SCORES.log_softmax(0)[None], torch.tensor([0])),
    lambda: torch.distributions.Categorical(logits=SCORES).log_prob(torch.tensor(2)),
    lambda: torch.multinomial(SCORES.softmax(0), 5, replacement=True),
    lambda: F.ctc_loss(torch.randn(6, 1, 4).log_softmax(-1), torch.tensor([[1, 2]]), (6,), (2,)),
):
    family("masks")(_program)


# -- sentinels

ROW = t(3, 1, 2)

for _program in (
    lambda: torch.minimum(torch.full((3,), INF), ROW),
    lambda: torch.maximum(torch.full((3,), -INF), ROW),
    lambda: torch.full((3,), INF).clamp_(max=9.0),
    lambda: torch.full((2,), INF).scatter_reduce_(0, torch.tensor([0, 1, 1]), ROW, "amin"),
    lambda: torch.full((2,), -INF).index_reduce_(0, torch.tensor([0, 1, 1]), ROW, "amax"),
    lambda: torch.cat([t(INF), ROW, t(-INF)]).sort().values[1:4],
    lambda: torch.cat([ROW, t(-INF, -INF)]).topk(2).values,
    lambda: torch.cat([ROW, t(INF)]).argmin(),
    lambda: torch.cat([ROW, t(INF)]).kthvalue(2).values,
    lambda: torch.cat([ROW, t(INF)]).median(),
    lambda: torch.cat([ROW, t(-INF)]).aminmax().max,
    lambda: torch.bucketize(ROW, t(-INF, 1.5, INF)),
    lambda: torch.searchsorted(t(-INF, 1.5, INF), ROW),
    lambda: torch.histogram(ROW, bins=t(0, 1, 5)).hist,
    lambda: torch.where(ROW > 1, ROW, -INF).amax(),
    lambda: torch.where(ROW > 1, ROW, NAN).nanmean(),
    lambda: torch.fmax(t(NAN, 1, 2), ROW) + torch.fmin(t(NAN, 1, 2), ROW),
    lambda: t(1, NAN, 3).nanmedian() + t(1, NAN, 3).nanquantile(0.5) + t(1, NAN, 3).nansum(),
    lambda: 1.0 / t(INF, 2) + t(INF, 1).atan() + t(-INF, 1).exp() + t(INF, 1).erf(),
    lambda: t(INF, -INF).sign() + t(INF, -INF).isfinite(),
    lambda: ROW.clamp(min=-INF, max=INF),
    lambda: torch.nn.functional.hardtanh(t(INF, -INF)),
    lambda: torch.linalg.vector_norm(ROW, INF) + torch.linalg.vector_norm(ROW, -INF),
    lambda: torch.segment_reduce(ROW, "max", lengths=torch.tensor([2, 1])),
    lambda: torch.frexp(ROW).mantissa + torch.ldexp(ROW, t(-200, 1, 100)),
    lambda: torch.xlogy(t(0, 1, 2), t(0, 1, 2)) + torch.special.xlog1py(t(0, 1, 2), t(-1, 1, 2)),
):
    family("sentinels")(_program)


@family("sentinels")
def the_best_so_far():
    best = torch.tensor(INF)
    for loss in ROW:
        best = torch.minimum(best, loss)
    return best


@family("sentinels")
def beams():
    scores, alive = torch.full((2, 3), -INF).index_fill(1, torch.tensor([0]), 0.0), []
    for _ in range(3):
        candidates = scores[..., None] + torch.randn(2, 3, 5).log_softmax(-1)
        scores, chosen = candidates.view(2, -1).topk(3)
        alive.append(chosen // 5)
    return scores, alive


# -- values that are repaired before they are used

BROKEN = t(1, NAN, -INF, INF)

for _program in (
    lambda: BROKEN.nan_to_num(),
    lambda: (t(0, 1) / t(0, 1)).nan_to_num_(),
    lambda: torch.where(t(0, 1) > 0, t(0, 1).log(), 0.0),
    lambda: t(0, 1).log().masked_fill(t(0, 1) == 0, 0.0),
    lambda: (t(0, 1) / t(0, 1)).masked_scatter(torch.tensor([True, False]), t(5)),
    lambda: t(0, 1).log().clamp(min=-100.0),
    lambda: t(0, 1).reciprocal().index_fill(0, torch.tensor([0]), 0.0),
    lambda: torch.fmax(t(0, 1) / t(0, 1), t(0, 0)),
    lambda: t(0, 1).rsqrt().clamp(max=1e4),
    lambda: torch.nan_to_num(torch.complex(t(0, 1), t(0, 1)).log()),
    lambda: trained(torch.where(t(0, 1) > 0, t(0, 1).log(), 0.0)),
    lambda: F.binary_cross_entropy(t(0, 1), t(0, 1)),
    lambda: F.normalize(torch.zeros(2, 3)) + F.cosine_similarity(torch.zeros(3), torch.ones(3), 0),
    lambda: t(0, 1).logit(eps=1e-6),
    lambda: torch.cov(torch.ones(2, 3)).nan_to_num(),
):
    family("repairs")(_program)


@family("repairs")
def in_place_where_it_is_bad():
    x = t(0, 1, 4).log() * t(0, 1, 1)
    x[x.isnan()] = 0.0
    return x


@family("repairs")
def steps_that_a_scaler_skips():
    weight = nn.Parameter(torch.ones(3))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for _ in range(12):
        scaler.scale((weight * 9).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return weight.detach()
