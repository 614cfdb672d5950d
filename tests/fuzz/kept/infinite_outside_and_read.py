def make():
    return torch.ones(72, 72), torch.full((72, 72), 2.0)


def program(x, y):
    x = (x * 0.5).relu()
    x.add_(y)
    x = x + y
    thread = threading.Thread(target=lambda: y.mul_(3e38))
    thread.start()
    thread.join()
    (y * 1e-10).sum().item()
    return dict(x=x)
