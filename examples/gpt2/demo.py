"""Runs the same training three times: plain, under PyTorch's anomaly mode, and under torchnan."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "train.py"
ANOMALY = """
import runpy, sys, torch
torch.autograd.set_detect_anomaly(True)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


NEXT = """
What to try next
  pip install .                               in the environment of your own training: this .venv is the clone's
  TORCHNAN=raise python train.py              on a training script of yours, as it is
  pytest --torchnan                           on its tests
  TORCHNAN=breakpoint TORCHNAN_WHEN=origin    in front of it: the debugger where the value is made
  docs/harm.md                                what is reported, and what is not
"""


def show(title: str, command: str, arguments: list[str], **variables: str) -> None:
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        title = f"\033[1m{title}\033[0m"
    print(f"\n{title}\n$ {command}\n", flush=True)
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", **variables}
    subprocess.run([sys.executable, *arguments], env=environment, cwd=HERE, check=False)


def main() -> None:
    show(
        "1. Plain: the loss turns NaN, nothing reports where, and training continues to the end.",
        "python train.py",
        ["train.py"],
    )
    show(
        "2. torch.autograd.set_detect_anomaly(True): names the last NaN of the forward pass, not the first.",
        "python train.py   # with torch.autograd.set_detect_anomaly(True) in it",
        ["-c", ANOMALY, str(SCRIPT)],
    )
    show(
        "3. torchnan: names the operation that made it, with line, module and inputs.",
        "TORCHNAN=raise python train.py",
        ["train.py"],
        TORCHNAN="raise",
    )
    print(NEXT)


if __name__ == "__main__":
    main()
