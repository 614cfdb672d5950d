"""Runs are read from the logs of Monitor, tables, event files and trainer states, in whatever state these are."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from tests.support.synthetic_runs import training, with_scaler
from torchnan.diagnosis import Run, RunError, diagnose, read
from torchnan.training.diagnosis.readers import monitor_log

HEADER = {"torchnan": "run", "version": 1, "started": "2026-11-22T09:00:00Z", "dtype": "float16", "groups": ["a", "b"]}


def rows(count=5, **more):
    return [{"step": i, "loss": 3.0 - i / 10, "grad_norm": 1.0 + i, **more} for i in range(count)]


def log(tmp_path, *lines, name="run.jsonl", end="\n"):
    path = tmp_path / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return path


def losses(run: Run):
    return dict(zip(run.step.tolist(), run.columns["loss"].values.tolist(), strict=True))


# -- the log of Monitor


def test_every_column_of_a_monitors_log(tmp_path):
    row = {"step": 7, "loss": 2.5, "grad_norm": "Infinity", "lr": [0.1, 0.2], "loss_scale": 1024.0, "skipped": True}
    row |= {"weight_norm": [3.0, None], "update_ratio": [1e-3, 2e-3], "batch_digest": "00000000000000ff"}
    row |= {"headroom": {"mlp": ["float16", 2000.0]}}
    finding = {"finding": {"op": "aten::log"}, "step": 7}
    rerun = {"rerun": {"step": 7, "dtype": "float32", "finite": True}}
    run = read(log(tmp_path, HEADER, {"step": 6, "loss": "NaN"}, row, finding, rerun, {"verdict": {}, "step": 7}))
    assert (run.step.tolist(), run.dtype, run.starts) == ([6, 7], "float16", [6])
    assert run.columns["loss"].bad.tolist() == [True, False]
    assert run.columns["grad_norm"].values[1] == np.inf
    assert run.columns["grad_norm"].given.tolist() == [False, True]
    assert (run.columns["lr"].values[1], run.columns["loss_scale"].values[1], run.columns["skipped"].values[1]) == (
        0.2,
        1024,
        1,
    )
    assert list(run.groups["lr"]) == list(run.groups["weight_norm"]) == ["a", "b"]
    assert run.groups["weight_norm"]["b"].given.tolist() == [False, False]
    assert (run.batch_digest.values[1], run.batch_digest.given.tolist()) == (255, [False, True])
    assert [(h.module, h.dtype, h.step.tolist(), h.largest.tolist()) for h in run.headroom] == [
        ("mlp", "float16", [7], [2000])
    ]
    assert run.findings == [{"step": 7, "finding": {"op": "aten::log"}}]
    assert run.reruns == [{"step": 7, "dtype": "float32", "finite": True}]
    assert run.notes == []


def test_parts_of_a_rotated_log_are_read_from_the_oldest_on(tmp_path):
    everything = rows(30)
    log(tmp_path, HEADER, *everything[:10], name="run.jsonl.2")
    log(tmp_path, {**HEADER, "continued": True}, *everything[10:20], name="run.jsonl.1")
    path = log(tmp_path, {**HEADER, "continued": True}, *everything[20:])
    (tmp_path / "run.jsonl.bak").write_text("not a part")
    run = read(path)
    assert (run.step.tolist(), run.starts, run.notes) == (list(range(30)), [0], [])


def test_after_a_restart_the_later_rows_hold(tmp_path):
    again = [{**row, "loss": -row["loss"]} for row in rows(8)[3:]]
    run = read(log(tmp_path, HEADER, *rows(6), HEADER, *again))
    assert run.step.tolist() == list(range(8))
    assert [losses(run)[step] < 0 for step in range(8)] == [False] * 3 + [True] * 5
    assert run.starts == [0, 3]
    assert run.notes == ["The run went back once: 3 rows that were written again are left out."]


def test_a_file_in_no_order_is_sorted(tmp_path):
    everything = rows(50)
    run = read(log(tmp_path, *[everything[i] for i in np.random.default_rng(0).permutation(50)]))
    assert run.step.tolist() == list(range(50))
    assert run.notes[0].startswith("The rows are unordered (")


def test_a_cut_last_line_is_ignored_and_reported(tmp_path):
    run = read(log(tmp_path, HEADER, *rows(5), '{"step": 5, "lo', end=""))
    assert len(run) == 5
    assert run.notes == ["1 line is not a JSON object: the last line of run.jsonl is incomplete."]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"step": 5, "loss": 1e400}', "line 7: number is infinity"),
        ("[" * 100_000, "line 7: "),
        ('{"step": 5, "loss":' + " " * 2**21 + "1}", "line 7: "),
        ("\x00\x01\x02", "line 7: "),
        ('{"step": 5, "loss": 1},{"step": 5, "loss": 2}', "line 7: "),
        ('{"step": 5, "loss": [{"a": 1}', "line 7: "),
        ("42", "a int where an object should be"),
        ('{"step": null, "loss": 1}', "1 rows have no step"),
        ('{"step": 5.5, "loss": 1}', "1 rows have no step"),
        ('{"step": 1e300, "loss": 1}', "1 rows have no step"),
        ('{"step": "x", "loss": 1}', "step: 1 values are not numbers, such as 'x'"),
        ('{"step": 5, "loss": {"a": 1}, "grad_norm": 2}', "loss: 1 values are not numbers"),
    ],
)
def test_a_damaged_line_costs_that_line_alone(tmp_path, line, said):
    run = read(log(tmp_path, HEADER, *rows(5), line, *[{"step": i, "loss": 1.0} for i in range(6, 9)]))
    assert set(run.step.tolist()) - {5} == {0, 1, 2, 3, 4, 6, 7, 8}
    assert any(said in note for note in run.notes), run.notes


def test_pythons_own_nan_and_infinity_are_read(tmp_path):
    run = read(log(tmp_path, '{"step": 1, "loss": NaN}', '{"step": 2, "loss": -Infinity}'))
    assert run.columns["loss"].bad.tolist() == [True, True]


@pytest.mark.parametrize("seed", range(30))
def test_any_damaged_log_gives_a_verdict_or_a_clear_error(tmp_path, seed):
    rng = np.random.default_rng(seed)
    made = with_scaler(training(seed, steps=200), overflow_at=[50])
    lines = [json.dumps(HEADER)] + [
        json.dumps({"step": i, "loss": made["loss"][i], "lr": [0.1, 0.2]}) for i in range(200)
    ]
    raw = bytearray("\n".join(lines).encode())
    for _ in range(int(rng.integers(1, 200))):
        begin = int(rng.integers(len(raw)))
        raw[begin : begin + int(rng.integers(1, 50))] = rng.bytes(int(rng.integers(0, 50)))
    path = tmp_path / "run.jsonl"
    path.write_bytes(raw)
    try:
        run = read(path)
    except RunError as error:
        said = str(error)
        assert "formats can be read" in said or "is not a log" in said or "names no column" in said
        return
    assert (np.diff(run.step) > 0).all()
    assert diagnose(run).verdicts


def test_lines_are_read_across_the_ends_of_blocks(tmp_path, monkeypatch):
    path = log(tmp_path, HEADER, *rows(100))
    whole = losses(read(path))
    monkeypatch.setattr(monitor_log, "BLOCK", 37)
    assert losses(read(path)) == whole


# -- tables


def table(tmp_path, text, name="run.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_csv_with_every_column(tmp_path):
    run = read(
        table(
            tmp_path,
            "step,loss,grad_norm,lr,loss_scale,weight_norm,batch_digest\n"
            "1,2.5,inf,1e-3,65536,10.5,abc\n2,nan,,1e-3,65536,10.6,\n3,2.4,1.5,1e-3,65536,10.7,abc\n",
        )
    )
    assert run.step.tolist() == [1, 2, 3]
    assert run.columns["loss"].bad.tolist() == [False, True, False]
    assert run.columns["grad_norm"].given.tolist() == [True, False, True]
    assert run.groups["weight_norm"]["all"].values.tolist() == [10.5, 10.6, 10.7]
    assert run.batch_digest.values[0] == run.batch_digest.values[2]
    assert run.batch_digest.given.tolist() == [True, False, True]
    assert (run.dtype, run.notes) == (None, [])


@pytest.mark.parametrize(
    "text",
    [
        "loss\n3\n2\n1\n",
        "global_step;train/loss\n0;3\n1;2\n2;1\n",
        "Step\tTraining_Loss\tother\n0\t3\tx\n1\t2\ty\n2\t1\tz\n",
        "\ufeffstep, loss\r\n0, 3\r\n1, 2\r\n2, 1\r\n",
        '"step","loss"\n0,"3"\n1,"2"\n2,"1"\n',
    ],
)
def test_tables_of_others(tmp_path, text):
    assert losses(read(table(tmp_path, text))) == {0: 3.0, 1: 2.0, 2: 1.0}


def test_rows_that_are_none_are_reported(tmp_path):
    run = read(table(tmp_path, f"step,loss\n0,3\n1,2,9\n2\n3,{'9' * 200_000}\n4,x\n5,1\n"))
    assert losses(run)[5] == 1.0
    assert any("3 lines are not rows: field larger" in note for note in run.notes), run.notes
    assert any("loss: 1 values are not numbers, such as 'x'" in note for note in run.notes)


def test_weight_norms_of_groups(tmp_path):
    run = read(table(tmp_path, "step,weight_norm/Decay,weight_norm/bias\n0,1,2\n1,3,4\n"))
    assert {name: column.values.tolist() for name, column in run.groups["weight_norm"].items()} == {
        "Decay": [1, 3],
        "bias": [2, 4],
    }


# -- the others


def test_trainer_state(tmp_path):
    history = [
        {"epoch": i / 10, "grad_norm": 1.0, "learning_rate": 1e-3, "loss": 3 - i / 10, "step": i * 10} for i in range(9)
    ]
    history.insert(5, {"eval_loss": 1.0, "eval_runtime": 2, "step": 40})
    history.append({"train_loss": 2.2, "train_runtime": 9, "step": 80})
    history[3]["loss"] = float("nan")
    folder = tmp_path / "checkpoint-80"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 80, "log_history": history}))
    for path in (folder / "trainer_state.json", folder, tmp_path):
        run = read(path)
        assert run.step.tolist() == list(range(0, 90, 10))
        assert run.columns["lr"].values[0] == 1e-3
        assert run.columns["loss"].bad.sum() == 1
        assert run.notes == ["2 entries are not of the training, but of evaluations or its end."]


def test_event_files(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "events")) as writer:
        for step in range(20):
            writer.add_scalar("train/loss", 3 - step / 10, step)
            if step % 5 == 0:
                writer.add_scalar("weight_norm/decay", 10 + step, step)
                writer.add_scalar("eval/accuracy", 0.5, step)
    folder = tmp_path / "events"
    for path in (folder, next(folder.iterdir())):
        run = read(path)
        assert losses(run)[10] == pytest.approx(2.0)
        assert run.groups["weight_norm"]["decay"].given.sum() == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is a binary file of an unknown kind"),
        (b"a,b\n1,2\n", "has no loss. Its other numbers are a, b. --column loss=NAME says which number is the loss."),
        (b"{]\n", "none of its 1 lines is a JSON object"),
        (b'{"torchnan": "run"}\n', "has no steps"),
        (b'{"finding": {}, "step": 3}\n', "has no steps"),
        (b"step,loss\n", "has no steps"),
        (b"step,loss\n,\n", "has no steps"),
        (b'import torch; print("ran")\n', "has no steps"),
    ],
)
def test_a_file_that_is_not_a_run_is_rejected_with_a_message(tmp_path, content, said):
    path = tmp_path / "it"
    path.write_bytes(content)
    with pytest.raises(RunError) as refused:
        read(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_foreign_json_is_refused_in_words(tmp_path):
    for text, said in (("{}", "no list named log_history"), ("[" * 100_000, "is not JSON"), ("[1]", "no list named")):
        with pytest.raises(RunError, match=said):
            read(table(tmp_path, text, "package.json"))


def test_a_path_that_is_not_a_file_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.csv")
    with pytest.raises(RunError, match="there is no run in the folder"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="is neither a regular file nor a folder"):
        read(tmp_path / "pipe")


def test_hostile_names_do_nothing_to_a_message(tmp_path):
    path = tmp_path / "\x1b[31mred\nlines.csv"
    path.write_text("\x1b[2J,b\n1,2\n")
    with pytest.raises(RunError) as refused:
        read(path)
    assert str(refused.value).isprintable()


# -- whose log it is, and names of others


def test_an_export_of_weights_and_biases_is_read(tmp_path):
    path = tmp_path / "wandb.csv"
    names = '"Step","run-7 - train/loss","run-7 - train/loss__MIN","run-7 - train/loss__MAX"'
    path.write_text(f"{names}\n" + "".join(f"{i},{3 - i / 10},0,9\n" for i in range(4)))
    assert losses(read(path)) == {0: 3.0, 1: 2.9, 2: 2.8, 3: 2.7}


def test_the_user_may_name_a_column(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("when,loss,objective\n5,1,2\n6,1,3\n")
    assert losses(read(path, {"loss": "objective", "step": "when"})) == {5: 2.0, 6: 3.0}
    lines = log(tmp_path, {"step": 1, "objective": 2.0}, {"step": 2, "objective": 3.0})
    assert losses(read(lines, {"loss": "objective"})) == {1: 2.0, 2: 3.0}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ('{"schema":1,"level":"error","kind":"nan"}', "a log of findings"),
        ('{"time": 1.5, "kind": "step", "step": 3}', "the log of a StepGuard"),
    ],
)
def test_other_logs_are_sent_to_their_command(tmp_path, line, kind):
    path = log(tmp_path, line)
    with pytest.raises(RunError, match=f"is {kind}, not of a run: use `torchnan show "):
        read(path)


def test_actions_of_a_guard_are_read(tmp_path):
    run = read(log(tmp_path, HEADER, *rows(), {"guard_action": "rollback", "step": 3}))
    assert run.actions == [{"step": 3, "action": "rollback"}]
