"""`torchnan diagnose`."""

from __future__ import annotations

import csv
import json
import math
import re
import stat
import subprocess
import sys

import numpy as np
import pytest

from tests.support.forked_python import run_forked_command
from tests.support.processes import REPOSITORY, run_python
from tests.support.synthetic_runs import training, with_scaler
from torchnan.config.options import OptionError
from torchnan.diagnosis import Forecast, Headroom, Thresholds, diagnose, of_columns
from torchnan.training.diagnosis.reports import post_mortem, terminal

DIAGNOSE = [sys.executable, "-m", "torchnan", "diagnose"]
NAMES = ("step", "loss", "grad_norm", "lr", "loss_scale", "weight_norm", "batch_digest")


@pytest.fixture
def folder(tmp_path):
    """Two tables: of a run with a spike where the learning rate jumps, and of a healthy one."""
    for name in ("healthy", "spiked"):
        made = with_scaler(training(1), overflow_at=[0])
        if name == "spiked":
            made["lr"][399] *= 30
            made.raise_loss(400, 1.0, until=410)
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(NAMES)
            columns = [made.step, *(made[name] for name in NAMES[1:-1]), made.digests]
            lines.writerows(zip(*columns, strict=True))
    return tmp_path


def test_the_walk_and_the_verdict_on_one_screen(folder):
    ended = run_forked_command("diagnose", "spiked.csv", cwd=folder)
    assert (ended.returncode, ended.stderr) == (1, "")
    lines = ended.stdout.splitlines()
    assert lines[0] == "torchnan: spike from step 400 on, learning rate discontinuity"
    assert lines[1] == "  spiked.csv: steps 0 to 599, 600 rows, dtype not known"
    assert "Q2.3  What does it come from?  learning rate discontinuity (the learning rate jumps" in ended.stdout
    for row in ("cause", "remedy", "check", "branch"):
        assert f"\n  {row} " in ended.stdout
    assert len(lines) <= 40
    assert max(map(len, lines)) <= terminal.WIDTH


def test_a_healthy_run_ends_with_0(folder):
    ended = run_forked_command("diagnose", "healthy.csv", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("torchnan: the run is healthy\n")


def test_json_has_the_documented_fields(folder):
    ended = run_forked_command("diagnose", "spiked.csv", "--json", cwd=folder)
    assert ended.returncode == 1
    (line,) = ended.stdout.splitlines()
    first = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["verdicts"][0]
    assert (first["kind"], first["cause"], first["first_step"]) == ("spike", "lr_discontinuity", 400)
    assert first["certainty"] == first["suspects"][0]["confidence"]
    assert set(first) >= {"last_step", "evidence", "remedy", "branch", "confidence", "check", "suspects"}
    assert first["branch"] == "Q1.1 -> Q2.1 -> Q2.2 -> Q2.3"


def test_a_log_without_a_loss_ends_with_2_and_names_its_other_numbers(folder):
    (folder / "log.csv").write_text("step,grad_norm,quality\n" + "".join(f"{i},1.0,3\n" for i in range(30)))
    ended = run_forked_command("diagnose", "log.csv", cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "log.csv has no loss. Its other numbers are quality. --column loss=NAME says which" in ended.stderr


@pytest.mark.parametrize("form", ["csv", "jsonl", "log"])
def test_a_column_that_is_not_there_is_refused_with_those_that_are(folder, form):
    rows = [(i, 3.0 - i / 20, 0.1) for i in range(30)]
    written = {
        "csv": "step,total,lr\n" + "".join(f"{step},{total},{lr}\n" for step, total, lr in rows),
        "jsonl": "".join(f'{{"step": {step}, "total": {total}, "lr": {lr}}}\n' for step, total, lr in rows),
        "log": "".join(f"step {step} total {total} lr {lr}\n" for step, total, lr in rows),
    }
    (folder / f"log.{form}").write_text(written[form])
    ended = run_forked_command("diagnose", f"log.{form}", "--column", "loss=totl", cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"torchnan: loss='totl' cannot be used: log.{form} has no column of that name. Did you mean 'total'? "
        "Its columns are step, total, lr.\n"
    )
    named = run_forked_command("diagnose", f"log.{form}", "--column", "loss=total", cwd=folder)
    assert named.returncode == 0


def test_a_run_of_few_rows_is_undetermined_and_numbers_have_no_exponents(folder):
    (folder / "log.csv").write_text("step,loss\n" + "".join(f"{i},{41000 + i % 2}\n" for i in range(20)))
    ended = run_forked_command("diagnose", "log.csv", cwd=folder)
    assert ended.returncode == 2
    assert "20 rows with a loss are too few to tell: more than 20 are needed" in ended.stdout
    (folder / "log.csv").write_text("step,loss\n" + "".join(f"{i},{41000 + i % 2}\n" for i in range(21)))
    ended = run_forked_command("diagnose", "log.csv", cwd=folder)
    assert ended.returncode == 0
    assert "(from 41,000 to 41,000)" in ended.stdout


def test_it_says_what_it_wrote(folder):
    pytest.importorskip("jinja2")
    ended = run_forked_command(
        "diagnose", "spiked.csv", "--json", "--html", "it.html", "--post-mortem", "it.md", cwd=folder
    )
    assert ended.stderr == "torchnan: the page is it.html\ntorchnan: the post-mortem is it.md\n"
    assert json.loads(ended.stdout)


def test_the_kinds_that_fail_can_be_named(folder):
    assert run_forked_command("diagnose", "spiked.csv", "--fail-on", "nonfinite", cwd=folder).returncode == 0
    assert run_forked_command("diagnose", "spiked.csv", "--fail-on", "nonfinite,spike", cwd=folder).returncode == 1
    ended = run_forked_command("diagnose", "spiked.csv", "--fail-on", "spikes", cwd=folder)
    assert ended.returncode == 2
    assert "there is no kind 'spikes'. Did you mean 'spike'?" in ended.stderr


def test_a_log_that_grows_is_followed_until_it_fails(folder):
    path = folder / "train.log"
    path.write_text("".join(f"step {i} loss {3 - i / 100}\n" for i in range(50)))
    command = [*DIAGNOSE, str(path), "--follow", "--fail-on", "nonfinite"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        try:
            with path.open("a") as log:
                log.write("step 50 loss nan\nstep 51 loss nan\n")
            said, _ = following.communicate(timeout=300)
        finally:
            following.kill()  # if it has not ended
    assert following.returncode == 1
    assert said.startswith("torchnan: nonfinite from step 50 on")


def test_thresholds_are_set_in_words_and_in_a_file(folder):
    assert run_forked_command("diagnose", "spiked.csv", "--set", "spike_sigma=100", cwd=folder).returncode == 0
    (folder / "limits.toml").write_text("recovery_steps = 5\n")
    ended = run_forked_command("diagnose", "spiked.csv", "--thresholds", "limits.toml", cwd=folder)
    assert ended.stdout.startswith("torchnan: persistent elevation from step 400 on")
    ended = run_forked_command(
        "diagnose", "spiked.csv", "--thresholds", "limits.toml", "--set", "recovery_steps=50", cwd=folder
    )
    assert ended.stdout.startswith("torchnan: spike from step 400 on")


@pytest.mark.breadth(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.csv"], "torchnan: none.csv: No such file or directory"),
        (["."], "there is no run in the folder"),
        (["healthy.csv", "--set", "spike_sigma"], "--set spike_sigma cannot be used: it takes NAME=VALUE."),
        (["healthy.csv", "--set", "spike_sigma=0"], "spike_sigma=0 cannot be used: it takes a number above 0."),
        (["healthy.csv", "--set", "sigma=3"], "there is no option 'sigma' of diagnosis."),
        (["healthy.csv", "--thresholds", "healthy.csv"], "healthy.csv is not TOML"),
        (["healthy.csv", "--html", "no/such/folder.html"], "torchnan: no/such/folder.html: No such file or directory"),
    ],
)
def test_an_invalid_command_exits_with_2(folder, arguments, said):
    (folder / "empty").mkdir()
    ended = run_forked_command("diagnose", *arguments, cwd=folder / "empty" if arguments == ["."] else folder)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_every_threshold_is_checked():
    for name, option in Thresholds.options().items():
        for wrong in (-1, 0.0, True, "3", math.nan, math.inf, None):
            with pytest.raises(
                OptionError, match=f"{name}=.* cannot be used: {name} takes {re.escape(option.accepts)}"
            ):
                Thresholds(**{name: wrong})
    assert Thresholds().with_texts(["spike_window=50", "grad_factor=1e1"]) == Thresholds(
        spike_window=50, grad_factor=10.0
    )


def test_the_document_has_every_threshold_with_its_default():
    text = (REPOSITORY / "docs" / "diagnose.md").read_text()
    written = re.findall(r"^\| `(\w+)` \| ([\d.,]+) \|", text, re.MULTILINE)
    assert written == [(name, f"{option.default:,}") for name, option in Thresholds.options().items()]


def test_missing_packages_are_named(tmp_path):
    for package in ("numpy", "scipy", "orjson", "jinja2"):
        ended = run_python(
            f"import sys; sys.modules[{package!r}] = None\n"
            "from torchnan.cli import main\n"
            "open('run.jsonl', 'w').write('{\"step\": 1, \"loss\": 2}')\n"
            "sys.exit(main(['diagnose', 'run.jsonl', '--html', 'page.html']))",
            cwd=tmp_path,
        )
        assert ended.returncode == 2, package
        assert f"needs {package}: pip install torchnan[diagnose]" in ended.stderr


def test_the_post_mortem_is_filled_in_and_for_its_owner_alone(folder):
    run_forked_command("diagnose", "spiked.csv", "--post-mortem", "it.md", cwd=folder)
    text = (folder / "it.md").read_text()
    assert text.startswith("# Post-mortem: spike from step 400 on, learning rate discontinuity\n")
    assert "**Fix.** Repair the schedule" in text
    assert "| Q2.1 | Is a loss above the mean by 3 sigma" in text
    assert stat.S_IMODE((folder / "it.md").stat().st_mode) == 0o600


def test_hostile_names_do_nothing(tmp_path):
    name = "\x1b[31m|<img src=x>[a](javascript:b)`\n# heading"
    made = of_columns(range(3), {"loss": [1, 2, 3]}, source=name, dtype=name, notes=[name])
    made.headroom = [Headroom(name, "float16", np.arange(3), np.full(3, 60000.0))]
    found = diagnose(made)
    shown = terminal.text(made, found)
    assert all(line.isprintable() for line in shown.splitlines())
    document = post_mortem.markdown(made, found)
    assert "<img" not in document.replace("\\<img", "")
    assert "\n# heading" not in document
    assert all(line.isprintable() for line in document.splitlines())


def headroom(factor, share=0.41, module="layers.11.mlp.down_proj", dtype="float16", steps=4800):
    step = np.arange(0, steps + 1, 50)
    growth = factor ** ((step - steps) / 300)
    return of_columns(
        step, {"loss": np.ones(len(step))}, headroom=[Headroom(module, dtype, step, share * 65504 * growth)]
    )


def test_headroom_is_reported_before_it_is_gone():
    (forecast,) = diagnose(headroom(2)).forecasts
    assert str(forecast) == (
        "layers.11.mlp.down_proj output reached 41% of fp16's range and doubles every 300 steps: overflow expected "
        "near step 5,185; bfloat16 would do"
    )
    assert isinstance(forecast, Forecast)
    assert "headroom: layers.11.mlp.down_proj" in terminal.text(headroom(2), diagnose(headroom(2)))


def test_headroom_that_does_not_grow_is_reported_above_half_of_the_range():
    assert diagnose(headroom(1)).forecasts == []
    (forecast,) = diagnose(headroom(1, share=0.6)).forecasts
    assert (forecast.doubling, forecast.overflow) == (None, None)
    assert "reached 60% of fp16's range and does not grow" in str(forecast)


@pytest.mark.parametrize(("share", "said"), [(0.0429, "4.3%"), (0.098, "9.8%"), (0.41, "41%")])
def test_a_share_of_the_range_is_reported_in_two_digits(share, said):
    (forecast,) = diagnose(headroom(2, share=share)).forecasts
    assert f"reached {said} of fp16" in str(forecast)


def test_headroom_is_forecast_no_further_than_the_observed_history():
    assert diagnose(headroom(2, share=0.001, steps=600)).forecasts == []
    assert diagnose(headroom(2, dtype="float32")).forecasts == []
