"""The ranks of a job on one machine, which share their findings through files.

They never use the process group: an additional collective could hang the user's run. A folder whose path all ranks can
compute has a log of each rank and the file ``told``, with a line for each cause that a rank was about to report. The
rank whose line for a cause comes first reports it in full.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from torchnan import findings as logs
from torchnan._load import _C
from torchnan.config.text import command_line, counted, printable
from torchnan.detection import report_rows
from torchnan.detection.finding import Finding, identity, times_again
from torchnan.distributed.incidents import incidents, is_received

_TOLD = "told"


class Job:
    """This process among the ranks of its job.

    Args:
        folder: of the job; made with the first finding.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self._logged: set[object] = set()

    @property
    def log(self) -> Path:
        """The log of this rank."""
        return self.folder / f"rank-{self.rank}.jsonl"

    def keep(self, found: Iterable[Finding]) -> None:
        """Writes findings into the log of this rank, each once, and again when it was found again.

        Raises:
            OSError: the log cannot be written.
        """
        self.make_folder()
        for finding in found:
            key = (identity(finding), times_again(finding) > 0)
            if key not in self._logged:
                _C.append_line(str(self.log), f"{finding.to_json()}\n")
                self._logged.add(key)

    def make_folder(self) -> None:
        """Makes the folder, for its owner only.

        Raises:
            OSError: it cannot be made, or belongs to somebody else.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        about = os.lstat(self.folder)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise PermissionError(f"{printable(str(self.folder))} is not a folder of this user")

    def is_first(self, cause: object) -> bool:
        """Returns whether this rank is the first with a cause.

        Raises:
            OSError: the folder cannot be used.
        """
        told, name = self.folder / _TOLD, hashlib.sha256(repr(cause).encode("utf-8", "backslashreplace")).hexdigest()
        _C.append_line(str(told), f"{self.rank} {name}\n")  # whole lines, in the order of arrival
        lines = (line.split() for line in told.read_text().splitlines())
        return next((rank for rank, *_, key in lines if key == name)) == str(self.rank)

    def findings(self) -> list[Finding]:
        """Returns the findings of all ranks so far.

        Raises:
            OSError: a log cannot be read.
        """
        return [finding for log in logs.logs_at(self.log) for finding in logs.read(log).findings]

    def size(self) -> int:
        """Returns the size of the logs of all ranks, in bytes.

        Raises:
            OSError: a log cannot be read.
        """
        return sum(log.stat().st_size for log in logs.logs_at(self.log))

    def text_of(self, finding: Finding, report: str) -> tuple[str, bool]:
        """Keeps a finding; returns the report, or a line if another rank reports its cause, and whether this rank needs
        to show it.

        Raises:
            OSError: the folder cannot be used.
        """
        self.keep([finding])
        title, more = f"torchnan: {report_rows.title(report)}", f"All ranks: {self.command}"
        if is_received(finding):
            if (maker := self._maker_at(finding.step)) is not None:
                return f"{title}: received from rank {maker}, which reports it. {more}", False
            return f"{title}: {finding.hint}. {more}", self.is_first(("received", finding.step))
        if self.is_first(identity(finding)):
            return report, True
        return f"torchnan: {report_rows.summary(report)}; another rank reports it. {more}", False

    def _maker_at(self, step: int | None) -> int | None:
        """Returns a rank that has made a value at this step."""
        made = (one.first for one in incidents(self.findings()) if not is_received(one.first))
        return next((first.rank for first in made if first.step == step and first.rank != self.rank), None)

    def last_words(self) -> str:
        """Returns the findings of the ranks in a line; ``""`` if another rank prints it.

        Raises:
            OSError: the folder cannot be used.
        """
        if not self.is_first("last words"):
            return ""
        story = incidents(self.findings())
        seen = [f"{report_rows.summary(str(one.first))}; {one.elsewhere}" for one in story if one.elsewhere]
        rest = f", and {counted(len(seen) - 1, 'more cause')}" if len(seen) > 1 else ""
        return f"{seen[0]}{rest}. All ranks: {self.command}" if seen else f"logs of all ranks: {self.command}"

    @property
    def command(self) -> str:
        """The command that shows the findings of all ranks."""
        return command_line("show", str(self.folder))


@functools.cache
def current() -> Job | None:
    """Returns the job in which torchrun has started this process; ``None`` for a single process, and for a child of a
    rank. Other launchers, like a shell, may live longer than a job."""
    rank, ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if "TORCHELASTIC_RUN_ID" not in os.environ or not (rank.isdecimal() and ranks.isdecimal() and int(ranks) > 1):
        return None
    if multiprocessing.parent_process() is not None:
        return None
    try:
        folder = os.getcwd() if os.access(os.curdir, os.W_OK) else tempfile.gettempdir()
        return Job(Path(folder, f"torchnan-job-{_launcher()}"), int(rank))
    except OSError:
        return None


def _launcher() -> str:
    """Returns an identifier that the ranks of this machine share, and no other run has: torchrun's process, by number
    and start time, and its attempt."""
    parent = os.getppid()
    born = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{parent}-{born}" + (f"-{attempt}" if attempt.isdecimal() and attempt != "0" else "")
