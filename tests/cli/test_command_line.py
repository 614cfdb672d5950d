"""python -m torchnan."""

from __future__ import annotations

import sys

from tests.support.processes import run

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


def test_run_refuses_what_it_cannot_do(tmp_path):
    script = tmp_path / "x.py"
    script.write_text("import torch\n")
    for arguments, message in [
        (["run"], "nothing to run"),
        (["run", "--action", "shout", "x.py"], "TORCHNAN_ACTION=shout cannot be used"),
        (["run", "--log", "/no/such/place", str(script)], "cannot be opened"),
    ]:
        ended = run([*MODULE, *arguments])
        assert ended.returncode == 2, arguments
        assert message in ended.stderr
    off = run([*MODULE, "run", "x.py"], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert off.returncode == 2
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD is off" in off.stderr


def test_doctor_prints_what_is_installed():
    import torch

    ended = run([*MODULE, "doctor"])
    assert ended.returncode == 0
    assert f"PyTorch      {torch.__version__}" in ended.stdout
    assert "dispatch key Fake" in ended.stdout
    assert "switches     off" in ended.stdout


def test_doctor_finds_a_switch_that_cannot_work():
    ended = run([*MODULE, "doctor"], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ended.returncode == 1
    assert "OFF by TORCH_DEVICE_BACKEND_AUTOLOAD" in ended.stdout
