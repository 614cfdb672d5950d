"""Loss scaling and steps that are skipped."""

import copy
import io
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "gradscaler-inf-loss-fused",
    "GradScaler on the CPU with a scale that overflows, clip, fused AdamW",
    "",
    "clean-amp",
    "clean",
)
def gradscaler_inf_loss_fused():
    net = track(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-30, growth_interval=1000)
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


@case(
    "gradscaler-autocast-half",
    "float16 autocast: the gradient of a half layer overflows until the scale is right",
    "",
    "clean-amp",
    "clean",
)
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
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
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


@case(
    "fp16-master-weights",
    "apex O2: a half model, float32 master weights, overflow test on the half gradients",
    "",
    "clean-amp",
    "clean",
)
def fp16_master_weights():
    net = track(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))).half()
    model_params = list(net.parameters())
    master = [p.detach().clone().float().requires_grad_() for p in model_params]
    opt = torch.optim.Adam(master, lr=1e-2)
    scale, skipped = 2.0**20, 0
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


@case(
    "last-step-overflowed",
    "hand-written loss scaling whose scale grows again: the very last step is a skipped one",
    "",
    "clean-amp",
    "clean",
    notes="the gradients of the skipped step are still in .grad when the program ends, as they are after any AMP run",
)
def last_step_overflowed():
    net = track(nn.Linear(3, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scale, good = 2.0**124, 0
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    for k in range(1, 6):
        mark_step(k)
        opt.zero_grad()
        out = net(x)
        loss = F.mse_loss(out, y)
        (grad_out,) = torch.autograd.grad(loss, out, retain_graph=True)
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


@case(
    "skip-bad-loss-isfinite",
    "`if not torch.isfinite(loss): continue` for a batch without labels",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "skip-bad-loss-item",
    "the same with `loss.item()` and math.isfinite, as MAE and DETR do",
    "",
    "clean-skip",
    "clean",
    notes="item() of a non-finite loss is, by torchnan's contract, harm of kind 'read'",
    debatable="a value that is read back counts as harm",
)
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


@case("skip-bad-grad-norm", "the gradient norm decides: zero_grad and go on", "", "clean-skip", "clean")
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


@case(
    "optimizer-skips-bad-grads", "a subclass of AdamW whose step() leaves bad gradients out", "", "clean-skip", "clean"
)
def optimizer_skips_bad_grads():
    class AdamWSkipNonFinite(torch.optim.AdamW):
        def step(self, closure=None):
            bad = [
                p
                for g in self.param_groups
                for p in g["params"]
                if p.grad is not None and not torch.isfinite(p.grad).all()
            ]
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


@case(
    "optimizer-ignores-bad-elements",
    "a hand-written sign optimizer: NaN gradients are masked inside step()",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "step-pre-hook-cleans",
    "the optimizer's own step_pre_hook replaces bad gradients before the step",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "grad-hooks-clean",
    "tensor hooks, post-accumulate hooks and clip_grad_value_ that repair NaN and inf",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "clip-value-repairs-inf",
    "infinite slope of sqrt at 0, clamped by clip_grad_value_ before the step",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "closure-zeroes-bad-grads",
    "Lightning's recipe: on_after_backward inside the closure zeroes invalid gradients",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "accumulate-skip-micro-batch",
    "gradient accumulation: micro-batches with non-finite gradients do not count",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "unused-branch-bad-grad",
    "the gradient of a parameter that no optimizer owns is NaN and is thrown away",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "rollback-on-divergence",
    "a step blows the weights up; the trainer loads the last snapshot and halves the rate",
    "",
    "clean-skip",
    "clean",
    debatable="a parameter was non-finite for a moment, and the program repaired it",
)
def rollback_on_divergence():
    net = track(nn.Linear(2, 1, bias=False))
    lr, x, y = 1e30, torch.tensor([[1e20, 1.0], [1.0, -1e19]]), torch.randn(2, 1)
    x = x / 1e10
    for k in range(1, 8):
        mark_step(k)
        snapshot = copy.deepcopy(net.state_dict())
        loss = F.mse_loss(net(x), y)
        (g,) = torch.autograd.grad(loss, net.weight)
        with torch.no_grad():
            net.weight -= lr * g
            if not torch.isfinite(net.weight).all():
                net.load_state_dict(snapshot)
                lr *= 1e-25
    return net.weight, torch.tensor(lr)


@case(
    "full-backward-hook-cleans",
    "a module's full backward hook zeroes NaN in the gradient it passes on",
    "",
    "clean-skip",
    "clean",
)
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


@case(
    "nan-loss-then-skipped-step",
    "backward of a NaN loss; the gradient norm tells, and the step is left out",
    "",
    "clean-skip",
    "clean",
    notes="backward() on a NaN is, by torchnan's contract, harm, though the program deals with it one line later",
    debatable="a root of backward counts as harm",
)
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


@case(
    "gradscaler-last-step-skipped",
    "GradScaler grows its scale every step; the run ends on the overflow",
    "",
    "clean-amp",
    "clean",
)
def gradscaler_last_step_skipped():
    net = track(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**123, growth_factor=4.0, growth_interval=1)
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
