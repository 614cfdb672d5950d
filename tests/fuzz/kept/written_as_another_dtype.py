def make():
    return (torch.ones(8192),)


def program(a):
    b = a * 1.0
    torch.view_as_complex(b.view(-1, 2))[:100].mul_(1e38).mul_(3.0)
    c = b * 1e20
    return dict(locals())
