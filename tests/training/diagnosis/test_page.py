"""The page of a diagnosis, in a real browser: it shows its content, offline, and no name acts on it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.support.browser import (
    HOSTILE,
    assert_hostile_names_are_text,
    assert_scripts_are_refused,
    assert_self_contained,
    colour_shares,
    in_browser,
    visible_text,
)
from tests.support.synthetic_runs import training, with_scaler
from torchnan.diagnosis import Column, Headroom, Thresholds, diagnose
from torchnan.training.diagnosis.reports import page, panels
from torchnan.training.diagnosis.series import Series


def spiked():
    made = with_scaler(training(1), overflow_at=[0, 1])
    made["lr"][399] *= 30
    made.raise_loss(400, 1.0, until=410)
    made["grad_norm"][450] = np.inf
    run = made.run()
    run.source = "run.csv"
    step = np.arange(0, 600, 10)
    run.headroom = [Headroom("mlp", "float16", step, 20_000 * 2 ** (step / 600))]
    return run


def write(tmp_path, run):
    path = tmp_path / "page.html"
    path.write_text(page.html(run, diagnose(run), Thresholds()), encoding="utf-8")
    return path


def test_a_browser_shows_verdict_panels_and_walk(tmp_path):
    path = write(tmp_path, spiked())
    ended = in_browser(path, "--dump-dom")
    shown = visible_text(ended.stdout)
    for words in ("spike from step 400 on", "learning rate discontinuity", "Repair the schedule", "Q4.1", "600 rows"):
        assert words in shown
    titles = re.findall(r'<section class="(?:wide|half) panel">\s*<div class="top"><h2>(.*?)</h2>', ended.stdout)
    assert titles == ["loss", "gradient norm", "learning rate", "loss scale", "weight norm", "headroom"]
    assert ended.stdout.count('class="curve k0"') == 6 + 1  # one in a legend
    assert 'class="band"' in ended.stdout
    assert 'class="mean"' in ended.stdout
    assert "<title>not finite at step 450</title>" in ended.stdout
    assert "Content Security Policy" not in ended.stderr  # nothing of the page itself is refused


@pytest.mark.parametrize(("groups", "legends"), [(["0"], 0), (["all"], 0), (["0: decay"], 1), (["0", "1"], 1)])
def test_a_group_that_is_alone_and_has_no_name_needs_no_legend(groups, legends):
    run = training(1).run()
    run.groups = {"weight_norm": dict.fromkeys(groups, run.columns["loss"])}
    assert page.html(run, diagnose(run), Thresholds()).count('<ul class="legend">') == legends


def test_the_style_is_used_and_the_page_is_not_blank(tmp_path):
    ground, card, curve = (0xF6, 0xF7, 0xF9), (0xFF, 0xFF, 0xFF), (0x24, 0x58, 0xC5)
    share = colour_shares(write(tmp_path, spiked()), height=1500)
    assert share[ground] > 0.05
    assert share[card] > 0.4
    assert share[curve] > 0.002


def test_names_of_strangers_are_text(tmp_path):
    run = spiked()
    run.source = run.dtype = HOSTILE
    run.notes = [HOSTILE]
    run.headroom = [Headroom(HOSTILE, "float16", np.arange(3), np.full(3, 60_000.0))]
    run.groups["weight_norm"] = {HOSTILE: run.groups["weight_norm"]["all"], **run.groups["lr"]}
    run.findings = [{"step": 400, "finding": {"op": HOSTILE, "module": HOSTILE}}]
    run.columns["loss"].values[400:] = np.nan
    assert_hostile_names_are_text(write(tmp_path, run))


def test_even_a_script_in_the_page_would_not_run(tmp_path):
    assert_scripts_are_refused(write(tmp_path, spiked()))


def test_it_asks_nothing_of_any_other_place(tmp_path):
    assert_self_contained(write(tmp_path, spiked()).read_text())


def test_a_million_rows_are_a_small_page(tmp_path):
    made = training(2, steps=200_000, curve="converged")
    made["loss"][123_457] = 9.0
    run = made.run()
    text = page.html(run, diagnose(run), Thresholds())
    assert len(text) < 200_000
    assert "123,457" in text


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [*((few, "rows with a loss are too few to tell") for few in (1, 2, 3)), (150, "the run is healthy")],
)
def test_short_runs_have_a_page_too(tmp_path, steps, verdict):
    run = training(3, steps=steps).run()
    assert verdict in page.html(run, diagnose(run), Thresholds())


def test_a_run_of_nothing_but_nan_has_a_page(tmp_path):
    made = training(4)
    for values in made.columns.values():
        values[:] = np.nan
    run = made.run()
    assert "nonfinite" in page.html(run, diagnose(run), Thresholds())


def test_skipped_steps_restarts_and_rollbacks_are_marked():
    run = training(1).run()
    run.columns["skipped"] = Column.of([1.0 if step == 200 else 0.0 for step in run.step.tolist()])
    run.starts = [0, 300]
    run.actions = [{"step": 400, "action": "rollback"}]
    text = page.html(run, diagnose(run), Thresholds())
    for title in ("skipped at step 200", "started again at step 300", "rollback at step 400"):
        assert f"<title>{title}</title>" in text


def drawn(run, title):
    return next(panel for panel in panels.panels(run, diagnose(run), Thresholds()) if panel.title == title)


def test_a_curve_is_interrupted_where_it_is_not_finite():
    run = training(1).run()
    run.columns["loss"].values[[200, 400, 402]] = np.nan
    strokes = drawn(run, "loss").lines[0].path.split("M")[1:]
    assert [stroke.count("L") + 1 for stroke in strokes] == [200, 199, 1, 197]
    assert strokes[2].endswith("h6")  # step 401 stands alone


def test_a_single_number_is_visible():
    run = training(1).run()
    run.groups = {"weight_norm": {"all": Column.of([2.0, *[None] * (len(run) - 1)])}}
    assert drawn(run, "weight norm").lines[0].path.endswith("h6")


def test_a_constant_small_rate_has_an_axis_that_names_it():
    run = training(1).run()
    run.groups, run.columns["lr"].values[:] = {}, 5e-5
    ticks = [text for _, text in drawn(run, "learning rate").y_ticks]
    assert ticks == ["4.6e-5", "4.8e-5", "5e-5", "5.2e-5", "5.4e-5"]


def test_a_single_bad_step_is_called_a_step():
    run = training(1).run()
    run.columns["loss"].values[300] = np.nan
    text = page.html(run, diagnose(run), Thresholds())
    assert "step 300 ·" in text
    assert "steps 300 to 300" not in text


def test_a_spike_does_not_widen_the_band():
    made = training(2, curve="converged")
    made["loss"][300] = 1e4
    run = made.run()
    found = diagnose(run)
    assert [verdict.kind for verdict in found.verdicts] == ["spike"]
    assert np.flatnonzero(~panels.usual_rows(Series.from_run(run, "loss"), found)).tolist() == [300]
