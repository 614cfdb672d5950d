"""Logs as other programs write them are read correctly: healthy, or with a loss that is NaN to the end."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from torchnan.diagnosis import RunError, diagnose, read
from torchnan.training.diagnosis.reports import terminal

STEPS = 200
BAD = 120  # the first step whose loss is NaN


def curve(bad=BAD, steps=STEPS):
    rng = np.random.default_rng(0)
    loss = 3 + 2 * np.exp(-np.arange(steps) / 60) + rng.normal(size=steps) * 0.02
    if bad is not None:
        loss[bad:] = np.nan
    return loss.tolist()


def nanogpt(i, x):
    head = ["number of parameters: 10.65M", "learning_rate = 0.001"] if i == 0 else []
    evaluation = [f"step {i}: train loss {x + 0.1:.4f}, val loss {x + 0.2:.4f}"] if i % 50 == 0 else []
    return [*head, *evaluation, f"iter {i}: loss {x:.4f}, time 40.90ms, mfu 12.10%"]


def transformers(i, x):
    bar = f"  {i / 2:.0f}%|▏         | {i}/200 [00:10<16:30,  1.01it/s]\r"
    row = {"loss": round(x, 4), "grad_norm": 1.5, "learning_rate": 2e-05, "epoch": round(i / 100, 2)}
    lines = [bar + str(row)]
    if i % 50 == 49:
        lines.append(str({"eval_loss": round(x + 0.1, 4), "eval_runtime": 2.5, "epoch": round(i / 100, 2)}))
    if i == STEPS - 1:
        lines.append(str({"train_runtime": 99.1, "train_loss": 9.99, "epoch": 2.0}))
    return lines


def transformers_5(i, x):
    return [str({"loss": f"{x:.4g}", "grad_norm": "1.5", "learning_rate": "2e-05", "epoch": f"{i / 100:.4g}"})]


def torchtune(i, x):
    return [f"Step {i + 1} | loss:{x} lr:2e-05 tokens_per_second_per_gpu:1234.5 "]


def torchtune_single(i, x):
    return [f"Step {i + 1} | loss:{x}", f"Step {i + 1} | lr:2e-05"]


def megatron(i, x):
    # A NaN is left out of the mean, and counted.
    bad = math.isnan(x)
    loss = "" if bad else f" lm loss: {x:.6E} |"
    return [
        f" [2024-08-01 09:44:55] iteration {i + 1:8d}/     200 | consumed samples: {64 * i:12d} | elapsed time per "
        f"iteration (ms): 500.0 | learning rate: 1.500000E-04 | global batch size:    64 |{loss} loss scale: 1.0 | "
        f"grad norm: 1.200 | number of skipped iterations:   0 | number of nan iterations: {int(bad):3d} |"
    ] + (
        [f" validation loss at iteration {i + 1} | lm loss value: {x:.6E} | lm loss PPL: 9.9E+00 | "] if i == 99 else []
    )


def deepspeed_pipeline(i, x):
    return [f"steps: {i} loss: {x:.4f} iter time (s): 1.234 samples/sec: 10.000"]


def deepspeed_cifar(i, x):
    return [f"[{1 + i // 100},  {20 * (i % 100) + 20:4d}] loss: {x:.3f}"]


def fairseq(i, x):
    stamp = "2021-03-08 12:33:12 | INFO |"
    inner = f"{stamp} train_inner | epoch 00{1 + i // 100}:  {i % 100 + 1:5d} / 100 loss={x:.3f}, ppl=9.2, wps=288.7, "
    inner += f"ups=0.5, wpb=16384, bsz=8, num_updates={i + 1}, lr=4e-05, gnorm=19.777, train_wall=57, wall=161"
    lines = [inner]
    if i % 100 == 99:
        lines.append(
            f"{stamp} valid | epoch 001 | valid on 'valid' subset | loss {x + 0.1:.3f} | ppl 9 | num_updates {i + 1}"
        )
        lines.append(f"{stamp} train | epoch 001 | loss 9.999 | ppl 10 | num_updates {i + 1} | lr 4e-05 | gnorm 2.3")
    return lines


def fairseq_json(i, x):
    row = {"epoch": 1, "update": i / 100, "loss": f"{x:.3f}", "num_updates": str(i + 1), "lr": "4e-05", "gnorm": "1.7"}
    return [f"2021-03-08 12:33:12 | INFO | train_inner | {json.dumps(row)}"]


def espnet(i, x):
    stamp = "[host01] 2023-01-01 12:00:00,123 (trainer:{{}}) "
    numbers = f"iter_time=1.2e-04, forward_time=0.113, loss_ctc=60.1, loss_att=40.2, acc=0.5, loss={x:.3f}, "
    numbers += "backward_time=0.2, grad_norm=12.3, clip=100.000, loss_scale=1.000, optim0_lr0=1.000e-05, train_time=0.5"
    lines = [f"{stamp.format(755)}INFO: {1 + i // 100}epoch:train:{i % 100}01-{i % 100 + 1}00batch: {numbers}"]
    if math.isnan(x):
        lines.insert(0, f"{stamp.format(663)}WARNING: The grad norm is nan. Skipping updating the model.")
    if i % 100 == 99:
        results = f"iter_time=1e-4, loss=9.999, grad_norm=12.3, [valid] loss_ctc=50.1, acc=0.6, loss={x + 0.1:.3f}"
        lines.append(f"{stamp.format(338)}INFO: 1epoch results: [train] {results}")
    return lines


def detectron2(i, x):
    return [
        f"[01/01 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: {20 * i + 19}  total_loss: {x:.3f}  loss_cls: 0.3  "
        "loss_box_reg: 0.2  time: 0.3  data_time: 0.01  lr: 0.0025  max_mem: 100M"
    ]


def mmengine(i, x):
    return [
        f"2023/01/01 10:00:00 - mmengine - INFO - Epoch(train) [{1 + i // 100}][{i % 100 + 1:4d}/100]  lr: 1.0e-02  "
        "eta: 1:00:00  "
        f"time: 0.3  data_time: 0.01  memory: 3000  grad_norm: 3.21  loss: {x:.4f}  loss_cls: 0.3"
    ]


def timm(i, x):
    return [
        f"Train: {i // 100} [{i % 100:4d}/100 ({i % 100:3.0f}%)]  Loss: {x:.3g} ({x:.3g})  Time: 1.234s  LR: 1.0e-05"
    ]


def imagenet_example(i, x):
    return [
        f"Epoch: [{i // 100}][{i % 100:4d}/100]\tTime  0.300 ( 0.500)\tLoss {x:.4e} ({x:.4e})\tAcc@1  10.00 ( 9.50)"
    ]


def mnist_example(i, x):
    lines = [f"Train Epoch: {1 + i // 100} [{64 * (i % 100)}/6400 ({i % 100}%)]\tLoss: {x:.6f}"]
    return (
        [*lines, f"\nTest set: Average loss: {x + 0.1:.4f}, Accuracy: 9000/10000 (90%)\n"] if i % 100 == 99 else lines
    )


def torchtitan(i, x):
    colours = (
        f"\x1b[31mstep: {i + 1:2d}  \x1b[32mloss: {x:7.4f}  \x1b[39mgrad_norm:  4.1  \x1b[33mmemory:  1.23GiB(1.30%)"
    )
    return [f"\x1b[34m[rank0]:[titan] 2024-10-01 10:00:00,000 - root - INFO - {colours}  \x1b[34mtps: 1,234\x1b[39m"]


def llm_c(i, x):
    return [
        f"step {i + 1:4d}/200 | loss {x:7.6f} (+1.23z)| norm 1.2345 (-0.5z)| lr 6.00e-04 | 123.45 ms | 50.0% bf16 MFU"
    ]


def modded_nanogpt(i, x):
    return [f"step:{i}/200 train_loss:{x:.4f} train_time:123ms step_avg:45.67ms"]


def lightning_bar(i, x):
    return [
        f"\rEpoch {i // 100}:  10%|█         | {i % 100 + 1}/100 [00:10<01:00,  1.00it/s, v_num=0, train_loss={x:.3f}]"
    ]


def keras_verbose(i, x):
    head = f"Epoch {i + 1}/200"
    return [
        head,
        f"100/100 [===============] - 1s 10ms/step - loss: {x:.4f} - accuracy: 0.5 - val_loss: {x + 0.1:.4f}",
    ]


def stable_baselines(i, x):
    return [
        "-" * 30,
        "| train/        |           |",
        f"|    iterations | {i:<9} |",
        f"|    loss       | {x:<9.4g} |",
        "-" * 30,
    ]


def printed(i, x):
    return [f"epoch={i // 10} step={i} train_loss={x}"]


def printed_tensor(i, x):
    return [f"step {i} loss: tensor({x:.4f}, grad_fn=<MeanBackward0>)"]


TEXTS = [
    *(
        nanogpt,
        transformers,
        transformers_5,
        torchtune,
        torchtune_single,
        megatron,
        deepspeed_pipeline,
        deepspeed_cifar,
    ),
    *(fairseq, fairseq_json, espnet, detectron2, mmengine, timm, imagenet_example, mnist_example, torchtitan, llm_c),
    *(modded_nanogpt, lightning_bar, keras_verbose, stable_baselines, printed, printed_tensor),
]


def written(tmp_path, form, bad=BAD, name="train.out"):
    path = tmp_path / name
    path.write_text("\n".join(line for i, x in enumerate(curve(bad)) for line in form(i, x)) + "\n")
    return path


@pytest.mark.parametrize("form", TEXTS)
def test_printed_output_is_read(form, tmp_path):
    run = read(written(tmp_path, form))
    verdict = diagnose(run).verdicts[0]
    assert verdict.kind == "nonfinite", (verdict, run.notes)
    assert len(run) == STEPS, run.notes
    bad = np.flatnonzero(run.column("loss").bad)
    assert (int(bad[0]), len(bad)) == (BAD, STEPS - BAD)


@pytest.mark.parametrize("form", TEXTS)
def test_printed_output_of_a_healthy_program_is_healthy(form, tmp_path):
    run = read(written(tmp_path, form, bad=None))
    found = diagnose(run)
    assert [verdict.kind for verdict in found.verdicts] == ["healthy"], (found.verdicts, run.notes)
    loss = run.column("loss").values
    assert np.abs(loss - curve(None)).max() < 0.06, run.notes
    assert len(run) == STEPS


def test_names_and_evaluations_are_distinguished(tmp_path):
    run = read(written(tmp_path, fairseq, bad=None))
    assert run.step.tolist() == list(range(1, STEPS + 1))
    assert run.column("eval_loss").given.sum() == 2
    assert run.column("grad_norm").values[0] == 19.777
    assert run.column("lr").values[5] == 4e-5
    assert run.notes == ["2 lines with a loss are written in another way: summaries, left out."]


@pytest.mark.timeout(300)  # with a search that goes on from each letter, one of these lines takes hours
@pytest.mark.parametrize(
    "piece",
    ["A", "A1", "a-", "é", "_", " ", "a ", "| ", "1_", "(a)", "[", "train a 1 ", "loss ", "loss is a ", "iter ="],
)
@pytest.mark.parametrize("begin", ["", "noted: ", "| "])
def test_no_line_takes_more_than_time_in_proportion_to_its_length(begin, piece, tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(f"step 1 loss 2.5\n{begin}{piece * 2**16}\nstep 2 loss 1.5\n")
    assert {2.5, 1.5} <= set(read(path).column("loss").values.tolist())


def test_the_summary_at_the_end_of_a_trainer_is_not_a_step(tmp_path):
    run = read(written(tmp_path, transformers, bad=None))
    assert 9.99 not in run.column("loss").values
    assert run.column("eval_loss").given.sum() == 4


# -- scalers

OVERFLOW = (
    "[2023-10-31 07:15:50,880] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
)


def test_overflows_that_deepspeed_prints_are_a_collapse_of_the_scale(tmp_path):
    lines, scale = [], 2.0**16
    for i, x in enumerate(curve(None)):
        if i >= BAD:
            lines.append(f"{OVERFLOW}Attempted loss scale: {scale:g}, reducing to {scale / 2:g}")
            scale /= 2
        lines.append(f"step {i} loss {x:.4f}")
    (tmp_path / "log").write_text("\n".join(lines))
    run = read(tmp_path / "log")
    verdict = diagnose(run).verdicts[0]
    assert (verdict.kind, verdict.cause) == ("loss_scale_collapse", "gradient_overflow")
    assert run.column("loss_scale").values[BAD] == 2**16
    assert run.column("grad_norm").bad.sum() == STEPS - BAD


def test_a_scale_that_is_searched_at_the_start_is_healthy(tmp_path):
    lines, scale = [], 2.0**32
    for i, x in enumerate(curve(None)):
        if i < 12:
            lines.append(f"{OVERFLOW}Attempted loss scale: {scale:g}, reducing to {scale / 2:g}")
            scale /= 2
        lines.append(f"step {i} loss {x:.4f}")
    lines.insert(100, f"{OVERFLOW}Attempted loss scale: {scale:g}, but hysteresis is 2. Reducing hysteresis to 1")
    (tmp_path / "log").write_text("\n".join(lines))
    assert diagnose(read(tmp_path / "log")).verdicts[0].kind == "healthy"


@pytest.mark.parametrize(
    "line",
    [
        "Loss is nan, stopping training",
        "FloatingPointError: Loss became infinite or NaN at iteration=200!",
        "ValueError: nan loss encountered",
        "RuntimeError: loss is NaN",
    ],
)
def test_the_last_words_of_a_program_count(line, tmp_path):
    path = written(tmp_path, nanogpt, bad=None)
    path.write_text(f"{path.read_text()}{line}\n")
    verdict = diagnose(read(path)).verdicts[0]
    assert (verdict.kind, verdict.first_step) == ("nonfinite", STEPS if "iteration" in line else STEPS - 1)


# -- documents and tables


def losses(run):
    return run.column("loss").values.tolist()


def test_the_history_of_keras(tmp_path):
    path = tmp_path / "history.json"
    history = {"accuracy": [0.5] * STEPS, "loss": curve(), "val_loss": [x + 0.1 for x in curve()]}
    for document in (history, {"history": history, "epoch": list(range(STEPS))}):
        path.write_text(json.dumps(document))
        run = read(path)
        assert diagnose(run).verdicts[0].kind == "nonfinite"
        assert (len(run), run.column("eval_loss").given.sum()) == (STEPS, STEPS)


@pytest.mark.parametrize("name", ["metrics.json", "log", "train.txt", "metrics.jsonl"])
def test_json_lines_under_any_name(tmp_path, name):
    path = tmp_path / name
    rows = [{"iteration": 20 * i + 19, "total_loss": x, "loss_cls": 0.3, "lr": 0.0025} for i, x in enumerate(curve())]
    rows.insert(50, {"iteration": 999, "bbox/AP": 33.3})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = read(path)
    assert len(run) == STEPS
    assert diagnose(run).verdicts[0].first_step == 20 * BAD + 19


def test_json_lines_without_steps_and_with_nested_numbers(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(json.dumps({"train": {"loss": x}, "time": i}) + "\n" for i, x in enumerate(curve())))
    run = read(path)
    assert (len(run), diagnose(run).verdicts[0].first_step) == (STEPS, BAD)


def test_a_list_of_rows(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps([{"epoch": 1 + i, "main/loss": x} for i, x in enumerate(curve())], indent=1))
    assert diagnose(read(path)).verdicts[0].first_step == 1 + BAD


def test_the_table_of_ultralytics_is_padded_and_has_parts_of_the_loss(tmp_path):
    names = ["epoch", "train/box_loss", "train/cls_loss", "metrics/mAP50(B)", "val/box_loss", "val/cls_loss", "lr/pg0"]
    rows = [[i, x, 2 * x, 0.5, x, x, 0.01] for i, x in enumerate(curve())]
    path = tmp_path / "results.csv"
    path.write_text("\n".join(",".join(f"{field:>23}" for field in row) for row in [names, *rows]) + "\n")
    run = read(path)
    assert losses(run)[0] == pytest.approx(3 * curve()[0])
    assert diagnose(run).verdicts[0].first_step == BAD


def test_a_table_of_lightning_has_rows_for_training_and_evaluation(tmp_path):
    path = tmp_path / "metrics.csv"
    lines = ["epoch,step,train_loss,val_loss"]
    for i, x in enumerate(curve(None)):
        lines.append(f"{i // 50},{i},{x},")
        if i % 50 == 49:
            lines.append(f"{i // 50},{i},,{x + 0.1}")
    path.write_text("\n".join(lines) + "\n")
    run = read(path)
    assert (len(run), run.notes) == (STEPS, [])
    assert run.column("eval_loss").given.sum() == 4
    assert diagnose(run).verdicts[0].kind == "healthy"


def test_steps_that_begin_again_with_each_epoch_are_numbered(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,batch,loss\n" + "".join(f"{i // 50},{i % 50},{x}\n" for i, x in enumerate(curve(None))))
    run = read(path)
    assert run.step.tolist() == list(range(STEPS))
    assert run.notes == ["The steps begin again with each epoch: rows are counted from 0."]


def test_a_folder_of_mlflow(tmp_path):
    metrics = tmp_path / "mlruns" / "0" / "abc" / "metrics"
    (metrics / "train").mkdir(parents=True)
    (metrics.parent / "meta.yaml").write_text("run_id: abc\n")
    (metrics / "train" / "loss").write_text("".join(f"{1700000000000 + i} {x} {i}\n" for i, x in enumerate(curve())))
    (metrics / "lr").write_text("1700000000000 0.1 0\n")
    for path in (tmp_path / "mlruns", metrics.parent, metrics):
        run = read(path)
        assert (len(run), diagnose(run).verdicts[0].first_step) == (STEPS, BAD)


def test_a_scalar_that_tensorboard_exports(tmp_path):
    path = tmp_path / "scalar.json"
    path.write_text(json.dumps([[1700000000.5 + i, i, x] for i, x in enumerate(curve())]))
    assert diagnose(read(path)).verdicts[0].first_step == BAD


def test_event_files_of_training_and_evaluation_in_folders_of_their_own(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for name, more in (("train", 0), ("validation", 0.1)):
        with SummaryWriter(str(tmp_path / "logs" / name)) as writer:
            for i, x in enumerate(curve()):
                writer.add_scalar("epoch_loss", x + more, i)
    run = read(tmp_path / "logs")
    assert diagnose(run).verdicts[0].first_step == BAD
    assert run.column("eval_loss").given.sum() == STEPS


# -- a pattern, and files that are not logs


def test_a_pattern_says_how_lines_are_written(tmp_path):
    path = tmp_path / "odd.txt"
    path.write_text("".join(f"<{i}> ~{x}~\n" for i, x in enumerate(curve())))
    run = read(path, patterns=[r"<(?P<step>\d+)> ~(?P<loss>\S+)~"])
    assert diagnose(run).verdicts[0].first_step == BAD
    with pytest.raises(RunError, match=r"no line of it has a number with a name.*--pattern REGEX says how"):
        read(path)


def test_a_log_without_a_loss_names_its_other_numbers(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,quality,speed\n1,2,3\n2,3,4\n")
    with pytest.raises(RunError, match=r"has no loss\. Its other numbers are quality, speed\. --column loss=NAME"):
        read(path)
    path.write_text("".join(f"step {i} lr 0.1 quality 3.5\n" for i in range(30)))
    with pytest.raises(RunError, match=r"Its other numbers are quality"):
        read(path)


# -- failures although the loss looks good


def test_a_loss_of_0_with_a_gradient_norm_of_nan_is_broken(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "".join(
            str({"loss": 0.0 if i >= BAD else x, "grad_norm": float("nan") if i >= BAD else 1.0}) + "\n"
            for i, x in enumerate(curve(None))
        )
    )
    verdict = diagnose(read(path)).verdicts[0]
    assert (verdict.kind, verdict.first_step, verdict.confidence) == ("nonfinite", BAD, "certain")
    assert (verdict.cause, verdict.certainty) == ("unknown", "possible")
    assert "written as 0 where the gradient norm is nan" in verdict.suspects[0].evidence


def test_a_loss_that_is_exactly_0_at_once_is_likely_a_nan(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(f"iter {i} loss {0.0 if i >= BAD else x}\n" for i, x in enumerate(curve(None))))
    verdict = diagnose(read(path)).verdicts[0]
    assert (verdict.kind, verdict.first_step, verdict.confidence) == ("nonfinite", BAD, "likely")


def test_gradient_norms_that_are_nan_to_the_end_are_broken_and_single_ones_leave_it_open(tmp_path):
    path = tmp_path / "log"

    def diagnosed(bad):
        lines = [f"step {i} loss {x} grad_norm {'nan' if i in bad else 1.0}\n" for i, x in enumerate(curve(None))]
        path.write_text("".join(lines))
        return diagnose(read(path))

    verdict = diagnosed(range(BAD, STEPS)).verdicts[0]
    assert (verdict.kind, verdict.first_step, verdict.confidence) == ("nonfinite", BAD, "certain")
    found = diagnosed({50, 120})
    assert found.verdicts[0].kind == "undetermined"
    assert terminal.headline(found) == (
        "no instability found in what could be read: the gradient norm is not finite at 2 steps, and no loss scale "
        "is in the log: a scaler may have skipped them, or not"
    )


def test_a_loss_that_ends_before_the_log_leaves_it_open(tmp_path):
    path = tmp_path / "log"
    rows = [
        {"step": i, "lr": 0.1, "grad_norm": 1.0, **({"loss": x} if i < BAD else {})} for i, x in enumerate(curve(None))
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = diagnose(read(path))
    assert found.verdicts[0].kind == "undetermined"
    assert found.verdicts[0].suspects[0].evidence == "the loss ends at step 119, and the log at step 199"


def test_losses_that_are_null_to_the_end_leave_it_open(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "".join(json.dumps({"_step": i, "loss": x if i < BAD else None}) + "\n" for i, x in enumerate(curve(None)))
    )
    found = diagnose(read(path))
    assert found.verdicts[0].kind == "undetermined"
    assert found.verdicts[0].suspects[0].evidence == "the loss ends at step 119, and the log at step 199"


def test_losses_that_are_not_numbers_leave_it_open(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n" + "".join(f"{i},{x if i != 50 else '#NUM!'}\n" for i, x in enumerate(curve(None))))
    found = diagnose(read(path))
    assert (found.verdicts[0].kind, found.verdicts[0].suspects[0].evidence) == (
        "undetermined",
        "1 losses are not numbers",
    )


@pytest.mark.parametrize(("separator", "point"), [(" ", "."), ("   ", "."), (";", ","), ("\t", ",")])
def test_tables_with_spaces_or_decimal_commas(separator, point, tmp_path):
    rows = [[str(i), f"{x:.6f}".replace(".", point)] for i, x in enumerate(curve(None))]
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{separator.join(row)}\n" for row in [["step", "loss"], *rows]))
    assert losses(read(path)) == pytest.approx(curve(None), abs=1e-6)


def test_an_evaluation_alone_is_diagnosed(tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(f"epoch {i} val_loss {x}\n" for i, x in enumerate(curve())))
    run = read(path)
    assert diagnose(run).verdicts[0].first_step == BAD
    assert "There is no loss of the training: that of the evaluation is diagnosed." in run.notes


def test_an_evaluation_that_is_nan_to_the_end_is_broken(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "".join(f"step {i} train_loss {x} val_loss {'nan' if i >= BAD else x}\n" for i, x in enumerate(curve(None)))
    )
    verdict = diagnose(read(path)).verdicts[0]
    assert (verdict.kind, verdict.first_step) == ("nonfinite", BAD)
    assert "the evaluation loss is nan from step 120 on" in verdict.suspects[0].evidence
