def make():
    return torch.rand(72, 72), torch.ones(72, 72)


def program(x, y):
    x = (x * 0.5).relu()
    x.add_(y)
    x = x + y
    y.view(torch.int32)[7] = 0x7F800001
    x[3:40] = 0.0
    y = (y * 0.5).relu()
    y[3:40] = 1e300
