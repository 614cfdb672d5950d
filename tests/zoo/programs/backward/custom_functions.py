"""Custom autograd functions and their saved tensors."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.zoo.framework import case, track


@case(
    "custom-setup-context",
    "autograd.Function with setup_context: backward divides by the saved input",
    "",
    "custom-function",
    "nan",
    ["div"],
    node="LogAbsBackward",
    module="gate",
)
def custom_setup_context():
    class LogAbs(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return torch.log(x.abs().clamp(min=1e-8))

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (x.abs() > 1e-8) * g / x

    class Gate(nn.Module):
        def forward(self, x):
            y = x * 2
            y = LogAbs.apply(y)  # ORIGIN
            return y + 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor([0.0, 0.5, -2.0]))
            self.gate = Gate()

        def forward(self):
            return self.gate(self.x)

    net = track(Net())
    out = net()
    out.sum().backward()
    return out, net.x.grad


@case(
    "gradient-reversal-normalised",
    "gradient reversal (forward is only a view) that normalises by the gradient's norm",
    "",
    "custom-function",
    "nan",
    ["div"],
    node="ReverseBackward",
    module="grl",
)
def gradient_reversal_normalised():
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, alpha):
            ctx.alpha = alpha
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -ctx.alpha * g / g.norm(), None

    class Grl(nn.Module):
        def forward(self, x):
            return Reverse.apply(x, 0.5)  # ORIGIN

    class Dann(nn.Module):
        def __init__(self):
            super().__init__()
            self.feat = nn.Linear(3, 2)
            self.grl = Grl()
            self.domain = nn.Linear(2, 1)

        def forward(self, x):
            f = self.feat(x)
            d = self.domain(self.grl(f))
            return F.relu(d)

    net = Dann()
    with torch.no_grad():
        net.domain.bias.fill_(-100.0)  # the discriminator is dead
    track(net)
    y = net(torch.randn(4, 3))
    y.sum().backward()
    return y, net.feat.weight.grad


@case(
    "straight-through-scale",
    "quantiser with a straight-through estimator: LSQ step gradient divides by a zero scale",
    "",
    "custom-function",
    "nan",
    ["div"],
    node="FakeQuantBackward",
    module=None,
)
def straight_through_scale():
    class FakeQuant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, s):
            ctx.save_for_backward(w, s)
            return torch.round(w / s.clamp(min=1e-6)) * s

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            w, s = ctx.saved_tensors
            q = w / s
            gs = (g * (q.round() - q)).sum().view_as(s)
            return g * (q.abs() < 127), gs

    w = torch.tensor([0.0, 0.3], requires_grad=True)
    s = torch.tensor(0.0, requires_grad=True)
    q = FakeQuant.apply(w, s)  # ORIGIN
    out = (q - 1.0).pow(2).sum()
    out.backward()
    return out, w.grad, s.grad


@case(
    "implicit-layer-inner-grad",
    "implicit layer: backward re-runs one step with gradients on and differentiates that",
    "",
    "custom-function",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module=None,
    notes="the node of the inner graph; its forward line is in the custom backward",
)
def implicit_layer_inner_grad():
    class FixedPoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, theta):
            z = torch.zeros_like(theta)
            ctx.save_for_backward(theta, z)
            return z + theta * 0.0

        @staticmethod
        def backward(ctx, g):
            theta, z = ctx.saved_tensors
            with torch.enable_grad():
                t = theta.detach().requires_grad_()
                step = torch.sqrt(z * 0.5 + t)  # ORIGIN
                (inner,) = torch.autograd.grad(step, t, g)
            return inner

    theta = torch.tensor([0.0, 4.0], requires_grad=True)
    y = FixedPoint.apply(theta)
    (y + theta).sum().backward()
    return y, theta.grad


@case(
    "half-compressed-activations",
    "saved_tensors_hooks keep activations in half: 1e-9 becomes 0, log's backward divides by it",
    "",
    "saved-tensors",
    "inf",
    ["div"],
    node="LogBackward0",
    module="body.log",
)
def half_compressed_activations():
    class Log(nn.Module):
        def forward(self, x):
            return torch.log(x)  # ORIGIN

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = Log()

        def forward(self, x):
            return self.log(x * 1.0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1e-9, 0.5]))
            self.body = Body()

        def forward(self):
            return self.body(self.w)

    def pack(t):
        return t.to(torch.float16)

    def unpack(t):
        return t.to(torch.float32)

    net = track(Net())
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = net()
    y.sum().backward()
    return y, net.w.grad


@case(
    "saved-divisor-zeroed",
    "a scale is pruned to zero through .data between forward and backward",
    "",
    "mutation",
    "inf",
    ["div"],
    node="DivBackward0",
    module=None,
)
def saved_divisor_zeroed():
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    scale = torch.tensor([0.5, 0.01, 2.0])
    y = x / scale  # ORIGIN
    scale.data[scale < 0.1] = 0.0
    y.sum().backward()
    return y, x.grad


@case(
    "scale-gradient-identity",
    "fairseq's GradMultiply (forward hands its input on), scaling by 1 / number of live experts",
    "",
    "custom-function",
    "nan",
    ["mul", "div"],
    node="GradMultiplyBackward",
    module="moe.balance",
)
def scale_gradient_identity():
    class GradMultiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, live):
            ctx.live = live
            return x.view(x.shape)

        @staticmethod
        def backward(ctx, g):
            return g / ctx.live, None

    class Balance(nn.Module):
        def forward(self, x, live):
            return GradMultiply.apply(x, live)  # ORIGIN

    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.expert = nn.Linear(2, 2)
            self.balance = Balance()

        def forward(self, x, route):
            live = route.sum()
            h = self.balance(self.expert(x), live)
            return h * route[:, None]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.moe = Moe()

        def forward(self, x, route):
            return self.moe(x, route).sum()

    net = track(Net())
    loss = net(torch.randn(3, 2), torch.zeros(3))
    loss.backward()
    return loss, net.moe.expert.weight.grad


@case(
    "reversal-last-in-model",
    "an identity function with a bad backward is the last thing the model does",
    "",
    "custom-function",
    "nan",
    ["div"],
    node="UnitGradBackward",
    module="",
)
def reversal_last_in_model():
    class UnitGrad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return g / g.norm()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return UnitGrad.apply(self.fc(x))  # ORIGIN

    net = track(Net())
    y = net(torch.randn(3, 2))
    weight = torch.zeros(3, 2)
    (y * weight).sum().backward()
    return y, net.fc.weight.grad


@case(
    "reversible-block",
    "RevNet: backward calls the sub-module again with gradients on and runs its graph backward",
    "",
    "custom-function",
    "inf",
    ["div", "mul"],
    node="SqrtBackward0",
    module="rev.f",
    notes="the inner graph is made and run inside a custom backward, outside every forward call",
)
def reversible_block():
    class F1(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 1.0]))

        def forward(self, x):
            return (self.w * x).square().sum(-1, keepdim=True).sqrt()  # ORIGIN

    class Run(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, f):
            ctx.f = f
            ctx.save_for_backward(x)
            return x + f(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = x + ctx.f(x)
            torch.autograd.backward(y, g)
            return x.grad, None

    class Rev(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = F1()

        def forward(self, x):
            return Run.apply(x, self.f)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rev = Rev()

        def forward(self, x):
            return self.rev(x)

    net = track(Net())
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    y = net(x)
    y.sum().backward()
    return y, net.rev.f.w.grad


@case(
    "library-custom-op",
    "torch.library.custom_op with register_autograd: its backward divides by the saved result",
    "",
    "custom-function",
    "nan",
    ["div"],
    node="GeneratedBackwardFor_zoob_root_defaultBackward",
    module="act",
)
def library_custom_op():
    @torch.library.custom_op("zoob::root", mutates_args=())
    def root(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0.0).sqrt()

    def setup(ctx, inputs, output):
        ctx.save_for_backward(output)

    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return (y > 0) * g / (2 * y)

    root.register_autograd(backward, setup_context=setup)

    class Act(nn.Module):
        def forward(self, x):
            x = x - 1.0
            return root(x)  # ORIGIN

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.tensor([1.0, 3.0]))
            self.act = Act()

        def forward(self):
            return self.act(self.x)

    net = track(Net())
    y = net()
    y.sum().backward()
    return y, net.x.grad


@case(
    "custom-inplace-on-grad",
    "custom backward that normalises the incoming gradient in place",
    "",
    "custom-function",
    "nan",
    ["div_"],
    node="ProjectBackward",
    module=None,
)
def custom_inplace_on_grad():
    class Project(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            g = g.clone()
            g.div_(g.sum(-1, keepdim=True))
            return g

    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = Project.apply(w)  # ORIGIN
    z = (y * torch.tensor([[1.0, 1.0], [0.0, 0.0]])).sum()
    z.backward()
    return z, w.grad


@case(
    "user-pack-hook-int8",
    "activation quantiser as saved_tensors_hooks: a constant row has scale 0, dequantised 0 divides",
    "",
    "saved-tensors",
    "inf",
    ["div"],
    node="DivBackward0",
    module=None,
)
def user_pack_hook_int8():
    def pack(t):
        if t.dtype != torch.float32:
            return t
        s = t.abs().max() / 127.0
        return (t / s).round().to(torch.int8), s

    def unpack(p):
        return p[0].float() * p[1] if isinstance(p, tuple) else p

    num = torch.tensor([1.0, 2.0], requires_grad=True)
    den = torch.tensor([1e-3, 50.0], requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        ratio = num / den  # ORIGIN
        loss = ratio.sum()
    loss.backward()
    return loss, num.grad
