def make():
    return torch.full((8192,), 1e10), torch.full((8192,), 1e10)


def program(a, b):
    torch._foreach_mul_([a, a, a, a], 1e10)
    torch._foreach_mul_([a, b, a], [b, a, b])
    return dict(locals())
