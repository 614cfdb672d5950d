def make():
    return ()


def program():
    w = torch.zeros(5000, dtype=HF)
    torch._foreach_mul_([w], 1 - 1e3 * 1e2)
    y = torch.full((5000,), 1e-5) * torch.tensor(1e39, dtype=F64)
    z = torch.full((5000,), 1e-10) / 1e-46
    return dict(locals())
