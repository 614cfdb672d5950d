"""Non-finite data and weights, and optimizers that make them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import NAN, alt, case, dirty, mark_step, track


@case(
    "input-nan-feature",
    "one feature of one training row is NaN",
    "http://dong.sh/posts/lossbreakgredients",
    "nan-data",
    "nan",
    origin="input",
    name="x",
    module="0",
    step=2,
    also=[alt("forward", ["addmm", "mm"])],
)
def input_nan_feature():
    net = track(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    rows = [
        torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.1, 0.2]]),
        torch.tensor([[1.0, NAN, 3.0], [0.3, 0.1, 0.9]]),  # ORIGIN
        torch.tensor([[0.0, 1.0, 0.5], [0.3, 0.1, 0.9]]),
    ]
    for k, x in enumerate(rows, 1):
        mark_step(k)
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net[0].weight


@case(
    "target-nan-times-mask",
    "missing targets are NaN and 'removed' by multiplying with a 0 mask",
    "pytorch/pytorch#89543",
    "masked-nan-data",
    "nan",
    origin="input",
    name="y",
    module=None,
    also=[alt("forward", ["sub", "mul", "mse_loss"])],
    debatable="the NaN in the data is intended, the multiplication is the mistake",
)
def target_nan_times_mask():
    net = track(nn.Linear(2, 1))
    y = torch.tensor([[1.0], [NAN], [0.5]])  # ORIGIN
    mask = (~torch.isnan(y)).float()
    loss = ((net(torch.randn(3, 2)) - y).pow(2) * mask).sum() / mask.sum()
    loss.backward()
    return loss, net.weight.grad


@case(
    "missing-key-head",
    "a classification head missing from the checkpoint stays uninitialised",
    "huggingface/transformers#46002",
    "nan-weights",
    "nan",
    origin="parameter",
    name="classifier.weight",
    module="classifier",
    also=[alt("forward", ["addmm", "mm"])],
)
def missing_key_head():
    class Clf(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(3, 4)
            self.classifier = nn.Linear(4, 2)

        def forward(self, x):
            return self.classifier(torch.tanh(self.encoder(x)))

    ckpt = {"encoder." + k: v for k, v in nn.Linear(3, 4).state_dict().items()}
    net = Clf()
    for name, p in net.named_parameters():
        if name not in ckpt:
            p.data = dirty(torch.empty(p.shape))  # ORIGIN
    with torch.no_grad():
        net.classifier.bias.zero_()
    net.load_state_dict(ckpt, strict=False)
    net = track(net)
    loss = F.cross_entropy(net(torch.randn(2, 3)), torch.tensor([0, 1]))
    loss.backward()
    return loss, net.encoder.weight.grad


@case(
    "nan-running-var",
    "a batch-norm running variance imported from another framework holds NaN",
    "pytorch/pytorch#10008",
    "nan-weights",
    "nan",
    origin="buffer",
    name="bn.running_var",
    module="bn",
    also=[
        alt(
            "forward",
            ["native_batch_norm", "_native_batch_norm_legit_no_training", "batch_norm", "_batch_norm_no_update"],
        )
    ],
)
def nan_running_var():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1)
            self.bn = nn.BatchNorm2d(2)

        def forward(self, x):
            return self.bn(self.conv(x))

    net = Net().eval()
    net.bn.running_var = torch.tensor([1.0, NAN])  # ORIGIN
    net = track(net)
    with torch.no_grad():
        return net(torch.randn(1, 1, 2, 2))


@case(
    "sgd-divergence",
    "learning rate too large: squared error grows until the loss itself overflows",
    "https://stats.stackexchange.com/questions/594738",
    "divergence",
    "inf",
    ["mse_loss", "pow", "mul", "sum", "addmm", "mm"],
    module=None,
    step=10,
    notes="first non-finite value is the loss, several steps before any weight is",
)
def sgd_divergence():
    net = track(nn.Linear(1, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1.1)
    x = torch.linspace(-10, 10, 20)[:, None]
    y = x**3
    for k in range(1, 31):
        mark_step(k)
        loss = F.mse_loss(net(x), y)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss, net.weight


@case(
    "clip-norm-overflow",
    "clip_grad_norm_: the norm of finite gradients of 1e20 overflows and zeroes them all",
    "pytorch/pytorch#46849",
    "optimizer",
    "inf",
    ["linalg_vector_norm", "norm", "_foreach_norm", "pow", "stack"],
    module=None,
    phase="optimizer",
    debatable="nothing the user looks at is non-finite except the returned norm",
    notes="silent: gradients become 0; only the returned norm is inf",
)
def clip_norm_overflow():
    net = track(nn.Linear(8, 1, bias=False))
    (net(torch.full((1, 8), 1e20))).sum().backward()
    total = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # ORIGIN
    return total, net.weight.grad


@case(
    "adamp-rsqrt-then-eps",
    "AdamP adds eps after rsqrt: rsqrt(0) is inf, and 0 * inf is NaN",
    "kozistr/pytorch_optimizer#480",
    "optimizer",
    "inf",
    ["rsqrt", "rsqrt_"],
    module=None,
    phase="optimizer",
    step=1,
)
def adamp_rsqrt_then_eps():
    class AdamP(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    s = self.state[p]
                    s.setdefault("v", torch.zeros_like(p)).mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                    inv = s["v"].rsqrt().add_(1e-8)  # ORIGIN
                    p.add_(p.grad * inv, alpha=-group["lr"])

    emb = track(nn.Embedding(4, 2))
    opt = AdamP(emb.parameters())
    for k in (1, 2):
        mark_step(k)
        loss = emb(torch.tensor([0, 2])).pow(2).sum()
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
    return (emb.weight,)


@case(
    "adamw-foreach-zero-variance",
    "AdamW(foreach=True, eps=0): rows that never get a gradient divide 0 by 0",
    "NVIDIA/apex#799",
    "optimizer",
    "nan",
    ["_foreach_addcdiv_", "_foreach_div", "_foreach_div_"],
    module=None,
    phase="optimizer",
    step=1,
    notes="eps=0 stands in for an eps that underflows in half",
)
def adamw_foreach_zero_variance():
    emb = track(nn.Embedding(3, 2))
    opt = torch.optim.AdamW(emb.parameters(), lr=1e-3, eps=0.0, foreach=True)
    for k in (1, 2):
        mark_step(k)
        loss = emb(torch.tensor([0])).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
    return emb.weight, loss


@case(
    "adamw-fused-zero-variance",
    "the same with AdamW(fused=True)",
    "NVIDIA/apex#799 (fused variant)",
    "optimizer",
    "nan",
    ["_fused_adamw_"],
    module=None,
    phase="optimizer",
    step=1,
    since="2.4",
    notes="fused Adam on CPU needs torch >= 2.4; not run on 1.13",
)
def adamw_fused_zero_variance():
    emb = track(nn.Embedding(3, 2))
    opt = torch.optim.AdamW(emb.parameters(), lr=1e-3, eps=0.0, fused=True)
    for k in (1, 2):
        mark_step(k)
        loss = emb(torch.tensor([0])).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
    return emb.weight, loss
