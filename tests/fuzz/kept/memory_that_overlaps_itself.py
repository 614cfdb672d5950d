def make():
    return (torch.full((72, 64), 0.5),)


def program(a):
    b = a.unfold(-1, 3, 2)
    torch.exp(b, out=b)
    b.mul_(3e30)
    return dict(locals())
