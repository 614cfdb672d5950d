"""Run by test_frame_walk.py under one Python: the stack that is read is the stack that Python shows."""

import sys
import traceback

sys.path.insert(0, sys.argv[1])
import frame_walk_module


class Caller:
    def call(self, depth):
        if depth:
            return self.call(depth - 1)
        return next(map(lambda _: frame_walk_module.stack(), [0])), traceback.extract_stack()  # noqa: C417


def generator(caller):
    yield caller.call(2)


def through_c(caller):
    return sorted([3, 1], key=lambda k: 0) and next(generator(caller))


def main():
    caller = Caller()
    frames, shown = through_c(caller)
    seen = [(code.co_filename, line, code.co_name) for code, line, _ in frames]
    expected = [(frame.filename, frame.lineno, frame.name) for frame in reversed(shown)]
    assert seen[0][2] == "<lambda>", seen
    assert seen[1:] == expected, (seen, expected)
    owners = [first for code, _, first in frames if code.co_name == "call"]
    assert len(owners) == 3
    assert all(owner is caller for owner in owners)


main()
