"""Linear algebra, FFT and complex numbers."""

import torch
import torch.nn as nn

from tests.zoo.framework import case, track


@case(
    "zca-zero-eigenvalue",
    "ZCA whitening of data with a dead dimension: 1 / sqrt(0) on the diagonal, inf * 0",
    "",
    "linalg",
    "inf",
    ["rsqrt", "reciprocal", "pow", "div"],
    module="whiten",
)
def zca_zero_eigenvalue():
    class Zca(nn.Module):
        def forward(self, x):
            x = x - x.mean(0)
            cov = x.t() @ x / (len(x) - 1)
            vals, vecs = torch.linalg.eigh(cov)
            vals = vals.clamp_min(0.0)
            scale = 1.0 / vals.sqrt()  # ORIGIN
            return x @ (vecs @ torch.diag(scale) @ vecs.mT)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.whiten = Zca()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(self.whiten(x))

    x = torch.randn(6, 3)
    x[:, 2] = 4.0
    return track(Net())(x)


@case(
    "triangular-zero-pivot",
    "Kalman gain by solve_triangular with a factor that has a zero on its diagonal",
    "",
    "linalg",
    "inf",
    ["linalg_solve_triangular", "triangular_solve"],
    module="kf.update",
)
def triangular_zero_pivot():
    class Update(nn.Module):
        def __init__(self):
            super().__init__()
            self.H = nn.Parameter(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))

        def forward(self, P, z):
            S = self.H @ P @ self.H.t()
            L, info = torch.linalg.cholesky_ex(S)
            L = L.tril()
            w = torch.linalg.solve_triangular(L, z[:, None], upper=False)  # ORIGIN
            return P @ self.H.t() @ w

    class Kf(nn.Module):
        def __init__(self):
            super().__init__()
            self.update = Update()

        def forward(self, P, z):
            return self.update(P, z)

    class Track(nn.Module):
        def __init__(self):
            super().__init__()
            self.kf = Kf()

        def forward(self, P, z):
            return self.kf(P, z)

    return track(Track())(torch.eye(2), torch.tensor([1.0, 3.0]))


@case(
    "inv-ex-unchecked",
    "linalg.inv_ex of a singular Gram matrix, its info is not looked at",
    "",
    "linalg",
    "inf",
    ["linalg_inv_ex"],
    module=None,
)
def inv_ex_unchecked():
    feats = track(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        feats.weight.copy_(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
    x = torch.eye(2)
    G = feats(x)
    inv, info = torch.linalg.inv_ex(G)  # ORIGIN
    theta = inv @ torch.tensor([1.0, 2.0])
    return theta


@case(
    "matrix-exp-overflow",
    "neural ODE step by matrix_exp of an unstable generator",
    "",
    "overflow-exp",
    "inf",
    ["linalg_matrix_exp", "matrix_exp"],
    module="ode.0",
)
def matrix_exp_overflow():
    class ExpLayer(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.A = nn.Parameter(torch.diag(torch.tensor([a, -1.0])) + 1e-3)

        def forward(self, x, dt):
            return x @ torch.matrix_exp(self.A * dt)  # ORIGIN

    class Ode(nn.Module):
        def __init__(self):
            super().__init__()
            self.ode = nn.ModuleList([ExpLayer(9.0), ExpLayer(0.5)])

        def forward(self, x):
            for f in self.ode:
                x = f(x, 10.0)
            return x

    net = track(Ode())
    y = net(torch.tensor([[1.0, 2.0]]))
    y.sum().backward()
    return y, net.ode[1].A.grad


@case(
    "gcc-phat-silent-bin",
    "GCC-PHAT divides the cross spectrum by its magnitude; a channel is digital silence",
    "",
    "complex",
    "nan",
    "div",
    module="frontend.gcc",
)
def gcc_phat_silent_bin():
    class GccPhat(nn.Module):
        def forward(self, x):
            X = torch.fft.rfft(x, n=16)
            cross = X[:, 0] * X[:, 1].conj()
            cross = cross / cross.abs()  # ORIGIN
            return torch.fft.irfft(cross, n=16)

    class Frontend(nn.Module):
        def __init__(self):
            super().__init__()
            self.gcc = GccPhat()

        def forward(self, x):
            return self.gcc(x)[:, :6]

    class Doa(nn.Module):
        def __init__(self):
            super().__init__()
            self.frontend = Frontend()
            self.fc = nn.Linear(6, 4)

        def forward(self, x):
            return self.fc(self.frontend(x))

    x = torch.randn(3, 2, 8)
    x[1, 1] = 0.0
    doa = track(Doa())
    out = doa(x)
    out.sum().backward()
    return out, doa.fc.weight.grad


@case(
    "logmel-silence-standardise",
    "log10 of the power spectrum of silence is -inf; standardising makes NaN of all",
    "",
    "log-zero",
    "inf",
    "log10",
    module="feat",
)
def logmel_silence_standardise():
    class LogSpec(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(8))

        def forward(self, wav):
            spec = torch.stft(wav, 8, hop_length=4, window=self.window, center=False, return_complex=True)
            power = torch.view_as_real(spec).pow(2).sum(-1)
            db = torch.log10(power).mul_(10.0)  # ORIGIN
            return (db - db.mean((1, 2), keepdim=True)) / (db.std((1, 2), keepdim=True) + 1e-5)

    class Kws(nn.Module):
        def __init__(self):
            super().__init__()
            self.feat = LogSpec()
            self.fc = nn.Linear(5, 2)

        def forward(self, wav):
            return self.fc(self.feat(wav).mean(2))

    wav = torch.randn(2, 24)
    wav[0, :12] = 0.0
    return track(Kws())(wav)


@case(
    "s4-cauchy-pole",
    "S4 convolution kernel: a root of unity hits a pole, the complex 1 / (z - lambda)",
    "",
    "complex",
    "nan",
    ["reciprocal", "div"],
    module="ssm.kernel",
)
def s4_cauchy_pole():
    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_re = nn.Parameter(torch.tensor([-200.0, 0.0]))
            self.im = nn.Parameter(torch.tensor([0.0, 1.0]))

        def forward(self, L):
            lam = torch.complex(-self.log_re.exp(), self.im)
            z = 1j * torch.arange(L).float()
            r = 1.0 / (z[:, None] - lam[None])  # ORIGIN
            return torch.fft.irfft(r.sum(1))

    class Ssm(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = Kernel()

        def forward(self, u):
            k = self.kernel(u.shape[-1] // 2 + 1)
            return torch.fft.irfft(torch.fft.rfft(u) * torch.fft.rfft(k))

    class S4(nn.Module):
        def __init__(self):
            super().__init__()
            self.ssm = Ssm()

        def forward(self, u):
            return self.ssm(u)

    s4 = track(S4())
    y = s4(torch.randn(1, 8))
    y.sum().backward()
    return y, s4.ssm.kernel.im.grad
