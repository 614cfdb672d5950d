"""Runs a command that compiles, and shows how far it is instead of what it prints.

``python cmake/show_progress.py pip install -v .``: on a terminal one line that counts up, elsewhere a line for every
tenth part. What the command has printed is shown if it fails.
"""

import collections
import re
import subprocess
import sys
import time

COUNT = re.compile(r"\s*\[(\d+)/(\d+)\] ")  # of Ninja
KEPT = 100  # lines


def main() -> int:
    start, shown = time.monotonic(), -1
    last: collections.deque[str] = collections.deque(maxlen=KEPT)
    with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as command:
        assert command.stdout is not None
        for line in command.stdout:
            last.append(line)
            count = COUNT.match(line)
            if count is None:
                continue
            done, files = int(count[1]), int(count[2])
            taken = time.monotonic() - start
            if sys.stdout.isatty():
                print(f"\r  {done} of {files} files compiled, {taken:.0f} s", end="", flush=True)
            elif done * 10 // files > shown:
                shown = done * 10 // files
                print(f"  {done} of {files} files compiled, {taken:.0f} s", flush=True)
    if sys.stdout.isatty():
        print()
    if command.returncode != 0:
        sys.stdout.writelines(last)
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())
