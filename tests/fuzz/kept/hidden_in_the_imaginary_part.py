# The Inf that the product has made is in the imaginary part, which nothing can see. What can be seen is the constant.
def make():
    return (T(1, (72, 64), F32, "normal"), T(2, (72, 64), F32, "large"))


def program(a, b):
    v = (torch.complex(a, b) * torch.complex(b, a)).real
    v.view(-1)[2] = math.inf
    return dict(locals())
