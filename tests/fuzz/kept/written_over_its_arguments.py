def make():
    return (torch.full((5000,), 1e30),)


def program(x):
    x.mul_(x)
    y = torch.full((5000,), -1.0)
    torch.sqrt(y, out=y)
    return dict(locals())
