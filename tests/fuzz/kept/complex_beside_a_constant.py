def make():
    return (torch.zeros(72, 70, dtype=F64),)


def program(x):
    x.view(-1)[5] = math.inf
    y = x.float()
    x.add_(1e37)
    z = torch.view_as_complex(y.view(-1, 2)) * 1.0
    r = x.float() * 1.0
    return dict(x=x, y=y, z=z, r=r)
