"""Loading: the right PyTorch, a free dispatch key, and a helpful message if one of them is missing."""

from __future__ import annotations

import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest
import torch

from tests.support.processes import REPOSITORY, run_python
from torchnan import _load


@pytest.fixture
def cores(tmp_path, monkeypatch):
    """A package with cores for three releases, of which the number is not the order of the names."""
    for release in ("2.9", "2.13", "2.12"):
        (tmp_path / f"torch{release}").mkdir()
    monkeypatch.setattr(_load, "LIBRARIES", str(tmp_path))
    return tmp_path


def test_a_pytorch_without_a_core_is_refused_before_a_core_is_loaded(cores):
    with pytest.raises(ImportError) as raised:
        _load.folder_for("2.14.1+cpu")
    assert str(raised.value) == (
        "torchnan was built for PyTorch 2.9, 2.12, 2.13, and this is PyTorch 2.14.1+cpu. Its core uses PyTorch's "
        "C++ internals, which change with every release. Build torchnan for this PyTorch, in the folder of its "
        "sources: pip install --force-reinstall --no-deps ."
    )


@pytest.mark.parametrize(
    ("running", "release"), [("2.13.0", "2.13"), ("2.13.1+cu130", "2.13"), ("2.9.0a0+git12", "2.9")]
)
def test_each_pytorch_gets_the_core_of_its_minor_release(cores, running, release):
    assert _load.folder_for(running) == str(cores / f"torch{release}")


def test_a_core_for_another_python_alone_is_refused(cores):
    (cores / "torch2.13" / "_C.cpython-39-x86_64-linux-gnu.so").touch()
    with pytest.raises(ImportError, match=rf"torch2\.13 has no core for Python 3\.{sys.version_info.minor}\. Build"):
        _load.load_core(str(cores / "torch2.13"))


def test_a_core_that_cannot_be_loaded_leaves_nothing_behind(cores):
    (cores / "torch2.12" / f"_C{EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
    core = sys.modules["torchnan._C"]
    try:
        with pytest.raises(ImportError, match=r"core could not be loaded beside PyTorch 2.*too short"):
            _load.load_core(str(cores / "torch2.12"))
        assert "torchnan._C" not in sys.modules
    finally:
        sys.modules["torchnan._C"] = core


def test_a_python_without_the_gil_is_refused_with_the_way_out():
    code = "import sys; sys._is_gil_enabled = lambda: False; import torchnan"
    ended = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "ImportError: torchnan was imported while the GIL is off. It counts"
    )
    assert ended.stderr.rstrip().endswith("Start Python with the GIL: PYTHON_GIL=1 or -X gil=1.")


def test_the_core_that_runs_was_built_for_this_pytorch():
    assert _load._C.built_for_torch.split(".")[:2] == torch.__version__.split(".")[:2]
    assert ".".join(torch.__version__.split(".")[:2]) in _load.releases()


# An editable installation finds files itself that are missing in a package folder.
WITHOUT_OTHER_FINDERS = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if finder.__module__.startswith("_frozen_importlib")]
import torchnan
"""


def test_the_source_folder_says_that_it_is_not_built(tmp_path):
    built = shutil.ignore_patterns("_build.py", "lib", "include", "share", "__pycache__")
    shutil.copytree(REPOSITORY / "torchnan", tmp_path / "torchnan", ignore=built)
    ended = run_python(WITHOUT_OTHER_FINDERS, cwd=tmp_path, PYTHONPATH=str(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ended.returncode == 1
    assert "torchnan has not been built: this is its source folder" in ended.stderr


ANOTHER_PYTORCH = WITHOUT_OTHER_FINDERS.replace("import torchnan", "import torch\nprint('goes on')")


@pytest.fixture
def built_for_another_pytorch(tmp_path):
    shutil.copytree(REPOSITORY / "torchnan", tmp_path / "torchnan", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    shutil.copy(REPOSITORY / "torchnan_autoload.py", tmp_path)
    (tmp_path / "torchnan" / "lib" / "torch2.1").mkdir(parents=True)
    return tmp_path


def test_a_script_under_a_build_for_another_pytorch_ends_with_one_line(built_for_another_pytorch):
    folder = built_for_another_pytorch
    ended = run_python(ANOTHER_PYTORCH, cwd=folder, PYTHONPATH=str(folder), TORCHNAN="raise")
    assert ended.returncode == 2
    assert ended.stdout == ""
    line = ended.stderr.splitlines()
    assert len(line) == 1
    assert line[0].startswith("torchnan: torchnan was built for PyTorch 2.1, and this is PyTorch ")


@pytest.mark.parametrize("variables", [{}, {"TORCHNAN": "0"}, {"TORCHNAN_LOG": "findings.jsonl"}])
def test_such_a_build_does_no_harm_while_detection_is_off(built_for_another_pytorch, variables):
    folder = built_for_another_pytorch
    ended = run_python(ANOTHER_PYTORCH, cwd=folder, PYTHONPATH=str(folder), **variables)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "goes on\n", "")


TAKEN = """
import torch
library = torch.library.Library("_", "IMPL")
library.fallback(torch.library.fallthrough_kernel, "Fake")
import torchnan
try:
    torchnan.detect()
except RuntimeError as error:
    print(error)
print(torchnan.guard(torch.ones(2), "still works").tolist(), torch.ones(2).log().tolist())
"""


def test_a_dispatch_key_that_is_taken_is_reported_with_the_way_out():
    ended = run_python(TAKEN)
    assert "dispatch key Fake already has a backend fallback" in ended.stdout
    assert "Use a torchnan that was made for this PyTorch" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[1.0, 1.0] [0.0, 0.0]"
    doctor = run_python(TAKEN + "\nfrom torchnan.cli import main; print(main(['doctor']))")
    assert "engine       NONE: torchnan cannot intercept the operations of PyTorch" in doctor.stdout
    switched_on = run_python(TAKEN.replace("import torch\n", "import os, torch\n", 1), TORCHNAN="0")
    assert switched_on.returncode == 0


def test_importing_torchnan_after_torch_is_quick_and_changes_nothing():
    code = """
import signal, sys, threading, time
import torch
handlers = {s: signal.getsignal(s) for s in signal.valid_signals()}
modules = set(sys.modules)
start = time.perf_counter()
import torchnan
taken = time.perf_counter() - start
assert handlers == {s: signal.getsignal(s) for s in signal.valid_signals()}
assert threading.active_count() == 1
assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
print(taken * 1000, sorted(m for m in set(sys.modules) - modules if not m.startswith("torchnan")))
"""
    ended = run_python(code)
    assert ended.returncode == 0, ended.stderr
    milliseconds, others = ended.stdout.split(" ", 1)
    print(f"import torchnan after torch: {float(milliseconds):.1f} ms")
    assert "numpy" not in others


def test_training_support_is_loaded_on_first_use():
    code = """
import sys, torchnan
later = ("torchnan.training", "torchnan.capture", "torchnan.recovery")
of_training = [m for m in sys.modules if m.startswith(later)]
assert not of_training, of_training
for name in torchnan.__all__:
    assert getattr(torchnan, name) is not None
assert torchnan.recovery.EXIT_CODES["persistent"] == 80
try:
    torchnan.StepGuards
except AttributeError as error:
    print(error)
"""
    ended = run_python(code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "module 'torchnan' has no attribute 'StepGuards'\n"


CPU_ONLY = """
import torch, torchnan
with torchnan.detect(action="log") as watch:
    torch.zeros(3).log().sum().item()
print(watch.first.op, [line for line in open("/proc/self/maps") if "libcuda" in line or "torchnan_cuda" in line])
"""


def test_a_program_on_the_cpu_never_looks_for_cuda():
    assert run_python(CPU_ONLY).stdout == "aten::log []\n"


def test_detection_does_not_begin_if_required_gpus_cannot_be_checked():
    ended = run_python("import torch", TORCHNAN="raise", TORCHNAN_REQUIRE_CUDA="1")
    assert ended.returncode == 2
    assert "torchnan cannot check tensors on GPUs, and TORCHNAN_REQUIRE_CUDA=1: " in ended.stderr
    assert run_python("import torch", TORCHNAN="raise", TORCHNAN_REQUIRE_CUDA="0").returncode == 0
    ended = run_python("import torch", TORCHNAN="raise", TORCHNAN_REQUIRE_CUDA="yes")
    assert ended.returncode == 2
    assert "TORCHNAN_REQUIRE_CUDA=yes cannot be used: it takes 0 or 1." in ended.stderr


def test_doctor_says_whether_gpus_are_checked():
    ended = run_python("from torchnan.cli import main; main(['doctor'])")
    line = next(line for line in ended.stdout.splitlines() if line.startswith("GPUs"))
    expected = "none: this PyTorch is for the CPU" if torch.version.cuda is None else ("checked", "NOT", "none that")
    assert line[len("GPUs") :].strip().startswith(expected)
