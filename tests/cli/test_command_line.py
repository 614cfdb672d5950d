"""The command line."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

import torchnan
from tests.support.forked_python import run_forked_command
from tests.support.processes import run
from torchnan import cli
from torchnan.cli import doctor
from torchnan.training.guard.event import StepEvent

MODULE = [sys.executable, "-m", "torchnan"]


def test_run_gives_the_script_its_arguments_and_watches_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nprint(sys.argv[1:])\ntorch.log(torch.tensor(-1.0)).item()\n")
    ended = run([*MODULE, "run", str(script), "--lr", "1e-3"])
    assert ended.stdout.strip() == "['--lr', '1e-3']"
    assert ended.returncode == 1
    assert "made by   aten::log" in ended.stderr


def test_run_takes_every_option_and_modules(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\ntorch.log(torch.tensor(-1.0)).item()\nprint('done')\n")
    log = tmp_path / "log"
    ended = run([*MODULE, "run", "--action", "log", "--log", str(log), "-m", "mine"], cwd=tmp_path)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "done", "")
    assert "aten::log" in log.read_text()


def test_run_turns_switches_off_by_their_names(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.log(torch.tensor(-1.0)).item()\nprint('done')\n")
    assert run([*MODULE, "run", str(script)]).returncode == 1
    ended = run([*MODULE, "run", "--no-check-nan", str(script)])
    assert (ended.returncode, ended.stdout.strip()) == (0, "done")
    both = run_forked_command("run", "--no-check-nan", "--no-check-inf", str(script))
    assert (both.returncode, "check_nan and check_inf are both off" in both.stderr) == (2, True)


def test_run_rejects_invalid_commands(tmp_path):
    script = tmp_path / "x.py"
    script.write_text("import torch\n")
    for arguments, message in [
        (["run"], "nothing to run"),
        (
            ["run", "--action", "shout", "x.py"],
            "--action shout cannot be used: it takes raise, warn, log or breakpoint",
        ),
        (["run", "--log", "/no/such/place", str(script)], "cannot be opened"),
    ]:
        ended = run_forked_command(*arguments)
        assert ended.returncode == 2, arguments
        assert message in ended.stderr
    off = run([*MODULE, "run", "x.py"], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert off.returncode == 2
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD is off" in off.stderr


def test_version_is_that_of_the_package_and_names_its_pytorch(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"torchnan {torchnan.__version__}, built for PyTorch ")


def test_doctor_prints_the_installation():
    ended = run_forked_command("doctor")
    assert ended.returncode == 0
    assert f"PyTorch      {torch.__version__}" in ended.stdout
    assert "dispatch key Fake" in ended.stdout
    assert "switches     off" in ended.stdout


def test_doctor_prints_the_same_as_json():
    lines = [line for line in run_forked_command("doctor").stdout.splitlines() if line[:1].strip()]
    ended = run_forked_command("doctor", "--json")
    told = json.loads(ended.stdout)
    assert (ended.returncode, told.pop("ok")) == (0, True)
    assert [f"{name:<12} {value}" for name, value in told.items()] == lines


def test_the_health_check_says_what_was_checked():
    printed = run_forked_command("doctor", "--health").stdout
    told = json.loads(run_forked_command("doctor", "--health", "--json").stdout)
    assert (told["ok"], told["ranks"], told["troubles"]) == (True, 1, [])
    assert [check.partition(" (")[0] for check in told["checked"]] == ["products of integer matrices on cpu"]
    assert printed == f"torchnan: this process: healthy\n  checked: {told['checked'][0]}\n"


def test_doctor_prints_the_options_that_are_set():
    ended = run_forked_command("doctor", TORCHNAN="warn", TORCHNAN_SKIP_OPS="aten::log")
    assert ended.returncode == 0
    assert "switches     action=warn, check_nan=True" in ended.stdout
    assert "skip_ops=('aten::log',)" in ended.stdout


def test_doctor_finds_a_switch_that_cannot_work():
    ended = run([*MODULE, "doctor"], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ended.returncode == 1
    assert "OFF by TORCH_DEVICE_BACKEND_AUTOLOAD" in ended.stdout


def test_each_kind_of_log_is_sent_to_its_command(tmp_path, capsys):
    run_log, script = tmp_path / "run.jsonl", tmp_path / "train.py"
    run_log.write_text('{"torchnan": "run", "version": 1}\n{"step": 1, "loss": 2}\n')
    script.write_text("import torch\n")
    assert cli.main(["show", str(run_log)]) == 2
    assert f"is the log of a Monitor: use `torchnan diagnose {run_log}`" in capsys.readouterr().err
    spaced = run_log.rename(tmp_path / "my run.jsonl")
    assert cli.main(["show", str(spaced)]) == 2
    assert f"use `torchnan diagnose '{spaced}'`" in capsys.readouterr().err
    assert cli.main(["show", str(script)]) == 2
    assert "is not a log of findings: none of its lines is one" in capsys.readouterr().err


def test_the_bad_steps_of_a_step_guard_are_shown(tmp_path, capsys):
    log = tmp_path / "recovery.jsonl"
    event = StepEvent(
        101, "loss", "loss is nan", cause="data", origin="NaN in an external tensor", reason="the remedy for data"
    )
    lines = [{"time": 1.5, "kind": "step", **event.facts()}, {"time": 2.5, "kind": "rollback", "snapshot": 90}]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "damaged\n")
    assert cli.main(["show", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "torchnan: step 101 was not applied (loss)" in shown
    assert "action    skip: the remedy for data" in shown
    assert "torchnan: rollback (snapshot 90)" in shown
    assert shown.endswith(f"{log}: 2 events, 1 line ignored\n")
    assert cli.main(["show", str(log), str(log)]) == 0  # each in turn
    assert capsys.readouterr().out == shown * 2
    findings = tmp_path / "findings.jsonl"
    findings.write_text("")
    assert cli.main(["show", str(findings), str(log)]) == 2
    assert f"use `torchnan show {log}`, without the other logs" in capsys.readouterr().err
    for options, refused in ((["--format=sarif"], "--format=sarif"), (["--fail-on", "error"], "--fail-on error")):
        assert cli.main(["show", *options, str(log)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.startswith(f"torchnan: {refused} cannot be used with {log}: it is the log of a StepG")) == (
            "",
            True,
        )


def test_a_reader_that_has_seen_enough_ends_a_command_without_a_word(tmp_path):
    log = tmp_path / "findings.jsonl"
    with torchnan.detect(action="log", log=log):
        torch.tensor(-1.0).log().item()
    for lines in (1, 100):  # within the buffer, and more than it holds
        log.write_text(log.read_text() * lines)
        ended = run(["bash", "-c", f"{sys.executable} -m torchnan show {log} --json | true; echo ${{PIPESTATUS[0]}}"])
        assert (ended.stdout, ended.stderr) == ("141\n", "")


def test_an_unknown_option_is_answered_with_those_that_the_help_shows(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--bogus", "train.py"])
    assert ended.value.code == 2
    listed = capsys.readouterr().err.rpartition("Options: ")[2].strip().rstrip(".").split(", ")
    with pytest.raises(SystemExit):
        cli.main(["run", "-h"])
    shown = capsys.readouterr().out
    assert "--action" in listed
    assert [option for option in listed if f"  {option}" not in shown and f", {option}" not in shown] == []


def test_the_version_has_a_short_option(capsys):
    printed = []
    for option in ("-V", "--version"):
        with pytest.raises(SystemExit) as ended:
            cli.main([option])
        assert ended.value.code == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert printed[0].startswith("torchnan ")


def test_ctrl_c_ends_a_command_as_it_ends_others(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "execute", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")


def interrupted(given):
    raise KeyboardInterrupt


def test_a_default_is_shown_as_it_is(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "-h"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "0, or a number of steps (default: 1000)" in shown
    assert "a path (default: none)" in shown
    assert "--no-check-nan the same as --check-nan 0" in shown
    assert "report NaN. It takes 1, 0, true or false (default: 1)" in shown
    assert "``" not in shown
    assert "--no-headroom" not in shown  # it is off by default


def test_a_single_finding_is_not_compared_with_others(tmp_path, capsys):
    log = tmp_path / "findings.jsonl"
    with torchnan.detect(action="log", log=log):
        torch.tensor(-1.0).log().item()
    assert cli.main(["show", str(log)]) == 0
    assert capsys.readouterr().out.endswith(f"{log}: 1 finding\n")


def test_a_misspelt_argument_is_refused_with_the_one_that_is_meant(capsys):
    for arguments, name in ((["run", "--acton", "warn", "x.py"], "--action"), (["diagnose", "x", "--jsn"], "--json")):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
        assert f"Did you mean '{name}'? Options: --" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("train.py", "'train.py' is a program, not a command. Run it under detection: torchnan run train.py"),
        ("extarct", "there is no command 'extarct'. Did you mean 'extract'? Commands: run, "),
    ],
)
def test_an_unknown_command_is_rejected_with_the_closest_match(given, said, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([given, "--lr", "1"])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_without_a_command_the_help_is_printed(capsys):
    assert cli.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.findall(r"^    (\w+)", printed.err, re.MULTILINE) == [command.NAME for command in cli.COMMANDS]
    with pytest.raises(SystemExit) as ended:
        cli.main(["--verison"])
    assert ended.value.code == 2
    assert "there is no argument '--verison'. Did you mean '--version'?" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_refused_by_name(tmp_path, capsys):
    assert cli.main(["replay", str(tmp_path), "--step", "a:b", "--device", "nonsense"]) == 2
    assert "--device nonsense cannot be used: " in capsys.readouterr().err


def test_an_unknown_column_is_rejected(tmp_path, capsys):
    assert cli.main(["diagnose", str(tmp_path), "--column", "los=x"]) == 2
    assert "--column los=x cannot be used: it takes COLUMN=NAME. Did you mean 'loss'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.NAME)
def test_the_help_of_each_command_has_examples_that_it_takes(command, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command.NAME, "-h"])
    assert ended.value.code == 0
    examples = re.findall(rf"^(?:\w+=\S+ )?torchnan ({command.NAME}\b[^|>\n]*)", capsys.readouterr().out, re.MULTILINE)
    assert examples
    monkeypatch.setattr(command, "execute", lambda given: 0)
    for example in examples:
        assert cli.main(shlex.split(example)) == 0


def test_help_and_messages_call_the_command_as_its_usage_does():
    package = Path(torchnan.__file__).parent
    spelled = [
        f"{path.name}: {line.strip()}"
        for path in sorted((*package.rglob("*.py"), *package.rglob("*.j2"), *package.rglob("*.html")))
        for line in path.read_text().splitlines()
        if "-m torchnan" in line and not line.startswith("torchrun ") and path.name != "__main__.py"
    ]
    assert spelled == []


COMPLETE = """
source {script}
complete_words() {{
  COMP_WORDS=(torchnan "$@"); COMP_CWORD=$#; COMPREPLY=()
  _shtab_torchnan torchnan "${{@: -1}}" "${{COMP_WORDS[$#-1]}}"
  echo "${{COMPREPLY[@]}}"
}}
complete_words ""
complete_words show --j
complete_words html find
complete_words run --act
complete_words completion ""
"""


def test_bash_completes_commands_options_and_files(tmp_path, capsys):
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "torchnan.bash").write_text(capsys.readouterr().out)
    (tmp_path / "findings.jsonl").touch()
    ended = run(["bash", "-c", COMPLETE.format(script="torchnan.bash")], cwd=tmp_path)
    commands = " ".join(module.NAME for module in cli.COMMANDS)
    assert ended.stdout.splitlines() == [commands, "--json", "findings.jsonl", "--action", "bash zsh fish"], (
        ended.stderr
    )


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_given_every_command_and_option(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*(module.NAME for module in cli.COMMANDS), "skip-ops", "post-mortem"):
        assert word in script


def test_completions_without_shtab_say_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "zsh"]) == 2
    assert capsys.readouterr().err == "torchnan: completions need shtab: pip install torchnan[completion]\n"


def test_run_leaves_a_page_if_it_is_asked_to(tmp_path):
    (tmp_path / "bad.py").write_text("import torch\ntorch.log(torch.tensor(-1.0)).item()\n")
    ended = run([*MODULE, "run", "--html", "page.html", "bad.py"], cwd=tmp_path)
    assert ended.returncode == 1
    assert "aten::log" in (tmp_path / "page.html").read_text()
