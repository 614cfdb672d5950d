"""Draws the panels of the page."""

from __future__ import annotations

import dataclasses

import numpy as np

from torchnan.pages import svg_chart
from torchnan.training.diagnosis.arrays import BoolArray
from torchnan.training.diagnosis.formatting import describe_steps, display_name
from torchnan.training.diagnosis.headroom import RANGES
from torchnan.training.diagnosis.run import Column, Run
from torchnan.training.diagnosis.series import Series, predict
from torchnan.training.diagnosis.thresholds import Thresholds
from torchnan.training.diagnosis.verdict import Diagnosis

UNNAMED = (["all"], ["0"])  # the single group of a table, or of an optimizer
MAX_LINES = 6  # distinguishable colours
MAX_MARKS = 40


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve."""

    name: str
    path: str
    colour: int = 0


@dataclasses.dataclass(frozen=True)
class Mark:
    """A shaded range of a verdict, or a step at which a value was not finite."""

    x: float
    width: float
    title: str


@dataclasses.dataclass
class Panel:
    """A chart, in pixels of its own picture."""

    title: str
    about: str
    width: int
    height: int
    lines: list[Line] = dataclasses.field(default_factory=list)
    band: str = ""
    mean: str = ""
    x_ticks: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    y_ticks: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    marks: list[Mark] = dataclasses.field(default_factory=list)
    nonfinite: list[Mark] = dataclasses.field(default_factory=list)
    events: list[Mark] = dataclasses.field(default_factory=list)

    @property
    def plot(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the plot area."""
        return svg_chart.LEFT, svg_chart.TOP, self.width - svg_chart.RIGHT, self.height - svg_chart.BOTTOM


def panels(run: Run, found: Diagnosis, thresholds: Thresholds) -> list[Panel]:
    """Returns the panels with data, the loss first."""
    drawn = [_loss(run, found, thresholds)]
    drawn += [_column_panel(run, "gradient norm", "before clipping", {"": run.column("grad_norm")})]
    drawn += [_column_panel(run, "evaluation loss", "", {"": run.column("eval_loss")})]
    rates = run.groups.get("lr") or {"": run.column("lr")}
    drawn += [_column_panel(run, "learning rate", "", rates)]
    drawn += [_column_panel(run, "loss scale", "", {"": run.column("loss_scale")})]
    drawn += [_column_panel(run, "weight norm", "by parameter group", run.groups.get("weight_norm", {}))]
    drawn += [
        _column_panel(run, "update ratio", "update / weights, by parameter group", run.groups.get("update_ratio", {}))
    ]
    drawn += [_headroom(run)]
    shown = [panel for panel in drawn if panel.lines]
    for panel in shown:
        _mark(panel, run, found)
    return shown


def _x_axis(run: Run, panel: Panel) -> svg_chart.Axis:
    left, _, right, _ = panel.plot
    first, last = float(run.step[0]), float(run.step[-1])
    return svg_chart.Axis(first, last if last > first else first + 1, left, right)


def _loss(run: Run, found: Diagnosis, thresholds: Thresholds) -> Panel:
    """Draws the loss, with mean and sigma of the window before each step; spikes do not count for them."""
    about = f"line: mean of the {thresholds.spike_window} steps before; "
    about += f"band: up to {thresholds.spike_sigma:g} sigma above"
    panel = Panel("loss", about, 1000, 300)
    loss = Series.from_run(run, "loss")
    _draw(panel, run, {"": run.column("loss")})
    prediction = predict(loss.values, loss.window_rows(thresholds), usual_rows(loss, found))
    known = np.flatnonzero(np.isfinite(prediction.mean))
    known = known[:: max(1, len(known) // svg_chart.POINTS)]
    x_axis, y_axis = _x_axis(run, panel), _y_axis(panel, [run.column("loss")])
    x = x_axis(loss.step[known].astype(np.float64))
    mean, high = (
        y_axis(prediction.mean[known]),
        y_axis(prediction.mean[known] + thresholds.spike_sigma * prediction.sigma[known]),
    )
    shown = np.isfinite(mean) & np.isfinite(high)
    _, top, _, bottom = panel.plot
    panel.mean = svg_chart.line(x[shown], np.clip(mean[shown], top, bottom))
    panel.band = svg_chart.area(x[shown], np.clip(mean[shown], top, bottom), np.clip(high[shown], top, bottom))
    return panel


def usual_rows(loss: Series, found: Diagnosis) -> BoolArray:
    """Returns the rows that represent the level of the loss: those outside of spikes."""
    usual = np.ones(len(loss), dtype=bool)
    for verdict in found.verdicts:
        if verdict.kind == "spike":
            usual &= (loss.step < verdict.first_step) | (loss.step > verdict.last_step)
    return usual


def _column_panel(run: Run, title: str, about: str, columns: dict[str, Column]) -> Panel:
    panel = Panel(title, about, 490, 200)
    _draw(panel, run, columns)
    return panel


def _y_axis(panel: Panel, columns: list[Column]) -> svg_chart.Axis:
    _, top, _, bottom = panel.plot
    values = [column.values[column.given & np.isfinite(column.values)] for column in columns]
    return svg_chart.axis_of(np.concatenate(values) if values else np.empty(0), bottom, top)


def _draw(panel: Panel, run: Run, columns: dict[str, Column]) -> None:
    """Draws the largest curves, and marks where values are not finite."""
    known = {name: column for name, column in columns.items() if column.given.any()}
    if len(known) > MAX_LINES:
        panel.about += f"; {MAX_LINES} of {len(known)}"
        known = dict(sorted(known.items(), key=lambda item: -np.nanmax(item[1].values, initial=0))[:MAX_LINES])
    if not known:
        return
    x_axis, y_axis = _x_axis(run, panel), _y_axis(panel, list(known.values()))
    for i, (name, column) in enumerate(known.items()):
        rows = column.given & np.isfinite(column.values)
        with np.errstate(invalid="ignore"):
            rows &= (column.values > 0) | (not y_axis.logarithmic)
        x, y = svg_chart.downsample(x_axis(run.step[rows].astype(np.float64)), y_axis(column.values[rows]))
        path = svg_chart.line(x, y, gaps=x_axis(run.step[column.bad].astype(np.float64)))
        panel.lines.append(Line("" if [*known] in UNNAMED else name, path, i))
        bad = run.step[column.bad][:MAX_MARKS]
        panel.nonfinite += [
            Mark(float(x_axis(np.array(step))), 0, f"not finite at step {step:,}") for step in bad.tolist()
        ]
    panel.x_ticks, panel.y_ticks = x_axis.ticks(), y_axis.ticks()


def _headroom(run: Run) -> Panel:
    """Draws the largest outputs in percent of the range of their dtype."""
    panel = Panel("headroom", "largest output in % of its dtype's range, by module", 490, 200)
    known = [series for series in run.headroom if series.dtype in RANGES and len(series.step)]
    known = sorted(known, key=lambda series: -float(series.largest[-1]) / RANGES[series.dtype][0])
    if len(known) > MAX_LINES:
        panel.about += f"; {MAX_LINES} of {len(known)}"
    known = known[:MAX_LINES]
    if not known:
        return panel
    shares = [100 * series.largest / RANGES[series.dtype][0] for series in known]
    _, top, _, bottom = panel.plot
    x_axis, y_axis = _x_axis(run, panel), svg_chart.axis_of(np.concatenate(shares), bottom, top)
    for i, (series, share) in enumerate(zip(known, shares, strict=True)):
        rows = np.isfinite(share) & (share > 0)
        x, y = svg_chart.downsample(x_axis(series.step[rows].astype(np.float64)), y_axis(share[rows]))
        panel.lines.append(Line(f"{series.module} ({series.dtype})", svg_chart.line(x, y), i))
    panel.x_ticks, panel.y_ticks = x_axis.ticks(), y_axis.ticks()
    return panel


def _mark(panel: Panel, run: Run, found: Diagnosis) -> None:
    x_axis = _x_axis(run, panel)
    events = [*_skipped(run), *_restarts(run), *_actions(run)][:MAX_MARKS]
    panel.events = [Mark(float(x_axis(np.array(float(step)))), 0, f"{text} at step {step:,}") for step, text in events]
    for number, verdict in enumerate(found.verdicts[:MAX_MARKS], 1):
        if verdict.is_bad:
            first, last = x_axis(np.array([verdict.first_step, verdict.last_step], dtype=np.float64)).tolist()
            title = f"{number}: {display_name(verdict.kind)}, {describe_steps(verdict)}"
            panel.marks.append(Mark(round(first, 1), round(max(1.0, last - first), 1), title))


def _skipped(run: Run) -> list[tuple[int, str]]:
    column = run.column("skipped")
    return [(step, "skipped") for step in run.step[column.given & (column.values != 0)].tolist()]


def _restarts(run: Run) -> list[tuple[int, str]]:
    return [(step, "started again") for step in run.starts[1:] if run.step[0] <= step <= run.step[-1]]


def _actions(run: Run) -> list[tuple[int, str]]:
    """Returns the actions of a step guard, except skipped steps."""
    return [
        (action["step"], str(action["action"]).replace("_", " "))
        for action in run.actions
        if run.step[0] <= action["step"] <= run.step[-1]
    ]
