def make():
    return (torch.full((5000,), 1e30, dtype=F64),)


def program(x):
    y = torch.from_dlpack(x)
    torch.exp(y, out=x)
    z = x.abs()
    y.zero_()
    return dict(x=x, y=y, z=z)
