"""Formats a diagnosis for a terminal."""

from __future__ import annotations

from torchnan.config.text import counted, printable
from torchnan.training.diagnosis.formatting import describe_confidence, describe_steps, display_name
from torchnan.training.diagnosis.run import Run
from torchnan.training.diagnosis.verdict import Diagnosis, Question, Suspect, Verdict

MAX_SHOWN = 3  # verdicts, forecasts, notes, and answers to one question
WIDTH = 118


def text(run: Run, found: Diagnosis) -> str:
    """Returns the diagnosis as text; names from the run are made printable."""
    lines = [f"torchnan: {headline(found)}", f"  {describe_run(run)}"]
    lines += [_cut(f"  note: {printable(note)}") for note in run.notes[:MAX_SHOWN]]
    lines += ["", *_walk(found.walk), ""]
    for verdict in found.verdicts[:MAX_SHOWN]:
        lines += [*verdict_lines(verdict), ""]
    more = len(found.verdicts) - MAX_SHOWN
    if more > 0:
        lines += [f"and {counted(more, 'more verdict')}: --json has all of them", ""]
    lines += [_cut(f"headroom: {printable(str(forecast))}") for forecast in found.forecasts[:MAX_SHOWN]]
    return "\n".join(lines).rstrip()


def headline(found: Diagnosis) -> str:
    """Returns the worst verdict in a few words."""
    worst = found.verdicts[0]
    if worst.kind == "healthy":
        return "the run is healthy"
    if worst.kind == "undetermined":
        return f"no instability found in what could be read: {worst.suspects[0].evidence}"
    is_guess = worst.suspects and worst.suspects[0].confidence == "possible"
    cause = "" if worst.cause == "unknown" else f", {'possibly ' if is_guess else ''}{display_name(worst.cause)}"
    return f"{display_name(worst.kind)} from step {worst.first_step:,} on{cause}"


def describe_run(run: Run) -> str:
    """Describes the source."""
    steps = f"steps {run.step[0]:,} to {run.step[-1]:,}, {len(run):,} rows"
    restarts = len(run.starts) - 1
    again = f", started again {counted(restarts, 'time')}" if restarts > 0 else ""
    return f"{printable(run.source, 200)}: {steps}, {printable(run.dtype or 'dtype not known')}{again}"


def _walk(questions: list[Question]) -> list[str]:
    lines, seen = [], dict[str, int]()
    for asked in questions:
        seen[asked.number] = seen.get(asked.number, 0) + 1
        if seen[asked.number] <= MAX_SHOWN:
            answer = f"{asked.answer} ({asked.evidence})" if asked.evidence else asked.answer
            lines += _wrapped(asked.number, f"{asked.text}  {printable(answer, 300)}", 8)
    hidden = sum(max(0, count - MAX_SHOWN) for count in seen.values())
    return [*lines, f"  ... {hidden:,} more answers"] if hidden else lines


def verdict_lines(verdict: Verdict) -> list[str]:
    """Returns the lines of a verdict; none for a healthy run."""
    if not verdict.is_bad:
        return []
    lines = [f"{display_name(verdict.kind).upper()}, {describe_steps(verdict)}: {describe_confidence(verdict)}"]
    rows = [(_role(i), _suspect(suspect)) for i, suspect in enumerate(verdict.suspects)]
    rows += [("remedy", verdict.remedy), ("check", printable(verdict.check, 1000)), ("branch", verdict.branch)]
    return [*lines, *(line for name, text in rows for line in _wrapped(name, text, 10))]


def _role(i: int) -> str:
    return "cause" if i == 0 else "or"


def _suspect(suspect: Suspect) -> str:
    return f"{display_name(suspect.cause)} ({suspect.confidence}): {printable(suspect.evidence, 300)}"


def _wrapped(name: str, text: str, indent: int) -> list[str]:
    import textwrap

    first = f"  {name}".ljust(indent)
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * indent)


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."
