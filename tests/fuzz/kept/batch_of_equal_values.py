def make():
    return (torch.full((5000, 64), 0.1),)


def program(x):
    y = F.batch_norm(x, None, None, training=True)
    z = F.adaptive_avg_pool2d(x[None], (3, 3))
    return dict(locals())
