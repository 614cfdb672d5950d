"""A run with a NaN in its log is never called healthy, whatever the log looks like; a healthy one is."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from tests.support.forked_python import run_forked_command
from torchnan.diagnosis import RunError, diagnose, read
from torchnan.training.diagnosis.readers.encoded import to_float

STEPS = 600
BAD = 500  # the first step whose loss is not finite


def loss(step):
    return 2 / (1 + step / 100) + 0.01 * ((step * 7919) % 13)


def values(bad, nan="nan", scale=1):
    return [(i * scale, nan if bad and i >= BAD else loss(i)) for i in range(STEPS)]


def table(rows, header="step,loss", separator=","):
    lines = (separator.join(map(str, row)) for row in rows)
    return f"{header}\n" + "".join(f"{line}\n" for line in lines)


def json_lines(rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def plain(bad):
    return table(values(bad))


def objects(bad):
    return json_lines({"step": i, "loss": "NaN" if x == "nan" else x} for i, x in values(bad))


def ranks(bad):
    return [(i, r, "NaN" if bad and r == 0 and i >= BAD else loss(i)) for i in range(STEPS) for r in (0, 1)]


def german(bad, steps=str):
    return table(((steps(i), str(x).replace(".", ",")) for i, x in values(bad, scale=10)), "step;loss", ";")


LOGS = {
    "ranks_in_a_column": lambda bad: json_lines({"step": i, "rank": r, "loss": x} for i, r, x in ranks(bad)),
    "ranks_without_a_column": lambda bad: json_lines({"step": i, "loss": x} for i, r, x in ranks(bad)),
    "ranks_of_which_one_lags": lambda bad: json_lines({"step": i + 3 * r, "loss": x} for i, r, x in ranks(bad)),
    "ranks_in_a_table": lambda bad: table(((r, i, x) for i, r, x in ranks(bad)), "rank,step,loss"),
    "ranks_in_a_table_without_a_column": lambda bad: table((i, x) for i, r, x in ranks(bad)),
    "ranks_of_torchrun": lambda bad: "".join(f"[rank{r}]: step {i} loss {x}\n" for i, r, x in ranks(bad)),
    "ranks_that_print": lambda bad: "".join(f"step {i} loss {x}\n" for i, r, x in ranks(bad)),
    "thousands": lambda bad: table((f'"{i:,}"', x) for i, x in values(bad, scale=10)),
    "decimal_commas": german,
    "decimal_commas_and_thousands": lambda bad: german(bad, lambda step: f"{step:,}"),
    "utf_16": lambda bad: plain(bad).encode("utf-16"),
    "utf_16_without_mark": lambda bad: plain(bad).encode("utf-16-le"),
    "utf_16_big_endian": lambda bad: objects(bad).encode("utf-16-be"),
    "utf_32": lambda bad: objects(bad).encode("utf-32"),
    "utf_16_text": lambda bad: "".join(f"step {i} loss {x}\n" for i, x in values(bad)).encode("utf-16"),
    "utf_16_document": lambda bad: json.dumps([{"step": i, "loss": x} for i, x in values(bad)]).encode("utf-16"),
    "utf_8_with_mark": lambda bad: objects(bad).encode("utf-8-sig"),
    "gzip": lambda bad: gzip.compress(objects(bad).encode()),
    "runs_of_wandb": lambda bad: table(((i, loss(i), x) for i, x in values(bad)), '"Step","a - loss","b - loss"'),
    "runs_of_wandb_in_rows": lambda bad: table(
        (row for i, x in values(bad) for row in ((i, loss(i), ""), (i, "", x))), '"Step","a - loss","b - loss"'
    ),
    "damaged_first_row": lambda bad: plain(bad).replace("\n", "\n@#\n", 1),
    "damaged_first_object": lambda bad: 'ep": 0, "loss": 2.3}\n' + objects(bad),
    "progress_bar_in_one_line": lambda bad: "".join(f"\r{i}/600 [loss={x} {'x' * 200}]" for i, x in values(bad)),
}  # fmt: skip


def diagnosed(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    run = read(path)
    return run, diagnose(run)


@pytest.mark.parametrize("log", LOGS)
def test_a_nan_is_found_and_a_healthy_run_is_healthy(log, tmp_path):
    run, found = diagnosed(tmp_path, LOGS[log](True))
    assert found.verdicts[0].kind == "nonfinite", (found.verdicts, run.notes)
    run, found = diagnosed(tmp_path, LOGS[log](False))
    assert [verdict.kind for verdict in found.verdicts] == ["healthy"], (found.verdicts, run.notes)


SPELLINGS = ["NAN", "-nan", "-nan(ind)", "nan(0x7)", "1.#QNAN", "-1.#IND", "1.#INF", "+Inf", "-Infinity", "∞", "qNaN"]


@pytest.mark.parametrize("nan", SPELLINGS)
def test_a_nan_is_found_however_it_is_written(nan, tmp_path):
    assert not np.isfinite(to_float(nan))
    for content in (
        table(values(True, nan)),
        json_lines({"step": i, "loss": x} for i, x in values(True, nan)),
        "".join(f"step {i} loss {x}\n" for i, x in values(True, nan if nan != "qNaN" else "nan")),
    ):
        assert diagnosed(tmp_path, content)[1].verdicts[0].kind == "nonfinite"


@pytest.mark.parametrize(
    ("text", "number"),
    [("1,000", 1000), ("-1,234,567.5", -1234567.5), ("1'000", 1000), ("1 000", 1000), ("1\u202f000,5", 1000.5),
     (" '2.5' ", 2.5), ("1,000e3", 1e6)],
)  # fmt: skip
def test_numbers_in_groups_are_read(text, number):
    assert to_float(text) == number


@pytest.mark.parametrize("text", ["1,00", "1,0000", "#NUM!", "1,000,00", "nano", "", "1 2"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="could not convert"):
        to_float(text)


def blank(with_accuracy):
    rows = [(i, "" if 300 <= i < 320 else x, *([0.5] if with_accuracy else [])) for i, x in values(False)]
    return table(rows, "step,loss,accuracy" if with_accuracy else "step,loss")


def cut_lines(log):
    return "".join(f"{line[: -4 if i % 7 == 0 else None]}\n" for i, line in enumerate(log.splitlines()))


PARTLY_READ = {
    "null": lambda: json_lines({"step": i, "loss": None if 300 <= i < 320 else x} for i, x in values(False)),
    "nothing": lambda: blank(False),
    "nothing_beside_an_accuracy": lambda: blank(True),
    "rows_of_other_lengths": lambda: plain(False).replace("\n1", "\n1,1"),
    "cut_lines": lambda: cut_lines(objects(False)),
    "cut_within_a_nan": lambda: objects(False) + '{"step": 600, "loss": Na',
    "one_damaged_line_with_a_nan": lambda: objects(False) + '{"step": 600, "loss": "NaN", \n',
    "went_back_after_a_nan": lambda: objects(True) + json_lines({"step": i, "loss": loss(i)} for i in range(400, 900)),
    "two_files_in_one": lambda: objects(True) + objects(False),
    "another_loss": lambda: json_lines({"step": i, "loss": loss(i), "kl_loss": x} for i, x in values(True, "NaN")),
    "another_loss_in_a_table": lambda: table(((i, loss(i), x) for i, x in values(True)), "step,loss,Loss"),
    "the_learning_rate": lambda: table(((i, loss(i), x) for i, x in values(True)), "step,loss,lr"),
    "a_norm_of_weights": lambda: table(((i, loss(i), x) for i, x in values(True)), "step,loss,weight_norm"),
    "an_evaluation": lambda: table(((i, x, "nan" if i == 300 else x) for i, x in values(False)), "step,loss,val_loss"),
    "one_row": lambda: "step,loss\n0,2.5\n",
    "steps_that_are_no_numbers": lambda: "step,loss\nx,nan\n" + plain(False).partition("\n")[2],
    "a_list_of_losses": lambda: objects(False) + '{"step": 600, "loss": [1.0, NaN]}\n',
}  # fmt: skip


@pytest.mark.parametrize("log", PARTLY_READ)
def test_a_run_that_is_read_in_part_is_not_called_healthy(log, tmp_path):
    run, found = diagnosed(tmp_path, PARTLY_READ[log]())
    assert found.verdicts[0].kind == "undetermined", (found.verdicts, run.notes)
    ended = run_forked_command("diagnose", "log", cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout.startswith("torchnan: no instability found in what could be read: ")


def test_another_verdict_does_not_hide_that_rows_are_left_out(tmp_path):
    content = table(values(True)) + "1,2,3\n" * 100
    assert [v.kind for v in diagnosed(tmp_path, content)[1].verdicts] == ["nonfinite", "undetermined"]
    assert run_forked_command("diagnose", "log", cwd=tmp_path).returncode == 1
    assert run_forked_command("diagnose", "log", "--fail-on", "spike", cwd=tmp_path).returncode == 2


def test_the_part_that_is_worst_is_shown(tmp_path):
    run, found = diagnosed(tmp_path, LOGS["ranks_in_a_column"](True))
    assert list(run.parts) == ["rank 0", "rank 1"]
    assert (found.part, found.verdicts[0].evidence["part"], found.verdicts[0].first_step) == ("rank 0", "rank 0", BAD)
    ended = run_forked_command("diagnose", "log", cwd=tmp_path)
    assert ended.returncode == 1
    assert "log (rank 0): steps 0 to 599, 600 rows" in ended.stdout


@pytest.mark.parametrize("path", [".", "run.jsonl"])
def test_the_logs_of_all_ranks_of_a_monitor_are_read(path, tmp_path):
    (tmp_path / "run.jsonl").write_text(objects(False))
    (tmp_path / "run.rank-1.jsonl").write_text(objects(True))
    (tmp_path / "run.rank-2.jsonl").write_text("")  # has not begun
    run = read(tmp_path / path)
    found = diagnose(run)
    assert list(run.parts) == ["rank 0", "rank 1"]
    assert (found.part, found.verdicts[0].kind) == ("rank 1", "nonfinite")
    (tmp_path / "run.rank-1.jsonl").write_text(objects(False))
    assert [verdict.kind for verdict in diagnose(read(tmp_path / path)).verdicts] == ["healthy"]


def events(tmp_path, *runs):
    """A folder with an event file of each run, ``(first step, bad steps)``."""
    from torch.utils.tensorboard import SummaryWriter

    for first, bad in runs:
        with SummaryWriter(str(tmp_path / "events"), filename_suffix=str(first)) as writer:
            for step in range(first, STEPS):
                writer.add_scalar("train/loss", float("nan") if step in bad else loss(step), step)
                if step % 100 == 50:
                    writer.add_scalar("val/loss", loss(step), step)
    return read(tmp_path / "events")


def test_what_tensorboard_wrote_before_a_restart_is_read(tmp_path):
    run = events(tmp_path, (0, range(500, 600)), (450, ()))
    assert run.step.tolist() == list(range(STEPS))
    assert run.column("loss").values[560] == pytest.approx(loss(560))
    assert diagnose(run).verdicts[0].kind == "undetermined"


def test_a_healthy_restart_of_tensorboard_is_healthy(tmp_path):
    run = events(tmp_path, (0, ()), (450, ()))
    assert (len(run), run.column("eval_loss").given.sum()) == (STEPS, 6)
    assert [verdict.kind for verdict in diagnose(run).verdicts] == ["healthy"]


@pytest.mark.parametrize(("bad", "kind"), [(range(300, 320), "undetermined"), ((), "healthy")])
def test_what_mlflow_wrote_before_a_restart_is_read(bad, kind, tmp_path):
    metrics = tmp_path / "run" / "metrics"
    metrics.mkdir(parents=True)
    (metrics.parent / "meta.yaml").write_text("run_id: abc\n")
    steps = [*range(320), *range(250, STEPS)]
    losses = ["nan" if i < 320 and step in bad else loss(step) for i, step in enumerate(steps)]
    lines = (f"1700000000000 {x} {step}\n" for x, step in zip(losses, steps, strict=True))
    (metrics / "loss").write_text("".join(lines))
    run = read(tmp_path / "run")
    assert run.step.tolist() == list(range(STEPS))
    assert diagnose(run).verdicts[0].kind == kind


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(objects(True).encode())[:-50], "is a damaged gzip file"),
        ("#!x\x01@@\n" + plain(True), "no line of it has a number with a name"),
        ("st\x01p,lo\n" + plain(True), "has no loss"),
        ("\x00\x01\n" + objects(True), "is a binary file of an unknown kind"),
    ],
)
def test_a_log_that_cannot_be_read_is_an_error(content, said, tmp_path):
    with pytest.raises(RunError, match=said):
        diagnosed(tmp_path, content)
