"""Findings in the formats that code hosts show beside the source: GitHub's annotations, and SARIF 2.1.0."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torchnan import _build
from torchnan.config.text import printable
from torchnan.detection import report_rows
from torchnan.detection.finding import Finding
from torchnan.distributed.incidents import Incident
from torchnan.training.storage.jsonl import sanitize_text

Json = dict[str, Any]

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
_RULES = {"nan": "A value became NaN", "inf": "A value became infinite"}


def github(story: Sequence[Incident]) -> str:
    """Returns a workflow command for each incident, which GitHub Actions shows at its line in a pull request."""
    return "\n".join(map(_command, story))


def sarif(story: Sequence[Incident]) -> str:
    """Returns a SARIF document: a result for each incident, with its lineage as a flow through the code."""
    rules = [{"id": kind, "shortDescription": {"text": text}} for kind, text in _RULES.items()]
    driver = {"name": "torchnan", "version": _build.version, "rules": rules}
    run = {"tool": {"driver": driver}, "results": [_result(incident) for incident in story]}
    document = {"version": "2.1.0", "runs": [sanitize_text(run)]}
    return json.dumps(document, allow_nan=False, indent=1)


def _command(incident: Incident) -> str:
    first = incident.first
    place = {"file": printable(_relative(first.file)), "line": first.line} if first.file and first.line else {}
    properties = {**place, "title": f"torchnan: {report_rows.title(str(first))}"}
    listed = ",".join(f"{name}={_escape(str(value), ',:')}" for name, value in properties.items())
    return f"::{_COMMANDS[first.level]} {listed}::{_escape(_text(incident))}"


def _escape(text: str, also: str = "") -> str:
    """Escapes what a workflow command would interpret: ends of lines, and in properties commas and colons."""
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{also}" else c for c in text)


def _text(incident: Incident) -> str:
    """Returns the text to show beside the line: the cause, what other ranks saw, the report."""
    parts = [report_rows.value_of(str(incident.first), "because"), incident.elsewhere, str(incident.first)]
    return "\n".join(filter(None, parts))


def _result(incident: Incident) -> Json:
    first = incident.first
    result: Json = {
        "ruleId": first.kind,
        "level": first.level,
        "message": {"text": _text(incident)},
        "occurrenceCount": incident.count,
        "properties": {"op": first.op, "step": first.step, "rank": first.rank},
    }
    if first.file and first.line:
        location = _location(first.file, first.line)
        if first.module:
            location["logicalLocations"] = [{"fullyQualifiedName": first.module, "kind": "module"}]
        result["locations"] = [location]
    if flow := _flow(first):
        result["codeFlows"] = [{"threadFlows": [{"locations": [{"location": one} for one in flow]}]}]
    return result


def _flow(first: Finding) -> list[Json]:
    """Returns the locations that the value passed through, from its origin to the harm."""
    steps = [(first.op, first.file, first.line), *((step.op, step.file, step.line) for step in first.lineage)]
    steps.append((str(first.harm), first.harm.file, first.harm.line))
    return [{**_location(file, line), "message": {"text": what}} for what, file, line in steps if file and line]


def _location(file: str, line: int) -> Json:
    uri = quote(_relative(file).encode("utf-8", "surrogatepass"))
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}}


def _relative(file: str) -> str:
    """Returns a path as code hosts use it: relative to the root of the repository, if it is inside.

    The root is GitHub's workspace; or the closest parent of the working directory with ``.git``; or the working
    directory.
    """
    path = os.path.normpath(os.path.join(os.getcwd(), file))
    inside = os.path.relpath(path, _root_of(path))
    return path if inside.startswith(os.pardir + os.sep) else inside


def _root_of(path: str) -> str:
    workspace = os.environ.get("GITHUB_WORKSPACE")
    if workspace and path.startswith(os.path.join(workspace, "")):
        return workspace
    here = Path.cwd()
    return next((os.fspath(above) for above in (here, *here.parents) if (above / ".git").exists()), os.fspath(here))
