"""One bug in many styles: out=, foreach, torch.func, TorchScript, torch.fx."""

import torch
import torch.nn as nn

from tests.zoo.framework import case, track


@case(
    "out-workspace-log",
    "an inference loop with preallocated workspaces: torch.log(..., out=) of an underflowed softmax",
    "",
    "log-zero",
    "inf",
    "log",
    module=None,
)
def out_workspace_log():
    head = track(nn.Linear(4, 6))
    ws_p, ws_log, ws_h = torch.empty(2, 6), torch.empty(2, 6), torch.empty(2)
    with torch.no_grad():
        for scale in (1.0, 500.0):
            logits = head(torch.randn(2, 4)) * scale
            torch.softmax(logits, -1, out=ws_p)
            torch.log(ws_p, out=ws_log)  # ORIGIN
            torch.mul(ws_p, ws_log, out=ws_log)
            torch.sum(ws_log, dim=-1, out=ws_h)
            ws_h.neg_()
    return ws_h


@case(
    "foreach-unit-norm",
    "weights are brought to unit norm with _foreach_div; a bias is still zero",
    "",
    "zero-division",
    "nan",
    ["_foreach_div_", "_foreach_div", "div", "div_"],
    module=None,
)
def foreach_unit_norm():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.zeros_(net[2].bias)
    track(net)
    with torch.no_grad():
        weights = [p.detach().clone() for p in net.parameters()]
        norms = torch._foreach_norm(weights)
        directions = torch._foreach_div(weights, norms)  # ORIGIN
        flat = torch.cat([d.flatten() for d in directions])
    return (flat,)


@case(
    "fused-softmax-function",
    "custom autograd.Function with a naive exp(x) / sum in its forward",
    "",
    "overflow-exp",
    "inf",
    "exp",
    module="attn.softmax",
)
def fused_softmax_function():
    class NaiveSoftmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            e = torch.exp(x)  # ORIGIN
            y = e / e.sum(-1, keepdim=True)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return y * (g - (g * y).sum(-1, keepdim=True))

    class Softmax(nn.Module):
        def forward(self, x):
            return NaiveSoftmax.apply(x)

    class Attn(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk = nn.Linear(3, 3)
            self.softmax = Softmax()

        def forward(self, x):
            return self.softmax(self.qk(x) @ x.t() * 200.0) @ x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attn()

        def forward(self, x):
            return self.attn(x)

    net = track(Net())
    out = net(torch.randn(4, 3))
    out.sum().backward()
    return out, net.attn.qk.weight.grad


@case(
    "vmap-unit-vector",
    "torch.func.vmap over rows of a function that normalises; one row is zero",
    "",
    "zero-division",
    "nan",
    "div",
    module=None,
)
def vmap_unit_vector():
    enc = track(nn.Linear(3, 3))

    def unit(v):
        n = torch.sqrt(torch.dot(v, v))
        return v / n  # ORIGIN

    x = torch.randn(4, 3)
    x[2] = 0.0
    u = torch.func.vmap(unit)(x)
    out = enc(u)
    out.sum().backward()
    return out, enc.weight.grad


@case(
    "ensemble-functional-call",
    "an ensemble by stack_module_state and vmap(functional_call): log of a ReLU output",
    "",
    "log-zero",
    "inf",
    "log",
    module="body.act",
)
def ensemble_functional_call():
    class LogAct(nn.Module):
        def forward(self, x):
            return torch.log(x.relu())  # ORIGIN

    class Member(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential()
            self.body.add_module("fc", nn.Linear(2, 3))
            self.body.add_module("act", LogAct())

        def forward(self, x):
            return self.body(x)

    models = [Member() for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base = track(models[0])

    def call(p, b, x):
        return torch.func.functional_call(base, (p, b), (x,))

    out = torch.func.vmap(call, in_dims=(0, 0, None))(params, buffers, torch.randn(4, 2))
    return out.softmax(-1).mean(0)


@case(
    "per-sample-hessian-forward",
    "jvp through a potential 1/r with two particles at the same place",
    "",
    "zero-division",
    "inf",
    ["reciprocal", "div", "pow"],
    module=None,
)
def per_sample_hessian_forward():
    charge = track(nn.Linear(1, 3))

    def potential(pos):
        d = (pos[:, None] - pos[None]).square().sum(-1)
        i, j = torch.triu_indices(3, 3, 1)
        inv = d[i, j].pow(-0.5)  # ORIGIN
        q = charge.weight.flatten()
        return (q[i] * q[j] * inv).sum()

    pos = torch.tensor([[0.0, 0.0], [1.0, 0.5], [1.0, 0.5]])
    energy, slope = torch.func.jvp(potential, (pos,), (torch.ones_like(pos),))
    return energy, slope


@case(
    "script-ratio",
    "a TorchScript helper divides by a running count that is 0",
    "",
    "zero-division",
    "nan",
    "div",
    module="meter",
)
def script_ratio():
    helper = torch.jit.script(_scripted_ratio)

    class Meter(nn.Module):
        def forward(self, pred, y, valid):
            return helper((pred - y) * valid, valid)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 1)
            self.meter = Meter()

        def forward(self, x, y, valid):
            return self.meter(self.fc(x).squeeze(1), y, valid)

    net = track(Net())
    loss = net(torch.randn(3, 2), torch.randn(3), torch.zeros(3))
    loss.backward()
    return loss, net.fc.weight.grad


def _scripted_ratio(err, valid):
    total = err.abs().sum()
    return total / valid.sum()


@case(
    "fx-traced-standardise",
    "a torch.fx traced model standardises per sample; a constant sample is 0/0",
    "",
    "zero-division",
    "nan",
    "div",
    module="",
)
def fx_traced_standardise():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            c = x - x.mean(1, keepdim=True)
            x = c / c.pow(2).mean(1, keepdim=True).sqrt()
            return self.fc(x)

    gm = track(torch.fx.symbolic_trace(Net()))
    x = torch.randn(3, 4)
    x[1] = 2.0
    out = gm(x)  # ORIGIN
    out.sum().backward()
    return out, gm.fc.weight.grad


@case(
    "sparse-gcn-zero-degree",
    "sparse GCN normalisation: degree 0 gives inf, inf * weight 0 enters a sparse matrix",
    "",
    "zero-division",
    "inf",
    "pow",
    module="conv.norm",
)
def sparse_gcn_zero_degree():
    class Norm(nn.Module):
        def forward(self, idx, w, n):
            deg = w.new_zeros(n).scatter_add_(0, idx[0], w)
            dis = deg.pow(-0.5)  # ORIGIN
            val = dis[idx[0]] * w * dis[idx[1]]
            return torch.sparse_coo_tensor(idx, val, (n, n))

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.lin = nn.Linear(2, 2)

        def forward(self, x, idx, w):
            return torch.sparse.mm(self.norm(idx, w, len(x)), self.lin(x))

    class Gcn(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = Conv()

        def forward(self, x, idx, w):
            return self.conv(x, idx, w)

    gcn = track(Gcn())
    idx = torch.tensor([[0, 1, 2], [1, 0, 2]])
    out = gcn(torch.randn(3, 2), idx, torch.tensor([1.0, 1.0, 0.0]))
    out.sum().backward()
    return out, gcn.conv.lin.weight.grad
