"""Gradients of linear algebra."""

import torch
import torch.nn as nn

from tests.zoo.framework import case, track


@case(
    "precision-matrix",
    "inverse of a vanishing covariance is 1e20, its gradient 1e40",
    "",
    "linalg",
    "inf",
    ["mm", "matmul", "bmm", "neg"],
    node=["LinalgInvExBackward0", "LinalgInvBackward0"],
    module="gp.precision",
)
def precision_matrix():
    class Precision(nn.Module):
        def forward(self, cov):
            return torch.linalg.inv(cov)  # ORIGIN

    class Gp(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1e-20))
            self.precision = Precision()

        def forward(self, r):
            return r @ self.precision(torch.eye(3) * self.scale) @ r

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.gp = Gp()

        def forward(self, r):
            return self.gp(r)

    root = track(Root())
    out = root(torch.tensor([1.0, 2.0, 3.0]))
    out.backward()
    return out, root.gp.scale.grad


@case(
    "procrustes-degenerate",
    "orthogonal Procrustes by SVD of a matrix with equal singular values",
    "",
    "linalg",
    "inf",
    ["div"],
    node=["LinalgSvdBackward0", "SvdHelperBackward0"],
    module=None,
)
def procrustes_degenerate():
    a = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]], requires_grad=True)
    u, s, vh = torch.linalg.svd(a)  # ORIGIN
    frame = u[:, :2]
    loss = (frame * torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).sum() + s.sum()
    loss.backward()
    return loss, a.grad


@case(
    "qr-zero-column",
    "QR re-orthogonalisation of a basis with a dead column: R is singular",
    "",
    "linalg",
    "nan",
    ["linalg_solve_triangular", "matmul", "mm"],
    node="LinalgQrBackward0",
    module="ortho",
)
def qr_zero_column():
    class Ortho(nn.Module):
        def forward(self, w):
            q, _ = torch.linalg.qr(w)  # ORIGIN
            return q

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 2.0], [1.0, 0.0, 4.0]]))
            self.ortho = Ortho()

        def forward(self, x):
            return x @ self.ortho(self.w)

    net = track(Net())
    y = net(torch.tensor([[1.0, 2.0, 3.0]]))
    y.pow(2).sum().backward()
    return y, net.w.grad


@case(
    "notears-matrix-exp",
    "NOTEARS acyclicity tr(exp(W*W)) with a grown multiplier: overflow in d(W*W)",
    "",
    "overflow",
    "inf",
    ["mul"],
    node="MulBackward0",
    module="acyclic",
)
def notears_matrix_exp():
    class Acyclic(nn.Module):
        def forward(self, w):
            sq = w * w  # ORIGIN
            return torch.linalg.matrix_exp(sq).diagonal().sum() - w.shape[0]

    class Notears(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.diag(torch.tensor([8.7, 0.2, 0.1])))
            self.acyclic = Acyclic()

        def forward(self, rho):
            return rho * self.acyclic(self.w)

    m = track(Notears())
    penalty = m(1e5)
    penalty.backward()
    return penalty, m.w.grad


@case(
    "product-of-experts",
    "product over experts fits float32, the product of all others does not",
    "",
    "overflow",
    "inf",
    ["cumprod", "mul", "div", "prod", "cumsum"],
    node=["ProdBackward0", "ProdBackward1"],
    module=None,
)
def product_of_experts():
    ratio = torch.tensor([[1e-30, 1e20, 1e20], [0.5, 2.0, 1.0]], requires_grad=True)
    joint = ratio.prod(dim=1)  # ORIGIN
    joint.log().sum().backward()
    return joint, ratio.grad


@case(
    "mvn-vanishing-covariance",
    "MultivariateNormal(covariance_matrix=1e-30 I): the Cholesky factor's gradient overflows",
    "",
    "linalg",
    "inf",
    ["linalg_solve_triangular", "mm", "matmul"],
    node="LinalgCholeskyExBackward0",
    module="posterior",
)
def mvn_vanishing_covariance():
    class Posterior(nn.Module):
        def __init__(self):
            super().__init__()
            self.cov = nn.Parameter(torch.eye(2) * 1e-30)

        def forward(self, x):
            d = torch.distributions.MultivariateNormal(torch.zeros(2), covariance_matrix=self.cov)  # ORIGIN
            return -d.log_prob(x)

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.posterior = Posterior()

        def forward(self, x):
            return self.posterior(x)

    vae = track(Vae())
    loss = vae(torch.tensor([1e-10, 0.0]))
    loss.backward()
    return loss, vae.posterior.cov.grad
