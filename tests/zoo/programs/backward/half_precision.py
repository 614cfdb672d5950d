"""Gradients that overflow, in half precision and elsewhere."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, mark_step, track


@case(
    "loss-scale-without-scaler",
    "loss multiplied by 2**20 by hand, cast back to half on its way down",
    "",
    "overflow-half",
    "inf",
    ["_to_copy"],
    node="ToCopyBackward0",
    module=None,
    step=1,
)
def loss_scale_without_scaler():
    net = track(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).half())
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    x, y = torch.randn(8, 4).half(), torch.full((8, 2), 3.0)
    scale = 2.0**20
    loss = None
    for k in (1, 2):
        mark_step(k)
        opt.zero_grad()
        out = net(x).float()  # ORIGIN
        loss = F.mse_loss(out, y)
        (loss * scale).backward()
        for p in net.parameters():
            p.grad.div_(scale)
        opt.step()
    return loss, net[0].weight.grad, net[0].weight


@case(
    "half-backward-mm",
    "half-precision model: the gradient of a wide layer's input overflows in the matmul",
    "",
    "overflow-half",
    "inf",
    ["mm"],
    node="AddmmBackward0",
    module="up",
)
def half_backward_mm():
    class Ffn(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Linear(4, 2, bias=False)
            self.up = nn.Linear(2, 64)

        def forward(self, x):
            return self.up(torch.tanh(self.down(x)))  # ORIGIN

    net = Ffn().half()
    with torch.no_grad():
        net.up.weight.fill_(40.0)
        net.up.bias.fill_(-1.0)
    track(net)
    out = net(torch.zeros(1, 4).half())
    out.backward(torch.full_like(out, 60.0))
    return out, net.down.weight.grad


@case(
    "half-bias-sum",
    "half-precision bias of a per-pixel head: its gradient is a sum over 2000 rows",
    "",
    "overflow-half",
    "inf",
    ["sum"],
    node="AddBackward0",
    module="head",
)
def half_bias_sum():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3, dtype=torch.float16))

        def forward(self, x):
            return x + self.bias  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = Head()

        def forward(self, x):
            return self.head(x)

    net = track(Net())
    y = net(torch.randn(2000, 3).half())
    (y.float().sum() * 60).backward()
    return y, net.head.bias.grad


@case(
    "half-frequent-token",
    "half-precision embedding: the gradient row of the padding token sums 100 positions",
    "",
    "overflow-half",
    "inf",
    ["embedding_dense_backward"],
    node="EmbeddingBackward0",
    module="tok",
)
def half_frequent_token():
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(6, 4, dtype=torch.float16)

        def forward(self, ids):
            return self.tok(ids).float()  # ORIGIN

    lm = track(Lm())
    ids = torch.zeros(4, 30, dtype=torch.long)
    ids[:, :3] = torch.tensor([1, 2, 3])
    out = lm(ids)
    (out.sum() * 900).backward()
    return out, lm.tok.weight.grad


@case(
    "half-embedding-bag",
    "F.embedding_bag(mode='sum') in half, every bag holds the same unknown word",
    "",
    "overflow-half",
    "inf",
    ["_embedding_bag_backward", "_embedding_bag_dense_backward"],
    node="EmbeddingBagBackward0",
    module=None,
)
def half_embedding_bag():
    table = torch.randn(5, 3).half().requires_grad_()
    bags = torch.zeros(64, 4, dtype=torch.long)
    vec = F.embedding_bag(bags, table, mode="sum")  # ORIGIN
    vec.mul(torch.tensor(500.0, dtype=torch.float16)).backward(torch.ones_like(vec))
    return vec, table.grad


@case(
    "half-relative-bias",
    "relative position bias gathered by index: its gradient adds up all pairs in half",
    "",
    "overflow-half",
    "inf",
    ["index_put", "_index_put_impl_", "index_put_"],
    node="IndexBackward0",
    module="window",
)
def half_relative_bias():
    class Window(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(3, dtype=torch.float16))
            i = torch.arange(40)
            self.register_buffer("idx", ((i[:, None] - i[None]).sign() + 1).view(-1))

        def forward(self, scores):
            bias = self.table[self.idx]  # ORIGIN
            return scores + bias.view(40, 40)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.window = Window()

        def forward(self, s):
            return self.window(s)

    net = track(Net())
    out = net(torch.zeros(40, 40, dtype=torch.float16))
    (out.float() * 100).sum().backward()
    return out, net.window.table.grad


@case(
    "half-conv-weight",
    "half-precision convolution: weight gradient summed over the image overflows",
    "",
    "overflow-half",
    "inf",
    ["convolution_backward"],
    node="ConvolutionBackward0",
    module="stem.0",
)
def half_conv_weight():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU())

        def forward(self, x):
            return self.stem(x)  # ORIGIN

    net = Net().half()
    with torch.no_grad():
        net.stem[0].weight.fill_(0.1)
    track(net)
    y = net(torch.full((1, 1, 20, 20), 20.0).half())
    y.backward(torch.full_like(y, 20.0))
    return y, net.stem[0].weight.grad


@case(
    "half-bce",
    "nn.BCELoss in half: its 1e-12 underflows, a wrong confident prediction divides by 0",
    "",
    "overflow-half",
    "inf",
    ["binary_cross_entropy_backward"],
    node="BinaryCrossEntropyBackward0",
    module="criterion",
)
def half_bce():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.tensor([-20.0, 1.0, 20.0], dtype=torch.float16))
            self.criterion = nn.BCELoss()

        def forward(self, t):
            return self.criterion(torch.sigmoid(self.z), t)  # ORIGIN

    net = track(Net())
    loss = net(torch.tensor([1.0, 1.0, 0.0]).half())
    loss.backward()
    return loss, net.z.grad


@case(
    "explicit-gradient-half",
    "backward(gradient=...) used as a loss scale on a half output",
    "",
    "overflow-half",
    "inf",
    ["mul"],
    node="MulBackward0",
    module=None,
)
def explicit_gradient_half():
    w = torch.randn(4).half().requires_grad_()
    x = torch.full((4,), 50.0).half()
    y = w * x  # ORIGIN
    y.backward(gradient=torch.full_like(y, 2.0**12))
    return y, w.grad


@case(
    "autocast-manual-scale",
    "float16 autocast with a constant loss scale and no GradScaler, gradients divided afterwards",
    "",
    "overflow-half",
    "inf",
    ["_to_copy"],
    node="ToCopyBackward0",
    module=None,
    step=2,
)
def autocast_manual_scale():
    net = track(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(8, 4)
    for k, scale in ((1, 2.0**8), (2, 2.0**18)):
        mark_step(k)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x)
        loss = F.mse_loss(out.float(), torch.full((8, 2), 5.0))  # ORIGIN
        (loss * scale).backward()
        with torch.no_grad():
            for p in net.parameters():
                p.grad /= scale
        opt.step()
    return loss, net[0].weight.grad, net[0].weight


@case(
    "scaler-unscale-then-plain-step",
    "scaler.unscale_() for clipping, but then optimizer.step() in place of scaler.step()",
    "",
    "overflow-half",
    "inf",
    ["_to_copy"],
    node="ToCopyBackward0",
    module=None,
    step=1,
    notes="the overflow is found by the scaler and applied all the same",
)
def scaler_unscale_then_plain_step():
    net = track(nn.Linear(4, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    x = torch.randn(8, 4)
    mark_step(1)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = F.mse_loss(out.float(), torch.full((8, 2), 5.0))  # ORIGIN
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_value_(net.parameters(), 1e9)
    opt.step()
    mark_step(2)
    return loss, net(x), net.weight


@case(
    "relu-rnn-explodes",
    "nn.RNN(relu) with a large recurrent weight: activations fit, the gradient of 45 steps does not",
    "",
    "overflow",
    "inf",
    ["mm"],
    node=["MmBackward0", "AddmmBackward0"],
    module="rnn",
)
def relu_rnn_explodes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(2, 2, nonlinearity="relu", bias=False)

        def forward(self, x):
            y, _ = self.rnn(x)  # ORIGIN
            return y[-1]

    net = Net()
    with torch.no_grad():
        net.rnn.weight_hh_l0.copy_(torch.eye(2) * 10)
        net.rnn.weight_ih_l0.copy_(torch.eye(2) * 1e-30)
    track(net)
    y = net(torch.ones(45, 1, 2))
    (y * 1e-5).sum().backward()
    return y, net.rnn.weight_ih_l0.grad


@case(
    "tied-half-fan-in",
    "tied half-precision embedding: each of its two gradients fits, their sum does not",
    "",
    "fan-in",
    "inf",
    ["add", "add_"],
    node=["EmbeddingBackward0", "TBackward0", "MmBackward0", "torch::autograd::AccumulateGrad"],
    module="lm",
    notes="made by the engine where the two meet: either user of the weight is right",
)
def tied_half_fan_in():
    class TiedLm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((3, 2), 1.0, dtype=torch.float16))

        def forward(self, ids):
            h = F.embedding(ids, self.weight)  # ORIGIN
            return F.linear(h, self.weight)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lm = TiedLm()

        def forward(self, ids):
            return self.lm(ids)

    net = track(Net())
    y = net(torch.tensor([0]))
    y.backward(torch.tensor([[40000.0, 0.0, 0.0]]).half())
    return y, net.lm.weight.grad


@case(
    "residual-half-fan-in",
    "both branches of a residual block send 40000 back; half cannot hold their sum",
    "",
    "fan-in",
    "inf",
    ["add", "add_"],
    node=["AddBackward0", "MulBackward0", "SigmoidBackward0", "SinBackward0"],
    module=None,
    notes="made by the engine where the two meet",
)
def residual_half_fan_in():
    x = torch.zeros(3).half().requires_grad_()
    h = torch.sin(x)  # ORIGIN
    y = h + h * torch.ones(3).half()  # ORIGIN
    y.backward(torch.full((3,), 40000.0).half())
    return y, x.grad


@case(
    "microbatch-half-accumulate",
    "gradient accumulation over micro-batches straight into half-precision .grad",
    "",
    "fan-in",
    "inf",
    ["add_", "add"],
    node="torch::autograd::AccumulateGrad",
    module=None,
    step=1,
    notes="AccumulateGrad belongs to no forward operation: its backward() call or the use of the weight",
)
def microbatch_half_accumulate():
    w = torch.ones(3, dtype=torch.float16, requires_grad=True)
    opt = torch.optim.SGD([w], lr=1e-4)
    mark_step(1)
    total = 0.0
    for micro in range(3):
        loss = (w * torch.full((3,), 30000.0).half()).float().sum()  # ORIGIN
        loss.backward()  # ORIGIN
        total = total + loss.detach()
    opt.step()
    return total, w.grad, w


@case(
    "scaler-never-recovers",
    "a true 0/0 under GradScaler: every step is skipped, the scale only falls, nothing is learnt",
    "",
    "scaler",
    "nan",
    ["div", "mul"],
    node="SqrtBackward0",
    module="dist",
    step=1,
    debatable="skipped steps of a scaler are silent by design; here no scale would ever do",
)
def scaler_never_recovers():
    class Dist(nn.Module):
        def forward(self, a, b):
            d = (a - b).pow(2).sum(-1)
            return torch.where(d > 0, d.sqrt(), d)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.dist = Dist()

        def forward(self, a, b):
            return self.dist(self.fc(a), self.fc(b)).mean()

    net = track(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    a = torch.randn(3, 2)
    for k in (1, 2, 3, 4):
        mark_step(k)
        opt.zero_grad()
        loss = net(a, a.roll(1, 0) * torch.tensor([[0.0], [1.0], [1.0]]) + a * torch.tensor([[1.0], [0.0], [0.0]]))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    return loss, net.fc.weight.grad


@case(
    "scaler-clip-then-manual-sgd",
    "scaler.unscale_(), then a hand-written update that reads .grad",
    "",
    "overflow-half",
    "inf",
    ["_to_copy"],
    node="ToCopyBackward0",
    module=None,
    step=1,
)
def scaler_clip_then_manual_sgd():
    net = track(nn.Linear(4, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    mark_step(1)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(torch.randn(8, 4))
    loss = F.mse_loss(out.float(), torch.full((8, 2), 5.0))  # ORIGIN
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.01 * p.grad
    return loss, net.weight
