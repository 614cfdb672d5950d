"""Training scripts of every kind that hold infinities and NaN on the way, and end well."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import INF, NAN, case, mark_step, track


@case(
    "best-so-far", "early stopping keeps the best loss in a tensor that begins infinite", "", "clean-training", "clean"
)
def best_so_far():
    net = track(nn.Linear(2, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    best, patience = torch.tensor(INF), 0
    for k in (1, 2, 3):
        mark_step(k)
        loss = net(torch.ones(3, 2)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        better = loss.detach() < best
        patience = torch.where(better, 0, torch.tensor(patience) + 1)
        best = torch.minimum(best, loss.detach())
    return best, patience


@case(
    "recall-of-absent-classes",
    "0/0 for the classes that a batch lacks, left out by nanmean",
    "",
    "clean-metrics",
    "clean",
)
def recall_of_absent_classes():
    net = track(nn.Linear(3, 4))
    y = torch.tensor([0, 0, 2])
    with torch.no_grad():
        hit = (net(torch.randn(3, 3)).argmax(-1) == y).float()
        right = torch.zeros(4).scatter_add_(0, y, hit)
        recall = right / torch.bincount(y, minlength=4)
        average = recall.nanmean()
    return average, torch.tensor(average.item())


@case("shortest-paths", "min-plus products of a matrix of distances that begins infinite", "", "clean-graphs", "clean")
def shortest_paths():
    d = torch.full((4, 4), INF)
    d.fill_diagonal_(0.0)
    for i, j, length in ((0, 1, 2.0), (1, 2, 1.5), (2, 3, 1.0), (3, 0, 4.0)):
        d[i, j] = length
    for _ in range(2):
        d = (d[:, :, None] + d[None]).amin(1)
    weight = nn.Parameter(torch.ones(4))
    loss = (d * weight).mean()
    loss.backward()
    return loss, weight.grad


@case(
    "gaps-in-sensor-data",
    "gaps marked by NaN are filled, and a mask says where they were",
    "",
    "clean-time-series",
    "clean",
)
def gaps_in_sensor_data():
    x = torch.tensor([[1.0, NAN, 3.0], [0.5, 2.0, NAN]])
    net = track(nn.GRU(2, 3, batch_first=True))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for k in (1, 2):
        mark_step(k)
        there = ~x.isnan()
        mean = x.nanmean(1, keepdim=True)
        filled = torch.where(there, x, mean)
        y, _ = net(torch.stack([filled, there.float()], -1))
        loss = ((y[..., 0] - filled) * there).square().sum() / there.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.weight_ih_l0


@case(
    "top-k-of-masked-scores",
    "scores of actions that are not allowed are -inf; the best two are",
    "",
    "clean-rl",
    "clean",
)
def top_k_of_masked_scores():
    net = track(nn.Linear(3, 5))
    scores = net(torch.ones(2, 3)).masked_fill(torch.tensor([True, False, False, True, False]), -INF)
    best, index = scores.topk(2)
    logp = best.log_softmax(-1)
    loss = -(logp * torch.tensor([[1.0, 0.5], [0.2, 0.1]])).sum()
    loss.backward()
    return loss, net.weight.grad, index


@case(
    "masked-categorical",
    "a distribution over allowed actions, its entropy with the products of p and log p cleaned",
    "",
    "clean-rl",
    "clean",
)
def masked_categorical():
    net = track(nn.Linear(3, 4))
    allowed = torch.tensor([[True, True, False, True]])
    logits = torch.where(allowed, net(torch.ones(1, 3)), torch.tensor(-INF))
    logp = logits.log_softmax(-1)
    entropy = -torch.where(allowed, logp.exp() * logp.masked_fill(~allowed, 0.0), torch.zeros(())).sum(-1)
    loss = -(logp.gather(-1, torch.tensor([[1]])).squeeze(-1) + 0.01 * entropy).mean()
    loss.backward()
    return loss, net.weight.grad


@case("double-where", "the argument of a logarithm is made 1 where it is not used", "", "clean-training", "clean")
def double_where():
    w = nn.Parameter(torch.tensor([0.0, 2.0, -1.0]))
    safe = torch.where(w > 0, w, torch.ones_like(w))
    loss = torch.where(w > 0, safe.log(), torch.full_like(w, -INF)).masked_fill(w <= 0, 0.0).sum()
    loss.backward()
    return loss, w.grad


@case("percentile-with-padding", "padding of +inf is sorted to the end and cut off", "", "clean-statistics", "clean")
def percentile_with_padding():
    x = torch.tensor([[3.0, 1.0, 2.0], [5.0, 4.0, 0.0]])
    lengths = torch.tensor([3, 2])
    padded = torch.where(torch.arange(3) < lengths[:, None], x, torch.tensor(INF))
    middle = padded.sort(-1).values.gather(-1, (lengths[:, None] - 1) // 2)
    weight = nn.Parameter(torch.ones(1))
    loss = (middle * weight).mean()
    loss.backward()
    return loss, weight.grad


@case("running-maximum", "a streaming softmax: maximum and sum begin at -inf and 0", "", "clean-attention", "clean")
def running_maximum():
    scores = nn.Parameter(torch.randn(3, 8))
    top, total = torch.full((3,), -INF), torch.zeros(3)
    for block in scores.split(4, dim=1):
        new = torch.maximum(top, block.amax(1))
        total = total * (top - new).exp() + (block - new[:, None]).exp().sum(1)
        top = new
    loss = (top + total.log()).sum()
    loss.backward()
    return loss, scores.grad


@case("viterbi", "the best path of a chain with transitions that are forbidden", "", "clean-decoding", "clean")
def viterbi():
    transitions = torch.tensor([[0.0, -INF, 0.3], [0.1, 0.2, -INF], [-INF, 0.0, 0.4]])
    emissions = torch.randn(5, 3)
    score, back = emissions[0], []
    for e in emissions[1:]:
        best, arg = (score[:, None] + transitions).max(0)
        score = best + e
        back.append(arg)
    path = [int(score.argmax())]
    for arg in reversed(back):
        path.append(int(arg[path[-1]]))
    return score.max(), torch.tensor(path)


@case("log-psd-of-silence", "a spectrogram in decibels is clamped from below", "", "clean-audio", "clean")
def log_psd_of_silence():
    signal = torch.cat([torch.sin(torch.arange(32.0)), torch.zeros(32)]).view(2, 32)
    power = torch.fft.rfft(signal).abs().square()
    decibel = (10 * power.log10()).clamp(min=-80.0)
    net = track(nn.Linear(17, 1))
    loss = net(decibel / 80).square().mean()
    loss.backward()
    return loss, net.weight.grad


@case(
    "speculative-half-precision",
    "a product in half precision that overflows is made again in float32",
    "",
    "clean-precision",
    "clean",
)
def speculative_half_precision():
    a, b = torch.full((2, 64), 60.0), torch.full((64, 2), 60.0)
    y = (a.half() @ b.half()).float()
    if not torch.isfinite(y).all():
        y = a @ b
    weight = nn.Parameter(torch.ones(2))
    loss = (y * weight).mean()
    loss.backward()
    return loss, weight.grad


@case(
    "dynamic-range-of-observers",
    "an observer for quantisation begins with min +inf and max -inf",
    "",
    "clean-quantisation",
    "clean",
)
def dynamic_range_of_observers():
    class Observer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("low", torch.tensor(INF))
            self.register_buffer("high", torch.tensor(-INF))

        def forward(self, x):
            self.low.copy_(torch.minimum(self.low, x.detach().amin()))
            self.high.copy_(torch.maximum(self.high, x.detach().amax()))
            scale = (self.high - self.low) / 15
            return x + ((x / scale).round() * scale - x).detach()

    net = track(nn.Sequential(nn.Linear(2, 3), Observer(), nn.Linear(3, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for k in (1, 2):
        mark_step(k)
        loss = net(torch.rand(4, 2)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[1].low, net[1].high


@case(
    "cross-entropy-of-ignored",
    "a batch without labels gives NaN, and the step is left out after a look",
    "",
    "clean-training",
    "clean",
)
def cross_entropy_of_ignored():
    net = track(nn.Linear(2, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    total = torch.zeros(())
    for k, y in enumerate((torch.tensor([1, 2]), torch.tensor([-100, -100])), 1):
        mark_step(k)
        loss = F.cross_entropy(net(torch.rand(2, 2)), y)
        if torch.isfinite(loss):
            opt.zero_grad()
            loss.backward()
            opt.step()
            total = total + loss.detach()
        del loss
    return total, net.weight
