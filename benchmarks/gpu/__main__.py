"""Runs the stages, each in a separate process with a time limit, and writes OUT/STAGE.json after each.

    python -m benchmarks.gpu OUT [--device cuda] [--only smoke,cost]

A stage needs PyTorch, torchnan and a GPU, but no network and no transformers. Its figures are compared with limits:
PASS or FAIL. A stage that fails, or runs out of time, does not keep the next from running. `--device lagging` tries the
stages on the device of tests/cpp/device: its figures do not apply to a GPU, and are not compared with limits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.verdict import Verdict


def run_stage(name: str, device: str, out: Path) -> dict[str, object]:
    """Runs one stage and returns its report, even if the stage fails."""
    path = out / f"{name}.json"
    path.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.stages", name, device, str(path)]
    allocator = STAGES[name].allocator
    environment = os.environ | ({"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {})
    error = ""
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=STAGES[name].seconds, check=False
        )
        (out / f"{name}.log").write_text(ended.stdout + ended.stderr)
        if ended.returncode != 0:
            last = ended.stderr.strip().splitlines()[-1:] or ["no output"]
            error = f"exit status {ended.returncode}: {last[0]}"
    except subprocess.TimeoutExpired:
        error = f"not finished after {STAGES[name].seconds} s"
    verdicts = json.loads(path.read_text()) if path.exists() else []
    report = {"stage": name, "device": device, "seconds": round(time.monotonic() - began, 1)}
    report |= {"error": error, "verdicts": verdicts}
    path.write_text(json.dumps(report, indent=1))
    return report


def show(report: dict[str, object]) -> bool:
    """Prints a report. Returns whether nothing in it has failed."""
    print(f"\n{report['stage']}  ({report['seconds']} s)")
    verdicts = [Verdict(**fields) for fields in report["verdicts"]]  # type: ignore[union-attr, attr-defined]
    for verdict in verdicts:
        print(f"  {verdict}")
    if report["error"]:
        print(f"  FAIL  {report['error']}")
    return not report["error"] and all(verdict.verdict != "FAIL" for verdict in verdicts)


def main() -> None:
    """Prints the page of verdicts. The exit status is 1 if anything has failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--device", default="cuda", choices=("cuda", "lagging"))
    parser.add_argument("--only", default=",".join(STAGES))
    given = parser.parse_args()
    unknown = sorted(set(given.only.split(",")) - set(STAGES))
    if unknown:
        parser.error(f"there is no stage {', '.join(unknown)}: there are {', '.join(STAGES)}")
    given.out.mkdir(parents=True, exist_ok=True)
    passed = [show(run_stage(name, given.device, given.out)) for name in given.only.split(",")]
    print(f"\n{sum(passed)} of {len(passed)} stages passed; reports and logs are in {given.out}")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
