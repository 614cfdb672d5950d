"""Programs on which torchnan once disagreed with itself or with the truth, and a search for new ones."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
import torch

import torchnan
from tests.fuzz import harm
from tests.fuzz.__main__ import ALL, of_seed, search
from tests.fuzz.builder import Builder
from tests.fuzz.comparison import Modes, against_truth, claims_of, disagreements, wrong_claims
from tests.fuzz.generators import rules
from tests.fuzz.program import Program, attached, flushing_denormals, laid_out, memset, resized, roomy, run
from tests.fuzz.settings import CHOICES, ClaimsBySetting, of_source, settings, under_settings
from tests.fuzz.values import FORMS, scaled, scales
from tests.support.processes import REPOSITORY
from tests.support.processes import run as run_process
from tests.support.testing_extension import _testing

KEPT = sorted(Path(__file__).with_name("kept").glob("*.py"))
SECONDS = int(os.environ.get("FUZZ_SECONDS", "600"))
SLACK = 300  # seconds to begin and to end in; only a hang reaches it

NAN_ON_LINE_3 = """def make(): return ()
def program():
    y = torch.tensor([-1.0]).log()
    z = y * 2
    return dict(z=z)
"""


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_program_that_was_kept_is_agreed_upon(path):
    program = Program("kept", 0, path.read_text())
    assert [str(found) for found in disagreements(program, Modes())] == []


@pytest.mark.parametrize(
    ("fact", "kinds"),
    [
        (("error", "nan", "op", "aten::log", ("kept_0.py", 3), "forward", "alive", 0), []),
        (
            ("error", "nan", "op", "aten::mul", ("kept_0.py", 4), "forward", "alive", 0),
            ["wrong line", "an origin that is gone"],
        ),
        (("error", "nan", "op", "aten::sqrt", ("kept_0.py", 3), "forward", "alive", 0), ["wrong operation"]),
        (("error", "nan", "foreign", "aten::mul", ("kept_0.py", 4), "forward", "alive", 0), ["wrong origin foreign"]),
    ],
)
def test_the_truth_notices_a_wrong_report(fact, kinds):
    program = Program("kept", 0, NAN_ON_LINE_3)
    assert [kind for kind, _ in against_truth(run(program, "truth"), [fact], program)] == kinds


def test_the_truth_notices_a_missing_report():
    program = Program("kept", 0, NAN_ON_LINE_3)
    assert [kind for kind, _ in against_truth(run(program, "truth"), [], program)] == ["missed"]


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1::2], lambda x: x[:1].expand(9, 3), lambda x: x.t()])
def test_memory_that_a_resized_tensor_gets_is_written(view, fills_new_memory):
    assert resized(view(torch.ones(4, 3)), 100).isfinite().all()


def test_memory_that_a_tensor_of_a_wider_dtype_adds_is_written(fills_new_memory):
    x = attached(torch.ones(3, dtype=torch.float64), torch.ones(100, dtype=torch.float16))
    assert x.shape == (100,)
    assert x.isfinite().all()


def test_shared_memory_is_not_made_to_grow():
    x = torch.ones(20).share_memory_()
    assert roomy(x, torch.ones(20)) is x
    with pytest.raises(RuntimeError, match="cannot be resized"):
        roomy(x, torch.ones(21))


def test_memory_beyond_a_tensor_is_not_written():
    memory = torch.zeros(16)
    memset(torch.empty(0).set_(memory.untyped_storage()[:12], 1, (2,)), 255, 40)
    assert memory.isfinite().tolist() == [True, False, False] + [True] * 13


@pytest.mark.parametrize("line", ["resized(x, 100)", "torch.mul(torch.ones(100), 2.0, out=x)"])
def test_a_tensor_that_a_refused_line_has_made_larger_than_its_memory_is_as_before(line):
    builder = Builder(0)
    builder.make("x", "torch.ones(20)")
    builder.scope["x"].numpy()  # from here on its memory cannot be resized
    assert not builder.add(line)
    assert builder.scope["x"].shape == (20,)


def test_a_tensor_that_a_refused_line_has_given_other_memory_is_as_before():
    builder = Builder(0)
    builder.make("x", "torch.ones(10, 10)")
    builder.make("y", "torch.zeros(20)")
    builder.scope["y"].numpy()  # from here on its memory cannot be resized
    assert not builder.add("x.set_(y.untyped_storage(), 0, (100,), (1,))")
    assert builder.scope["x"].equal(torch.ones(10, 10))


def test_a_memory_program_reads_no_uninitialized_memory(fills_new_memory):
    source, _, disagreements = of_seed("storage", 98000043)
    assert disagreements == []
    result = run(Program("storage", 98000043, source), "plain")
    assert all(value.isfinite().all() for value in result.variables.values() if isinstance(value, torch.Tensor))


@pytest.fixture
def fills_new_memory():
    torch.use_deterministic_algorithms(True, warn_only=True)  # with NaN
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("generator", ALL)
def test_a_seed_always_gives_the_same_program(generator):
    first, count, found = of_seed(generator, 3)
    assert first is not None
    assert of_seed(generator, 3) == (first, count, found)
    assert found == []


def test_a_failing_call_leaves_nothing_behind_for_later_programs():
    """Fails without keeping_dispatch_state(): keys are excluded from then on, and the truth sees other operations."""
    before = torch._C._dispatch_tls_local_exclude_set()
    of_seed("subclasses", 92000001)  # torch.cat([wrapped], out=plain) is tried, and fails
    assert torch._C._dispatch_tls_local_exclude_set() == before


SUBNORMAL_FACTOR = """def make():
    return torch.zeros(1, 300), torch.full((1, 300), 3e29)
def program(a, b):
    r = torch.add(a * 1, b * 1, alpha=1e-42)
    return dict(r=r)
"""


def test_the_claim_for_a_factor_that_float32_rounds_up_holds():
    made, internal_errors = claims_of(Program("rules", 0, SUBNORMAL_FACTOR))
    assert [claim.op for claim in made[-3:]] == ["aten::mul", "aten::mul", "aten::add"]
    assert made[-1].says_something
    assert made[-1].holds
    assert internal_errors == 0


def base_name(operator: str) -> str:
    return operator.removeprefix("aten::").removeprefix("_foreach_").rstrip("_")


def test_no_rule_is_left_out():
    with_rules = {name for name in _testing.operators_with_rules() if "::" not in name}
    assert set(rules.calls()) == with_rules, "an operator with a bound rule has no line in templates/rules.txt"


@pytest.mark.breadth(20)
@pytest.mark.parametrize("operator", sorted(rules.calls()))
def test_the_programs_of_a_rule_make_it_claim_something(operator):
    made = (claims_of(Program("rules", 0, rules.program_of(operator, random.Random(seed))))[0] for seed in range(40))
    own = (claim for claims in made for claim in claims if base_name(claim.op) == operator)
    assert any(claim.says_something for claim in own)


CUSTOM_OPERATOR = """def make():
    return torch.ones(5000),
def program(x):
    r = torch.ops.torchnan_fuzz.double(x * 1)
    return dict(r=r)
"""


def test_a_wrong_claim_is_noticed():
    library = torch.library.Library("torchnan_fuzz", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")
    torchnan.register_bound("torchnan_fuzz::double", lambda x: 1.9 * x.most)
    program = Program("rules", 0, CUSTOM_OPERATOR)
    claims, internal_errors = claims_of(program)
    assert len(claims) >= 2
    wrong = wrong_claims(program, claims, internal_errors)
    assert [found.kind for found in wrong] == ["claim of torchnan_fuzz::double"]


UNREPORTED = """def make(): return torch.ones(5000),
def program(p):
    memset(p, 255, 4)
    return dict(p=p)
"""


def test_a_value_that_is_held_and_not_reported_is_noticed():
    found = disagreements(Program("kept", 0, UNREPORTED), Modes(silent=True, truth=False))
    assert [(one.kind, one.detail) for one in found] == [("silent", ["p"])]


def test_a_program_runs_in_the_context_that_is_asked_for():
    builder = Builder(0)
    builder.make("x", "torch.ones(3)")
    builder.add("y = torch.is_inference(x * 2)")
    for context, expected in ((None, False), ("torch.inference_mode()", True)):
        assert run(Program("kept", 0, builder.source(context)), "plain").variables["y"] == expected


LAYOUTS_OF_A_MATRIX = [
    *(("contiguous", (3, 1), 0), ("transposed", (1, 2), 0), ("expanded", (0, 1), 0), ("expanded_last", (1, 0), 0)),
    *(("strided", (6, 2), 0), ("offset", (3, 1), 1), ("padded", (6, 1), 0)),
]


@pytest.mark.parametrize(("layout", "stride", "offset"), LAYOUTS_OF_A_MATRIX)
def test_a_matrix_is_laid_out_as_asked(layout, stride, offset):
    x = torch.arange(6.0).view(2, 3)
    made = laid_out(x, layout)
    assert (made.shape, made.stride(), made.storage_offset()) == (x.shape, stride, offset)
    kept = (
        x
        if not layout.startswith("expanded")
        else x[:1].expand(2, 3)
        if layout == "expanded"
        else x[:, :1].expand(2, 3)
    )
    assert made.equal(kept)


def test_denormals_are_flushed_in_the_program_alone():
    with flushing_denormals():
        assert float(torch.full((8,), 1e-40) * 1.0 @ torch.ones(8)) == 0.0
    assert float(torch.full((8,), 1e-40).sum()) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", sorted({*FORMS, "masked"}))
def test_scaled_values_are_finite_but_for_masks(form, dtype):
    for scale in scales(dtype):
        x = scaled(3, (40, 30), dtype, scale, form)
        assert not (x.isnan() | (x == float("inf"))).any()
        assert bool((x == -float("inf")).any()) == (form == "masked")


def test_a_harm_program_is_held_to_its_page():
    program, expected = harm.generate(0)
    assert expected.report in ("error", "silent", "warning")
    assert len(program.source.splitlines()) >= expected.line


def test_a_search_continues_after_a_program_that_kills_its_process(monkeypatch, capfd):
    def of_seed(generator, seed, by_setting):
        if seed == 7:
            os._exit(9)
        return "", 1, [f"wrong: {seed}"]

    monkeypatch.setattr("tests.fuzz.__main__.of_seed", of_seed)
    moments = iter([0.0, 0.0, 0.5, 2.0])  # it begins; two processes are started; the time is over
    monkeypatch.setattr("tests.fuzz.__main__.monotonic", lambda: next(moments))
    assert search(["threads"], 1.0, 6) == 1
    said = [
        "seeds threads 6",
        "wrong: 6",
        "died (9): python -m tests.fuzz threads 7",
        "ONEDNN_MAX_CPU_ISA=AVX2 wrong: 8",
        "threads 2 - 3 disagreements",
    ]
    assert capfd.readouterr().out.splitlines() == said


def test_a_search_continues_where_the_last_one_ended(monkeypatch, capfd, tmp_path):
    def of_seed(generator, seed, by_setting):
        return "", 1000, [f"wrong: {seed}"] if seed == 7 else []

    monkeypatch.setattr("tests.fuzz.__main__.of_seed", of_seed)
    done = tmp_path / "made" / "fuzz.json"
    for first in (6, 1):
        moments = iter([0.0, 0.0, 2.0])  # it begins; a process is started; the time is over
        monkeypatch.setattr("tests.fuzz.__main__.monotonic", lambda moments=moments: next(moments))
        search(["threads"], 1.0, first, done)
    said = ["seeds threads 6", "threads 1,000 - 0 disagreements", "in all: threads 1,000 - 0 disagreements"]
    said += ["seeds threads 7", "wrong: 7", "threads 1,000 - 1 disagreements"]
    said += ["in all: threads 2,000 - 1 disagreements"]
    assert capfd.readouterr().out.splitlines() == said
    found = {"first": {"threads": 6}, "seeds": {"threads": 8}, "compared": {"threads": 2000}, "found": 1, "claims": {}}
    assert json.loads(done.read_text()) == found


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_a_setting_holds_for_a_program_and_ends_with_it(name):
    def state():
        precisions = [getattr(torch.backends.mkldnn, op).fp32_precision for op in ("matmul", "conv", "rnn")]
        libraries = [torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled()]
        modes = [torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cpu")]
        return [*precisions, *libraries, *modes, torch.get_num_threads(), float(torch.tensor(1e-30) * 1e-10) == 0]

    before = state()
    for value in CHOICES[name]:
        with settings(**{name: value}):
            assert state() != before
        assert state() == before


def test_a_layout_and_an_instruction_set_count_as_settings(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    source = "@settings(threads=2)\ndef program(x):\n    x = laid_out(x, 'channels_last')\n"
    assert of_source(source) == ["ONEDNN_MAX_CPU_ISA=AVX2", "channels_last", "threads=2"]


def test_the_bits_of_inference_tensors_are_compared():
    """Fails when a tensor without a version is left out of the digest."""
    lines = [
        "def make(): return ()",
        "def program():",
        "    with torch.inference_mode():",
        "        x = torch.full((3,), {})",
    ]
    source = "\n".join([*lines, "    return dict(x=x)"])
    digests = {run(Program("kept", 0, source.format(value)), "plain").digest for value in (1.0, 2.0)}
    assert len(digests) == 2


def test_the_settings_of_a_program_are_counted_by_rule():
    by_setting = ClaimsBySetting()
    seed = next(seed for seed in range(100) if len(of_source(under_settings("def program(", seed))) == 2)
    source, count, found = of_seed("rules", seed, by_setting)
    chosen = of_source(source)
    assert len(chosen) == 2
    assert found == []
    assert by_setting.total() == 2 * count
    assert all(f"`{setting}`" in by_setting.table().splitlines()[0] for setting in chosen)


@pytest.mark.slow
def test_a_search_finds_nothing():
    ended = run_process(
        [sys.executable, "-m", "tests.fuzz", "--seconds", str(SECONDS)],
        cwd=REPOSITORY,
        deadline=SECONDS + SLACK,
        OMP_NUM_THREADS="1",
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-8000:]
