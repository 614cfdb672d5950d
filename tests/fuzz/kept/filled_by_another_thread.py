def make():
    return (torch.zeros(8192),)


def program(buffer):
    outputs = []
    for value in (1.0, 1.0, 1.0, math.nan):
        thread = threading.Thread(target=buffer.fill_, args=(value,))
        thread.start()
        thread.join()
        outputs.append((buffer * 10.0).relu())
    return dict(locals())
