def make():
    return ()


def program():
    a = torch.tensor([-1.0, 1.0]).log()
    a[0] = torch.tensor(-1.0).sqrt()
    return dict(a=a)
