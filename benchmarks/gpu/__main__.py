"""Runs the stages of a call, each in a separate process with a time limit, and keeps what each has found.

    python -m benchmarks.gpu CALL OUT [--seconds 560] [--device cuda] [--only smoke,gpt2]

Prints each row, and writes OUT/call-N.json and a page of verdicts, OUT/call-N.txt, after each; after each stage, also
OUT/call-N.tar.gz with these and the logs. A stage that fails, or runs out of time, does not keep the next from running;
a call that is cut off keeps its rows. Needs PyTorch, a GPU and no network. Where torchnan has not been built for this
PyTorch, it is built first, from the sources of the package (`make gpu-package`).

`--device lagging` tries the stages on the device of tests/cpp/device: its figures do not apply to a GPU, and are not
compared with limits.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.build import build, describe
from benchmarks.gpu.calls import CALLS, RESERVE, SECONDS, Stage
from benchmarks.gpu.verdict import Verdict, read_verdicts, write_whole

LARGEST_LOG = 500_000  # bytes of it that are kept: its end
INTERVAL = 0.5  # seconds between two looks at the rows of a stage


@dataclasses.dataclass
class StageReport:
    """What is known of a stage.

    Attributes:
        name: of the stage.
        seconds: how long it has run.
        error: why it has no more verdicts; empty if it has ended, or runs.
        verdicts: its rows.
    """

    name: str
    seconds: float = 0.0
    error: str = ""
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.error and all(verdict.verdict != "FAIL" for verdict in self.verdicts)

    def lines(self) -> list[str]:
        failure = [f"  FAIL  {self.error}"] if self.error else []
        return ["", f"{self.name}  ({self.seconds:.0f} s)", *(f"  {verdict}" for verdict in self.verdicts), *failure]


class Call:
    """One call: its reports, and the files that hold them."""

    def __init__(self, number: int, out: Path, seconds: float, device: str) -> None:
        self.number, self.out, self.device = number, out, device
        self.end = time.monotonic() + seconds - RESERVE
        self.patience = max(1.0, seconds / SECONDS)  # a slow machine may get more time for each stage
        self.machine = ""
        self.reports: list[StageReport] = []

    @property
    def seconds_left(self) -> float:
        return self.end - time.monotonic()

    def prepare(self, scratch: Path) -> bool:
        """Builds torchnan if it has to be built here. Returns whether the stages can be run."""
        self.machine, why = describe(self.device)
        if why:
            report = StageReport("build")
            self.reports.append(report)
            if not self.machine:
                report.error = f"PyTorch sees no {self.device} here: {why}"
                return False
            began = time.monotonic()
            report.error = build(self.seconds_left, scratch / "build.log") or describe(self.device)[1]
            report.seconds = round(time.monotonic() - began, 1)
            report.verdicts = [Verdict("torchnan was built here, s", report.seconds, detail=why)]
            self.write()
            self.pack(scratch)
        return all(report.passed for report in self.reports)

    def page(self) -> str:
        passed = f"{sum(report.passed for report in self.reports)} of {len(self.reports)} stages passed"
        lines = [line for report in self.reports for line in report.lines()]
        return "\n".join([f"call {self.number} on {self.device}: {passed}", self.machine, *lines, ""])

    def write(self) -> None:
        """Writes the rows that there are, as JSON and as a page."""
        everything: dict[str, Any] = {"call": self.number, "device": self.device, "machine": self.machine}
        everything["stages"] = [dataclasses.asdict(report) for report in self.reports]
        write_whole(self.out / f"call-{self.number}.json", json.dumps(everything, indent=1))
        write_whole(self.out / f"call-{self.number}.txt", self.page())

    def pack(self, scratch: Path) -> None:
        """Packs the reports and the logs into one file."""
        archive = self.out / f"call-{self.number}.tar.gz"
        part = archive.with_name(f"{archive.name}.part")
        with tarfile.open(part, "w:gz") as packed:
            for file in [
                *(self.out / f"call-{self.number}.{kind}" for kind in ("json", "txt")),
                *scratch.glob("*.log"),
            ]:
                packed.add(file, file.name)
        os.replace(part, archive)

    def run_stage(self, name: str, stage: Stage, scratch: Path) -> None:
        """Runs a stage, and writes its rows while it runs."""
        report = StageReport(name)
        self.reports.append(report)
        limit = min(stage.seconds * self.patience, self.seconds_left)
        if limit < 1:
            report.error = "not begun: the time of the call was over"
            self.write()
            return
        rows, log = scratch / f"{name}.json", scratch / f"{name}.log"
        began = time.monotonic()
        arguments = [str(self.number), name, self.device, str(began + limit), str(rows)]
        environment = os.environ | ({"PYTORCH_CUDA_ALLOC_CONF": stage.allocator} if stage.allocator else {})
        if self.device == "cuda":
            environment["TORCHNAN_REQUIRE_CUDA"] = "1"
        report.error = "cut off"  # until it has ended
        try:
            with started([sys.executable, "-m", "benchmarks.gpu.stages", *arguments], environment, log) as process:
                while process.poll() is None and time.monotonic() - began < limit:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(INTERVAL)
                    self.take(report, rows, began)
                report.error = f"not finished after {limit:.0f} s"
                if process.poll() is not None:
                    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
                    report.error = f"exit status {process.returncode}: {last[0]}" if process.returncode else ""
        finally:
            self.take(report, rows, began)
            if log.stat().st_size > LARGEST_LOG:
                log.write_bytes(log.read_bytes()[-LARGEST_LOG:])
            self.pack(scratch)

    def take(self, report: StageReport, rows: Path, began: float) -> None:
        """Takes the rows that a stage has written, and prints the new ones."""
        known, report.verdicts = report.verdicts, read_verdicts(rows)
        report.seconds = round(time.monotonic() - began, 1)
        self.write()
        for verdict in report.verdicts:
            if verdict not in known:
                print(f"{report.name}  {verdict}", flush=True)


@contextlib.contextmanager
def started(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program in a process group, which is killed at the end: pytest and compilers have children."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, preexec_fn=os.setpgrp
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stop(number: int, frame: object) -> None:
    """Ends the call in an orderly way when `timeout` does."""
    raise SystemExit(128 + number)


def main() -> None:
    """Prints the page of verdicts. The exit status is 1 if anything has failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("call", type=int, choices=sorted(CALLS))
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that the whole call may take")
    parser.add_argument("--device", default="cuda", choices=("cuda", "lagging"))
    parser.add_argument("--only", metavar="STAGES", help="the stages to run, separated by commas")
    given = parser.parse_args()
    stages = CALLS[given.call]
    names = given.only.split(",") if given.only else list(stages)
    unknown = sorted(set(names) - set(stages))
    if unknown:
        parser.error(f"call {given.call} has no stage {', '.join(unknown)}: it has {', '.join(stages)}")
    signal.signal(signal.SIGTERM, stop)
    given.out.mkdir(parents=True, exist_ok=True)
    call = Call(given.call, given.out, given.seconds, given.device)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for name in names if call.prepare(Path(scratch)) else []:
                call.run_stage(name, stages[name], Path(scratch))
    finally:
        call.write()
        print(f"\n{call.page()}", flush=True)
    sys.exit(0 if all(report.passed for report in call.reports) else 1)


if __name__ == "__main__":
    main()
