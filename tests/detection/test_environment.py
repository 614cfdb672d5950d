"""TORCHNAN=... python train.py: scripts that know nothing of torchnan."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.support.forked_python import run_forked, run_forked_file
from tests.support.processes import run, run_python

TRAIN = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.ones(3, 2)
    mask = torch.zeros(3, 1) if step == 2 else torch.ones(3, 1)
    loss = (model(x) * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", bool(torch.isnan(model.weight).any()))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def test_unset_it_imports_nothing():
    ended = run_python("import torch, sys; print([m for m in sys.modules if m.split('.')[0] == 'torchnan'])")
    assert ended.stdout.strip() == "[]"
    assert ended.stderr == ""


def test_raise_stops_an_unmodified_script_at_the_harm(script):
    ended = run([sys.executable, str(script)], TORCHNAN="raise")
    assert ended.returncode == 1
    assert "done" not in ended.stdout
    assert "torchnan.NonFiniteError: torchnan: NaN at step 3" in ended.stderr
    assert "made by   aten::div, output 0" in ended.stderr
    assert f"{script.name}:8" in ended.stderr
    assert "backward() was called on it" in ended.stderr


def test_one_is_raise_and_zero_is_off(script):
    assert run_forked_file(script, TORCHNAN="1").returncode == 1
    off = run_forked_file(script, TORCHNAN="0")
    assert (off.returncode, off.stdout.strip(), off.stderr) == (0, "done True", "")


AT_THE_END = """
import atexit, os, sys
atexit.register(print, "registered before torch")
import torch
kept = [(torch.zeros(2) / torch.zeros(2)).sum() for _ in range(3)]
print("done")
{last}
"""


@pytest.mark.parametrize(
    ("last", "status"),
    [("", 85), ("sys.exit(0)", 85), ("sys.exit(3)", 3), ("raise KeyError('other')", 1), ("os._exit(0)", 0)],
)
def test_a_finding_at_the_end_of_a_program_is_no_success(tmp_path, last, status):
    script = tmp_path / "train.py"
    script.write_text(AT_THE_END.format(last=last))
    ended = run([sys.executable, str(script)], TORCHNAN="raise")
    assert ended.returncode == status, ended.stderr
    if status == 85:
        assert ended.stdout == "done\nregistered before torch\n"
        assert "torchnan: NaN" in ended.stderr
        by_command = run([sys.executable, "-m", "torchnan", "run", str(script)])
        assert (by_command.returncode, by_command.stdout) == (85, ended.stdout)
        assert run([sys.executable, str(script)], TORCHNAN="warn").returncode == 0
        assert run([sys.executable, str(script)], TORCHNAN="raise", TORCHNAN_WHEN="origin").returncode == 1


def test_warn_goes_on(script):
    ended = run_forked_file(script, TORCHNAN="warn")
    assert ended.returncode == 0
    assert ended.stdout.strip() == "done True"
    assert "NonFiniteWarning: torchnan: NaN at step 3" in ended.stderr
    last = run([sys.executable, str(script)], TORCHNAN="warn").stderr.splitlines()[-1]
    assert re.fullmatch(rf" +stack +{re.escape(str(script))}:\d+ <module>", last)  # and no line of the source


def test_log_writes_one_line_per_finding(script, tmp_path):
    log = tmp_path / "findings.jsonl"
    ended = run_forked_file(script, TORCHNAN="log", TORCHNAN_LOG=str(log))
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = log.read_text().splitlines()
    finding = json.loads(lines[0], parse_constant=lambda name: pytest.fail(f"not strict JSON: {name}"))
    assert (finding["op"], finding["step"], finding["harm"]["kind"]) == ("aten::div", 3, "backward")
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.breadth(1)
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"TORCHNAN": "rasie"},
            "torchnan: TORCHNAN=rasie cannot be used: it takes one of raise, warn, log, breakpoint, 1, 0. Did you "
            "mean 'raise'?\n",
        ),
        ({"TORCHNAN": "1", "TORCHNAN_LOG": "/no/such/place"}, "torchnan: log '/no/such/place' cannot be opened"),
        ({"TORCHNAN": "1", "TORCHNAN_WHN": "harm"}, "Did you mean 'TORCHNAN_WHEN'?"),
    ],
)
def test_a_bad_variable_ends_the_program_with_one_line(script, variables, message):
    ended = run_forked_file(script, **variables)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize("imports", ["import torch, torchnan", "import torchnan, torch"])
def test_it_is_switched_on_once_in_either_order_of_imports(imports):
    code = f"{imports}\nfrom torchnan._load import _C\nprint(_C.open_scopes())"
    assert run_python(code, TORCHNAN="1").stdout.strip() == "1"
    assert run_python(code).stdout.strip() == "0"


def test_a_value_that_is_still_held_when_the_program_ends_is_reported():
    code = "import torch\nkept = torch.log(torch.tensor(-1.0))\nprint('done')"
    ended = run_forked(code, TORCHNAN="raise")
    assert ended.stdout.strip() == "done"
    assert "it was still referenced" in ended.stderr


def test_a_program_that_dies_of_its_own_error_reports_only_that():
    code = "import torch\nkept = torch.log(torch.tensor(-1.0))\nraise ValueError('mine')"
    ended = run_forked(code, TORCHNAN="raise")
    assert ended.stderr.rstrip().endswith("ValueError: mine")
    assert "torchnan" not in ended.stderr


@pytest.mark.parametrize(
    ("refuses", "says"),
    [
        ("torch.linalg.cholesky(ratio)", "LinAlgError"),
        ("assert torch.isfinite(ratio).all(), 'loss is NaN'", "AssertionError: loss is NaN"),
        ("if ratio.isnan().any(): raise RuntimeError('model_has_nan')", "RuntimeError: model_has_nan"),
        ("torch.multinomial(ratio, 1)", "RuntimeError: probability tensor contains either `inf`, `nan`"),
    ],
)
def test_the_value_that_a_program_fails_on_is_named_below_its_error(tmp_path, refuses, says):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "def step(x):\n"
        "    ratio = x / x.sum()\n"
        f"    {refuses}\n"
        "    return ratio\n"
        "step(torch.zeros(2, 2))\n"
    )
    ended = run([sys.executable, str(script)], TORCHNAN="raise")
    error, report = ended.stderr.split("torchnan: NaN", 1)
    assert says in error
    assert "aten::div, output 0   at" in report
    assert "train.py:3" in report
    assert "it was still referenced" in report
    assert ended.returncode == 1


def test_an_error_that_says_nothing_of_values_is_reported_alone():
    code = "import torch\nkept = torch.log(torch.tensor(-1.0))\nraise ValueError('information of a nanny, definite')"
    assert "torchnan" not in run_forked(code, TORCHNAN="raise").stderr


def test_threads_of_the_program_are_watched_too():
    code = (
        "import torch, concurrent.futures as f\n"
        "with f.ThreadPoolExecutor(2) as pool:\n"
        "    print(type(pool.submit(lambda: torch.log(torch.tensor(-1.0)).item()).exception()).__name__)"
    )
    assert run_forked(code, TORCHNAN="raise").stdout.strip() == "NonFiniteError"


def test_data_loader_workers_start_and_end(tmp_path):
    code = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.full((3,), float(i)).log1p()
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context=method)
        print(method, sum(batch.sum().item() for batch in loader) > 0)
"""
    script = tmp_path / "load.py"
    script.write_text(code)
    ended = run([sys.executable, str(script)], TORCHNAN="raise")
    assert ended.stdout.split() == ["fork", "True", "spawn", "True"], ended.stderr


def test_the_stack_of_a_spawned_process_begins_with_the_program(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport torch.multiprocessing as mp\n"
        "def work(_):\n    torch.zeros(2).log().sum().item()\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=1)\n"
    )
    ended = run([sys.executable, str(script)], cwd=tmp_path, TORCHNAN="warn")
    assert ended.returncode == 0, ended.stderr
    assert "  stack     train.py:4 work\n" in ended.stderr
    assert "<string>" not in ended.stderr


def test_options_alone_say_that_nothing_is_on():
    ended = run_forked("import torch; print('done')", TORCHNAN_ACTION="warn", TORCHNAN_WHEN="origin")
    assert ended.stdout.strip() == "done"
    assert ended.stderr == (
        "torchnan: TORCHNAN_ACTION and TORCHNAN_WHEN are set, TORCHNAN is not, so nothing is checked: set "
        "TORCHNAN=raise, warn or log.\n"
    )


def test_log_without_a_file_writes_one_and_says_where(script, tmp_path):
    ended = run_forked_file(script, cwd=tmp_path, TORCHNAN="log")
    (log,) = tmp_path.glob("torchnan-*.jsonl")
    assert ended.stderr == f"torchnan: findings are in {log}: torchnan show {log}\n"
    assert json.loads(log.read_text().splitlines()[0])["op"] == "aten::div"


def test_a_default_log_with_nothing_in_it_is_removed(tmp_path):
    ended = run_forked("import torch; torch.ones(2).log()", cwd=tmp_path, TORCHNAN="log")
    assert (ended.returncode, ended.stderr, list(tmp_path.iterdir())) == (0, "", [])
