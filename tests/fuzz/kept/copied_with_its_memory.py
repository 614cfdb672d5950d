def make():
    return (torch.full((72, 70), 3e38),)


def program(x):
    x.div_(0.5)
    y = copy.deepcopy(x)
    y.storage()[1] = 1e19
    x.zero_()
    z = y * 1.0
    return dict(x=x, y=y, z=z)
