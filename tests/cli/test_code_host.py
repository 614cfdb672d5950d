"""Findings as GitHub's annotations and as SARIF."""

from __future__ import annotations

import json

import pytest
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Schema

from tests.support.browser import HOSTILE
from tests.support.finding_logs import LINE, finding_of, masked_row, received, write_log
from torchnan import cli
from torchnan.cli import code_host
from torchnan.distributed.incidents import incidents


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = {"file": str(tmp_path / "src" / "train.py"), "line": 7, "function": "f", "installed": False}
    write_log(tmp_path / "rank-0.jsonl", received(rank=0))
    return write_log(
        tmp_path / "rank-1.jsonl", masked_row(rank=1, stack=[frame]), masked_row(level="warning", op="a::b")
    )


def test_github_shows_an_incident_at_its_line(log, capsys):
    assert cli.main(["show", "--format=github", str(log)]) == 0
    out = capsys.readouterr()
    error, warning = out.out.splitlines()
    assert error.startswith(
        "::error file=src/train.py,line=7,title=torchnan%3A NaN at step 17%2C rank 1 (cpu)::the row of"
    )
    assert "%0Areceived by rank 0 through allreduce_%0Atorchnan: NaN at step 17, rank 1 (cpu)%0A  made by   " in error
    assert warning.startswith("::warning file=")
    assert "3 findings, 2 distinct" in out.err


@pytest.mark.parametrize("form", [[], ["--json"], ["--format=github"], ["--format=sarif"]])
def test_the_levels_that_fail_can_be_named(log, tmp_path, form, capsys):
    notes = write_log(tmp_path / "warned.jsonl", masked_row(level="warning", op="a::b"))
    quiet = write_log(tmp_path / "noted.jsonl", masked_row(level="note", op="a::c"))
    wanted = {log: {"error": 1, "warning": 1}, notes: {"error": 0, "warning": 1}, quiet: {"error": 0, "warning": 0}}
    for path, statuses in wanted.items():
        for level, status in statuses.items():
            assert cli.main(["show", *form, "--fail-on", level, str(path)]) == status
        assert cli.main(["show", *form, "--fail-on", "never", str(path)]) == 0


def test_sarif_has_a_result_with_the_flow_of_the_value(log, capsys):
    assert cli.main(["show", "--format=sarif", str(log)]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    error, warning = run["results"]
    assert driver["name"] == "torchnan"
    assert error["ruleId"] in {rule["id"] for rule in driver["rules"]}
    assert (error["level"], warning["level"]) == ("error", "warning")
    (location,) = error["locations"]
    assert location["physicalLocation"] == {"artifactLocation": {"uri": "src/train.py"}, "region": {"startLine": 7}}
    assert location["logicalLocations"] == [{"fullyQualifiedName": "layers.0", "kind": "module"}]
    (flow,) = warning["codeFlows"][0]["threadFlows"]
    lines = [one["location"]["physicalLocation"]["region"]["startLine"] for one in flow["locations"]]
    assert lines[0] == LINE
    assert len(lines) == 5  # of the origin, three operations, the harm
    assert flow["locations"][1]["location"]["message"] == {"text": "aten::mul"}


@pytest.mark.parametrize("workspace", [True, False])
@pytest.mark.parametrize("file", ["../train.py", "{root}/train.py", "../examples/../train.py"])
def test_paths_begin_at_the_root_of_the_repository(workspace, file, tmp_path, monkeypatch):
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    if workspace:
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    else:
        (tmp_path / ".git").touch()  # a file, in a separate work tree
    frame = {"file": file.format(root=tmp_path), "line": 7, "function": "f", "installed": False}
    story = incidents([finding_of(masked_row(stack=[frame]))])
    assert code_host.github(story).startswith("::error file=train.py,line=7,")
    (result,) = json.loads(code_host.sarif(story))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"


def test_a_file_outside_the_repository_keeps_its_path(tmp_path, monkeypatch):
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository")
    frame = {"file": "../elsewhere.py", "line": 7, "function": "f", "installed": False}
    (line,) = code_host.github(incidents([finding_of(masked_row(stack=[frame]))])).split("\n")
    assert line.startswith(f"::error file={tmp_path}/elsewhere.py,line=7,")


@pytest.mark.parametrize("line", [masked_row(), received(rank=0), masked_row(level="warning", stack=[])])
def test_sarif_fits_its_schema(line, tmp_path, capsys):
    log = write_log(tmp_path / "findings.jsonl", line)
    assert cli.main(["show", "--format=sarif", str(log)]) == 0
    (run,) = Schema.model_validate_json(capsys.readouterr().out).runs
    assert len(run.results) == 1


def test_names_of_strangers_end_no_command(log):
    told = finding_of(
        masked_row(
            op="a\n::error::b",
            module=HOSTILE,
            stack=[{"file": "a,b:c%\x1b", "line": 1, "function": "", "installed": False}],
        )
    )
    (line,) = code_host.github(incidents([told])).split("\n")
    assert line.startswith("::error file=a%2Cb%3Ac%25\\x1b,line=1,title=torchnan%3A NaN at step 17 (cpu)::")
    assert "\x1b" not in line
    (result,) = json.loads(code_host.sarif(incidents([told])))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%2Cb%3Ac%25%1B"


def test_nothing_found_is_a_document_without_results(tmp_path, capsys):
    (tmp_path / "log").touch()
    assert cli.main(["show", "--format=github", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["show", "--format=sarif", str(tmp_path / "log")]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"] == []


def test_two_formats_at_once_are_refused(log, capsys):
    with pytest.raises(SystemExit):
        cli.main(["show", "--json", "--format=sarif", str(log)])
    assert "not allowed with argument" in capsys.readouterr().err
