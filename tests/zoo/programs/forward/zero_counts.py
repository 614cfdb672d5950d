"""Means and variances of too few elements."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import NAN, case, mark_step, track


@case(
    "hard-negatives-none",
    "online hard example mining: the mean over an empty selection of negatives",
    "",
    "zero-count",
    "nan",
    "mean",
    module="mining",
)
def hard_negatives_none():
    class Mining(nn.Module):
        def __init__(self, margin):
            super().__init__()
            self.margin = margin

        def forward(self, d_pos, d_neg):
            hinge = F.relu(d_pos - d_neg + self.margin)
            hard = hinge[hinge > 0]
            return hard.mean()  # ORIGIN

    class Triplet(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(3, 4)
            self.mining = Mining(0.01)

        def forward(self, a, p, n):
            a, p, n = self.enc(a), self.enc(p), self.enc(n)
            return self.mining((a - p).pow(2).sum(1), (a - n).pow(2).sum(1))

    model = track(Triplet())
    a = torch.randn(4, 3)
    loss = model(a, a, a + 10)
    loss.backward()
    return loss, model.enc.weight.grad


@case(
    "ppo-advantage-single",
    "PPO normalises the advantages of a last minibatch of one: std of one element",
    "",
    "degrees-of-freedom",
    "nan",
    "std",
    module=None,
    step=3,
)
def ppo_advantage_single():
    policy = track(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    obs, act, adv_all = torch.randn(5, 4), torch.randint(0, 2, (5,)), torch.randn(5)
    k = 0
    for idx in torch.arange(5).split(2):
        k += 1
        mark_step(k)
        advantages = adv_all[idx]
        mean = advantages.mean()
        std = advantages.std()  # ORIGIN
        advantages = (advantages - mean) / (std + 1e-8)
        logp = F.log_softmax(policy(obs[idx]), -1).gather(1, act[idx, None]).squeeze(1)
        loss = -(logp * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
    return loss, policy[0].weight


@case(
    "miou-absent-class",
    "mean IoU over classes, one of which occurs neither in prediction nor in target",
    "",
    "zero-count",
    "nan",
    ["div", "true_divide"],
    module=None,
)
def miou_absent_class():
    net = track(nn.Conv2d(3, 4, 1))
    with torch.no_grad():
        net.bias[3] = -1e3
        pred = net(torch.randn(2, 3, 5, 5)).argmax(1)
        gt = torch.randint(0, 3, (2, 5, 5))
        hist = torch.bincount((gt * 4 + pred).flatten(), minlength=16).view(4, 4)
        inter = hist.diagonal()
        union = hist.sum(0) + hist.sum(1) - inter
        iou = inter / union  # ORIGIN
        miou = iou.mean()
    print("mIoU %.3f" % miou.item())
    return miou


@case(
    "scatter-mean-empty-segment",
    "mean pooling by index_add_ and an in-place division by the counts; a graph has no nodes",
    "",
    "zero-count",
    "nan",
    ["div", "div_"],
    module="readout",
)
def scatter_mean_empty_segment():
    class Readout(nn.Module):
        def forward(self, x, batch, n):
            out = x.new_zeros(n, x.size(1)).index_add_(0, batch, x)
            cnt = x.new_zeros(n).index_add_(0, batch, torch.ones_like(batch, dtype=x.dtype))
            out.div_(cnt.unsqueeze(1))  # ORIGIN
            return out

    class Gnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 3)
            self.readout = Readout()
            self.out = nn.Linear(3, 1)

        def forward(self, x, batch, n):
            return self.out(self.readout(self.lin(x).relu(), batch, n))

    gnn = track(Gnn())
    y = gnn(torch.randn(5, 2), torch.tensor([0, 0, 2, 2, 2]), 3)
    y.sum().backward()
    return y, gnn.lin.weight.grad


@case(
    "ce-all-classes-weight-zero",
    "class-weighted cross entropy, the batch holds only the class whose weight is 0",
    "",
    "zero-count",
    "nan",
    ["nll_loss_forward", "nll_loss2d_forward"],
    module="",
    step=2,
)
def ce_all_classes_weight_zero():
    class Seg(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 1)
            self.register_buffer("w", torch.tensor([0.0, 1.0, 4.0]))

        def forward(self, x, y):
            out = self.conv(x)
            return F.cross_entropy(out, y, weight=self.w)  # ORIGIN

    seg = track(Seg())
    opt = torch.optim.SGD(seg.parameters(), lr=0.1)
    for k, y in enumerate([torch.randint(0, 3, (1, 4, 4)), torch.zeros(1, 4, 4, dtype=torch.long)], 1):
        mark_step(k)
        opt.zero_grad()
        loss = seg(torch.randn(1, 2, 4, 4), y)
        loss.backward()
        opt.step()
    return loss, seg.conv.weight


@case(
    "uncertainty-list-stack",
    "per-task losses collected in a list; one task has no labelled sample in the batch",
    "",
    "zero-count",
    "nan",
    "div",
    module="tasks.depth",
    step=2,
)
def uncertainty_list_stack():
    class Task(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 1)
            self.log_var = nn.Parameter(torch.zeros(()))

        def forward(self, z, y, valid):
            err = (self.head(z).squeeze(1) - y).abs() * valid
            loss = err.sum() / valid.sum()  # ORIGIN
            return torch.exp(-self.log_var) * loss + self.log_var

    class Multi(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Linear(3, 4)
            self.tasks = nn.ModuleDict({k: Task() for k in ("seg", "depth", "normal")})

        def forward(self, x, y, valid):
            z = self.trunk(x).relu()
            losses = [t(z, y[k], valid[k]) for k, t in self.tasks.items()]
            return torch.stack(losses)

    model = track(Multi())
    opt = torch.optim.AdamW(model.parameters())
    names = list(model.tasks)
    for k in (1, 2):
        mark_step(k)
        y = {n: torch.randn(5) for n in names}
        valid = {n: torch.ones(5) for n in names}
        if k == 2:
            valid["depth"].zero_()
        losses = model(torch.randn(5, 3), y, valid)
        seg, depth, normal = losses.unbind()
        total = torch.sum(torch.cat([seg[None], depth[None], normal[None]]))
        opt.zero_grad()
        total.backward()
        opt.step()
    return total, model.trunk.weight


@case(
    "median-of-nothing",
    "scale-and-shift alignment of a depth map: the median of no valid pixel is NaN",
    "",
    "zero-count",
    "nan",
    ["median"],
    module="loss.align",
)
def median_of_nothing():
    class Align(nn.Module):
        def forward(self, pred, valid):
            shift = torch.median(pred[valid])  # ORIGIN
            return pred - shift

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.align = Align()

        def forward(self, pred, gt):
            valid = gt > 0
            return (self.align(pred, valid) - self.align(gt, valid)).abs().mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 1)
            self.loss = Loss()

        def forward(self, x, gt):
            return self.loss(self.conv(x), gt)

    net = track(Net())
    loss = net(torch.rand(1, 1, 3, 3), torch.zeros(1, 1, 3, 3))
    loss.backward()
    return loss, net.conv.weight.grad


@case(
    "logsumexp-no-negatives",
    "the first batch of a contrastive run: the memory holds no negatives, logsumexp of nothing is -inf",
    "",
    "zero-count",
    "inf",
    "logsumexp",
    module="bank",
    step=1,
)
def logsumexp_no_negatives():
    class Bank(nn.Module):
        def __init__(self):
            super().__init__()
            self.store = []

        def forward(self, q, pos):
            neg = torch.stack(self.store) if self.store else q.new_zeros(0, q.shape[1])
            lse = torch.logsumexp(q @ neg.t() / 0.1, dim=1)  # ORIGIN
            self.store += list(pos.detach())
            return (lse - (q * pos).sum(1) / 0.1).mean()

    class Moco(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Linear(3, 4)
            self.bank = Bank()

        def forward(self, a, b):
            return self.bank(F.normalize(self.enc(a), dim=1), F.normalize(self.enc(b), dim=1))

    moco = track(Moco())
    opt = torch.optim.SGD(moco.parameters(), lr=0.1)
    seen = []
    for k in (1, 2):
        mark_step(k)
        loss = moco(torch.randn(2, 3), torch.randn(2, 3))
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen.append(loss.detach())
    return torch.stack(seen), moco.enc.weight


@case(
    "smooth-l1-no-positive-roi",
    "box regression over the positive proposals of an image without any",
    "",
    "zero-count",
    "nan",
    ["smooth_l1_loss", "mean"],
    module="roi_heads",
)
def smooth_l1_no_positive_roi():
    class RoiHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls, self.box = nn.Linear(6, 2), nn.Linear(6, 4)

        def forward(self, feats, labels, targets):
            fg = torch.where(labels > 0)[0]
            loss_cls = F.cross_entropy(self.cls(feats), labels)
            loss_box = F.smooth_l1_loss(self.box(feats)[fg], targets[fg], beta=1 / 9)  # ORIGIN
            return {"loss_classifier": loss_cls, "loss_box_reg": loss_box}

    class Rcnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(3, 6)
            self.roi_heads = RoiHeads()

        def forward(self, x, labels, targets):
            return self.roi_heads(self.backbone(x).relu(), labels, targets)

    rcnn = track(Rcnn())
    losses = rcnn(torch.randn(5, 3), torch.zeros(5, dtype=torch.long), torch.randn(5, 4))
    total = sum(losses.values())
    total.backward()
    return total, rcnn.backbone.weight.grad


@case(
    "var-mean-single-frame",
    "utterance normalisation by var_mean over time, an utterance of one frame",
    "",
    "degrees-of-freedom",
    "nan",
    ["var_mean"],
    module="cmvn",
)
def var_mean_single_frame():
    class Cmvn(nn.Module):
        def forward(self, x):
            var, mean = torch.var_mean(x, dim=1, keepdim=True)  # ORIGIN
            return (x - mean) * torch.rsqrt(var + 1e-5)

    class Asr(nn.Module):
        def __init__(self):
            super().__init__()
            self.cmvn = Cmvn()
            self.gru = nn.GRU(3, 4, batch_first=True)

        def forward(self, x):
            return self.gru(self.cmvn(x))[0][:, -1]

    asr = track(Asr().eval())
    with torch.inference_mode():
        return asr(torch.randn(1, 1, 3))


@case(
    "cov-single-sample",
    "torch.cov of a batch of one: division by N - 1 = 0",
    "",
    "degrees-of-freedom",
    "nan",
    ["div", "div_", "true_divide"],
    module="vicreg",
)
def cov_single_sample():
    class Vicreg(nn.Module):
        def forward(self, z):
            c = torch.cov(z.t())  # ORIGIN
            return c.fill_diagonal_(0).pow(2).sum() / z.shape[1]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(3, 3)
            self.vicreg = Vicreg()

        def forward(self, x):
            return self.vicreg(self.proj(x))

    net = track(Net())
    loss = net(torch.randn(1, 3))
    loss.backward()
    return loss, net.proj.weight.grad


@case(
    "grpo-nanstd-one-valid",
    "GRPO: std over rewards that are not None: one is left, count / (count - 1)",
    "https://github.com/huggingface/trl/pull/5773",
    "degrees-of-freedom",
    "inf",
    "div",
    module=None,
)
def grpo_nanstd_one_valid():
    def nanstd(x):
        variance = torch.nanmean((x - torch.nanmean(x, 1, keepdim=True)) ** 2, 1)
        count = (~torch.isnan(x)).sum(1)
        variance *= count / (count - 1)  # ORIGIN
        return torch.sqrt(variance)

    policy = track(nn.Linear(4, 1))
    rewards = torch.tensor([[1.0, 0.0, 1.0, 0.5], [NAN, 2.0, NAN, NAN]])
    std = nanstd(rewards)
    mean = torch.nanmean(rewards, 1)
    advantages = torch.nan_to_num(rewards - mean[:, None], 0.0) / (std[:, None] + 1e-4)
    logp = F.logsigmoid(policy(torch.randn(2, 4, 4))).squeeze(-1)
    loss = -(logp * advantages).mean()
    loss.backward()
    return loss, policy.weight.grad


@case(
    "weight-standardisation-one-element",
    "weight standardisation of a depthwise 1x1 convolution: std of one element",
    "",
    "degrees-of-freedom",
    "nan",
    "std",
    module="1",
)
def weight_standardisation_one_element():
    class WSConv(nn.Conv2d):
        def forward(self, x):
            w = self.weight.flatten(1)
            w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5)  # ORIGIN
            return F.conv2d(x, w.view_as(self.weight), self.bias, groups=self.groups)

    net = track(nn.Sequential(nn.Conv2d(1, 4, 3), WSConv(4, 4, 1, groups=4)))
    loss = net(torch.randn(2, 1, 6, 6)).mean()
    loss.backward()
    return loss, net[0].weight.grad
