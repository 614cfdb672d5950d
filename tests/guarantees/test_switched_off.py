"""TORCHNAN=0 turns everything off, even where a program asks for torchnan; invalid options are still rejected."""

from __future__ import annotations

import pytest

from tests.support.forked_python import run_forked, run_forked_command, run_forked_file
from tests.support.processes import run_python

pytestmark = pytest.mark.guarantee(20)

SETUP = """
import os, sys, threading, torch, torchnan
from torch import nn
from torchnan._load import _C
key = torch._C._parse_dispatch_key("Fake")
package = os.path.dirname(torchnan.__file__) + os.sep
def is_torchnans(f):
    return f.__code__.co_filename.startswith(package) if hasattr(f, "__code__") else "torchnan" in repr(f)
def nothing_is_on():
    patched = [f for f in (torch.autograd._engine_run_backward, torch.Tensor.tolist, threading.Thread._bootstrap_inner)
               if is_torchnans(f)]
    assert not patched, patched
    assert _C.open_scopes() == 0
    assert not torch._C._dispatch_tls_local_include_set().has(key)
    assert not torch._C._dispatch_has_backend_fallback(key)
"""


def off(code: str, start=run_forked, **variables: str) -> str:
    ended = start(SETUP + code + "\nnothing_is_on()\nprint('done')", TORCHNAN="0", **variables)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    assert ended.stdout.endswith("done\n")
    return ended.stdout


def test_detect_watches_nothing(tmp_path):
    """Fails when enter_watch() or make_watch() does not ask is_switched_off()."""
    off(f"""
with torchnan.detect(log={str(tmp_path / "log")!r}, when="origin") as watch:
    nothing_is_on()
    torch.log(torch.tensor(-1.0)).item()
assert (watch.findings, watch.first, watch.stats()["ops"], watch.stats()["checked"]) == ([], None, 0, 0)
assert watch.report() == "torchnan: no non-finite value has done harm"

@torchnan.detect()
def decorated():
    return torch.log(torch.tensor(-1.0)).item()
decorated()

watch = torchnan.set_detect(True)
nothing_is_on()
thread = threading.Thread(target=decorated)
thread.start()
thread.join()
torchnan.set_detect(False)
watch.mark_step(3)
assert torchnan.guard(torch.tensor(float("nan")), "x").isnan()
assert dict(torch.ops.torchnan.stats()) == {{}}
""")
    assert list(tmp_path.iterdir()) == []


TRAIN = """
def train(guarded):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    step_fn = lambda model, batch: model(batch).square().mean()
    options = dict(OPTIONS, scheduler=scheduler, max_norm=0.5)
    guard = torchnan.StepGuard(model, optimizer, step_fn, **options) if guarded else None
    for step in range(5):
        batch = torch.randn(4, 3)
        if step == 4:
            batch[0, 0] = float("nan")
        if guarded:
            result = guard.step(batch)
            assert (result.step, result.applied, result.event) == (step + 1, True, None)
            continue
        optimizer.zero_grad()
        step_fn(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    assert guard is None or guard.events == []
    return [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
"""


@pytest.mark.parametrize(
    "options", ["{}", "dict(captures='captures', log='log', snapshot_every=1, out_of_memory='split')"]
)
def test_a_step_guard_steps_as_if_it_were_not_there(tmp_path, options):
    """Bit for bit, and without a file, although a batch is bad. Fails when step() does not check the switch."""
    off(
        f"""
import os
os.chdir({str(tmp_path)!r})
OPTIONS = {options}
{TRAIN}
for a, b in zip(train(True), train(False), strict=True):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
"""
    )
    assert list(tmp_path.iterdir()) == []


def test_a_loop_of_ones_own_is_let_through():
    off("""
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = torchnan.StepGuard(model, optimizer, max_norm=1.0)
for step in range(3):
    with guard.watch(object()):  # what no capture could keep
        loss = model(torch.full((1, 2), 1e3)).sum()
        loss.backward()
    assert guard.ok_to_step(loss)
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert norm.item() < 1.001
    optimizer.step()
    optimizer.zero_grad()
with guard.watch(1):
    (model(torch.ones(1, 2)) * float("nan")).sum().backward()
assert guard.ok_to_step() and guard.step_number == 4 and guard.events == []
""")


def test_out_of_memory_is_the_programs():
    off("""
def step(model, batch):
    raise MemoryError("mine")
model = nn.Linear(2, 1)
guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), step, out_of_memory="split")
try:
    guard.step(torch.ones(4, 2))
except MemoryError as error:
    assert str(error) == "mine"
else:
    raise AssertionError
""")


def test_a_nan_detector_says_that_every_step_is_good_and_knows_the_norm():
    off("""
detector = torchnan.NaNDetector(on_nonfinite="raise", norm_limit=1.0)
model = nn.Linear(2, 1)
model(torch.tensor([[3.0, 4.0]])).sum().backward()
assert detector.check_loss(float("nan"), 1)
assert detector.check_gradients(model)
assert abs(detector.gradient_norm - 26 ** 0.5) < 1e-6
model.weight.grad[0, 0] = float("nan")
assert detector.check_gradients(model) and not detector.should_rollback
assert (detector.state.total_nans, detector.state.nan_steps) == (0, [])
""")


def test_unusable_options_are_still_rejected():
    off("""
def refused(call, text):
    try:
        call()
    except (torchnan.config.options.OptionError, TypeError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
refused(lambda: torchnan.detect(action="rais"), "action='rais'")
refused(lambda: torchnan.set_detect(True, when="now"), "when='now'")
refused(lambda: torchnan.StepGuard(model, optimizer, max_skips=-1), "max_skips=-1")
refused(lambda: torchnan.StepGuard(model, model), "optimizer is a Linear")
refused(lambda: torchnan.NaNDetector(on_nonfinite="stop"), "'stop'")
""")
    for variable in ("TORCHNAN_WHN", "TORCHNAN_POLICY_MAX_SKIP", "TORCHNAN_WHEN"):
        ended = run_forked("import torch", TORCHNAN="0", **{variable: "nonsense"})
        assert ended.returncode == 2, variable


def test_commands_say_so(tmp_path):
    ended = run_forked_command("doctor", TORCHNAN="0")
    assert "switches     OFF by TORCHNAN=0" in ended.stdout
    assert ended.returncode == 0
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.log(torch.tensor(-1.0)).item()\n")
    ended = run_forked_command("run", str(script), TORCHNAN="0")
    assert "made by   aten::log" in ended.stderr  # a command that needs detection sets the variable itself


REPLAY = """
import sys, torch, torchnan
from torch import nn
def step(model, batch):
    return (model(batch) * float("nan")).sum()
def build():
    return nn.Linear(1, 1)
if __name__ == "__main__":
    model = build()
    guard = torchnan.StepGuard(model, torch.optim.SGD(model.parameters(), lr=0.1), step, captures=sys.argv[1])
    print(guard.step(torch.ones(1, 1)).event.capture)
"""


def test_a_replay_without_detection_does_not_claim_success(tmp_path):
    """Without detection, "finite both times" would be a lie."""
    (tmp_path / "train.py").write_text(REPLAY)
    capture = run_forked_file(tmp_path / "train.py", "captures", cwd=tmp_path).stdout.strip()
    command = ["replay", capture, "--step", "train:step", "--model", "train:build"]
    assert run_forked_command(*command, cwd=tmp_path).returncode == 1
    ended = run_forked_command(*command, cwd=tmp_path, TORCHNAN="0")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "torchnan: TORCHNAN=0 is set, and a replay looks for what made a NaN: unset it.\n"


def test_it_is_off_without_autoload_too():
    off(
        "with torchnan.detect():\n    torch.log(torch.tensor(-1.0)).item()",
        start=run_python,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
