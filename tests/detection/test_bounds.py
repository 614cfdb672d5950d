"""Bounds: a program's own rules; no stale bound hides a value; a proof gives the same findings as a scan."""

from __future__ import annotations

import ctypes
import random
import threading

import numpy as np
import pytest
import torch

import torchnan
from tests.support.bound_samples import Claim, collecting, known
from torchnan.detection.errors import DetectorWarning

# -- rules of a program


@pytest.fixture(scope="module")
def scale():
    library = torch.library.Library("torchnan_scale", "DEF")
    library.define("scale(Tensor x, float factor, int[] dims, Tensor[] more) -> (Tensor, Tensor)")
    library.impl("scale", lambda x, factor, dims, more: (x * factor, x + more[0]), "CPU")
    seen: list[tuple] = []

    def rule(*args):
        seen.append(args)
        x, factor, _, more = args
        if factor == 13:
            raise ZeroDivisionError("thirteen")
        return x.most * abs(factor), None if factor == 7 else x.most + more.most

    torchnan.register_bound("torchnan_scale::scale", rule)
    yield torch.ops.torchnan_scale.scale, seen
    library._destroy()


def test_a_rule_of_a_program_is_believed(scale):
    op, seen = scale
    seen.clear()
    with torchnan.detect(rescan_every=0) as watch:
        x, y = torch.full((5000,), 3.0), torch.ones(5000)
        before = watch.stats()["proved"]
        op(x, -2.0, [1, 2], [y])
        assert watch.stats()["proved"] == before + 2
        op(x, 7.0, [], [y])
        assert watch.stats()["proved"] == before + 3
    (bound, factor, dims, more), *_ = seen
    assert (bound, factor, dims) == (torchnan.Bound(bound.most, True, (5000,)), -2.0, [1, 2])
    assert bound.most == pytest.approx(3, rel=1e-5)
    assert more.most == pytest.approx(1, rel=1e-5)


def test_a_rule_that_raises_is_counted_and_the_result_is_read(scale):
    op, _ = scale
    with torchnan.detect(rescan_every=0) as watch, pytest.warns(DetectorWarning, match="thirteen"):
        x = torch.full((5000,), 3.0)
        before = watch.stats()["bytes"]
        op(x, 13.0, [], [x])
        assert watch.stats()["bytes"] >= before + 40000
        assert watch.stats()["internal_errors"] == 1


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("scale", "'scale' is not the name of an operator"),
        ("torchnan_scale::scale.Tensor", "is not the name of an operator"),
        (
            "torchnan_scale::scal",
            r"no operator is called 'torchnan_scale::scal': define it .* Did you mean 'torchnan_sc",
        ),
        ("torchnan_scale::scale", "'torchnan_scale::scale' has a bound rule already"),
        ("aten::mul_", "'aten::mul_' has a bound rule already"),
    ],
)
def test_a_rule_for_something_else_is_refused(scale, op, message):
    with pytest.raises(ValueError, match=message):
        torchnan.register_bound(op, lambda x: x.most)


def test_a_rule_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="rule=3 cannot be used: it takes a callable"):
        torchnan.register_bound("mylib::op", 3)


# -- a stale bound is a wrong answer

N = 5000  # more than small results, which are always scanned


def through_numpy(x):
    x.numpy()[7] = np.nan


def through_an_array_made_earlier(x):
    array = x.numpy()
    x.add_(1)
    _ = x * 2
    _ = x * 2
    array[7] = np.nan


def through_dlpack(x):
    np.asarray(torch.from_dlpack(x))[3] = np.nan


def through_its_address(x):
    ctypes.memset(x.data_ptr(), 0xFF, 64)


def through_its_storage(x):
    x.untyped_storage().copy_(torch.full((N,), float("nan")).untyped_storage())


def as_integers(x):
    x.view(torch.int32)[5] = 0x7FC00000


def as_all_integers(x):
    x.view(torch.int32).fill_(0x7FC00000)


def as_bytes(x):
    x.view(torch.uint8).bitwise_or_(0x7F)


def as_a_part_of_integers(x):
    x.view(torch.int32)[5:7].fill_(0x7FC00000)


def as_a_part_of_doubles(x):
    x.view(torch.float64)[:100].fill_(float.fromhex("0x1.fffffffffffffp+1000"))  # its low half is NaN as a float


def as_a_part_of_complex_numbers(x):
    torch.view_as_complex(x.view(-1, 2))[:100].mul_(1.5e38)


def by_a_thread_that_takes_no_part(x):
    thread = threading.Thread(target=x.fill_, args=(np.nan,))
    thread.start()
    thread.join()


def through_shared_memory(x):
    x.share_memory_()
    np.asarray(x)[1] = np.nan


def by_another_storage(x):
    x.data = torch.from_numpy(np.full(N, np.nan, dtype=np.float32))


WRITERS = [
    through_numpy,
    through_an_array_made_earlier,
    through_dlpack,
    through_its_address,
    through_its_storage,
    as_integers,
    as_all_integers,
    as_bytes,
    as_a_part_of_integers,
    as_a_part_of_doubles,
    as_a_part_of_complex_numbers,
    by_a_thread_that_takes_no_part,
    through_shared_memory,
    by_another_storage,
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_writes_behind_the_dispatcher_are_found_where_they_are_read(write):
    with torchnan.detect(action="log", rescan_every=0) as watch:
        x = torch.ones(N) * 2
        _ = x * 3  # its bound is known, and has been used
        write(x)
        y = x * 5
        _ = y.sum().item()
    (finding,) = watch.findings
    is_known = write is through_its_storage  # the origin of the NaN
    assert finding.op == ("aten::full" if is_known else "aten::mul")
    assert not is_known or finding.lineage[0].op == "aten::mul"


def test_a_buffer_that_a_thread_fills_again_and_again_is_read_again():
    buffer = torch.zeros(N)
    with torchnan.detect(action="log", rescan_every=0) as watch:
        for value in (1.0, 1.0, 1.0, np.nan):
            thread = threading.Thread(target=buffer.fill_, args=(value,))
            thread.start()
            thread.join()
            (buffer * 10).relu().sum().item()
    assert len(watch.findings) == 1


@pytest.mark.parametrize(
    "write", [torch.Tensor.mul_, torch.Tensor.copy_, torch.Tensor.addcmul_], ids=lambda f: f.__name__
)
def test_values_that_a_session_has_written_are_known_without_a_scan(write):
    """Fails when a version increase by the write itself counts as another thread's."""
    x, y = torch.ones(N), torch.ones(N)
    with torchnan.detect(rescan_every=0) as watch:
        x.add_(1)
        y.add_(1)
        for grad_mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            with grad_mode():
                write(x, y, y) if write is torch.Tensor.addcmul_ else write(x, y)
                before = watch.stats()["bytes"]
                x.neg_()
                torch._foreach_mul_([x, y], 0.5)
                x.view(50, -1).t().mul_(2)
                _ = (x * 2, x[10:] * 2)
                assert watch.stats()["bytes"] == before


def test_memory_that_is_used_again_has_no_old_bound():
    with torchnan.detect(action="log", rescan_every=0) as watch:
        for i in range(300):
            x = torch.ones(N)
            del x
            reused = torch.empty(N)
            reused.numpy()[:] = np.nan if i == 150 else 1
            _ = (reused * 2).sum().item()
    assert len(watch.findings) == 1


def test_an_operation_that_fails_halfway_leaves_no_bound():
    with torchnan.detect(rescan_every=0) as watch:
        x = torch.ones(N)
        with pytest.raises(IndexError):
            x.index_put_((torch.tensor([0, N]),), torch.tensor([3.0, 1.0]))
        before = watch.stats()["bytes"]
        _ = x * 2
        assert watch.stats()["bytes"] - before >= 4 * N


def test_a_part_that_is_written_widens_the_whole():
    claims: list[Claim] = []
    with collecting(claims):
        x = torch.ones(N)
        x[10:2000].mul_(1000)
        _ = x * 1
    assert claims[-1].most == 1000
    assert claims[-1].bound >= 1000


def test_nothing_is_known_after_a_pass_that_is_not_watched():
    w = torch.ones(N, requires_grad=True)
    with torchnan.detect(backward=False, action="log", rescan_every=0) as watch:
        w.grad = torch.ones(N)
        _ = w.grad * 2
        (w * 1e38).sum().backward()  # adds in place, unseen
        w.grad.add_(0)
        before = watch.stats()["bytes"]
        _ = w.grad * 1e30
        assert watch.stats()["bytes"] - before >= 4 * N


# -- the same findings as with scanning everything


def weird_training(seed: int, **options):
    """A few steps of a small model with an absurd scale or learning rate somewhere; the findings."""
    random_, further = random.Random(seed), random.Random(f"more of {seed}")
    torch.manual_seed(seed)
    width = random_.choice([40, 64, 72])
    layers: list[torch.nn.Module] = []
    for _ in range(random_.randint(1, 4)):
        layers.append(torch.nn.Linear(width, width))
        layers.append(random_.choice([torch.nn.Tanh, torch.nn.GELU, torch.nn.ReLU, torch.nn.SiLU, torch.nn.Softplus])())
        if random_.random() < 0.5:
            norm = random_.choice([torch.nn.LayerNorm, torch.nn.BatchNorm1d])
            if norm is torch.nn.LayerNorm and further.random() < 0.5:
                norm = torch.nn.RMSNorm
            layers.append(norm(width))
    model = torch.nn.Sequential(*layers)
    if random_.random() < 0.5:
        with torch.no_grad():
            random_.choice(list(model.parameters())).mul_(10.0 ** random_.randint(-30, 30))
    kind = random_.choice([torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
    learning_rate, form = 10.0 ** random_.randint(-4, 25), {"foreach": random_.random() < 0.5}
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        choice = random.Random(f"form of {seed}")
        form = {**choice.choice([form, {"fused": True}]), "amsgrad": choice.random() < 0.5}
    optimizer = kind(model.parameters(), lr=learning_rate, **form)
    batch = torch.randn(48, width) * 10.0 ** random_.randint(-3, 18)
    loss_of = random_.choice(
        [
            lambda y: y.square().mean(),
            lambda y: y.log_softmax(-1).mean(),
            lambda y: (y @ y.T).softmax(-1).sum(),
            lambda y: y.exp().sum().log(),
            lambda y: (y / y.std(0)).abs().mean(),
        ]
    )
    is_clipped = further.random() < 0.3
    with torchnan.detect(action="log", **{"rescan_every": 0, **options}) as watch:
        for _ in range(random_.randint(2, 6)):
            optimizer.zero_grad()
            loss_of(model(batch)).backward()
            if is_clipped:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    facts = [
        (f.kind, f.op, f.node, f.module, f.line, f.step, f.nan, f.posinf, f.neginf, f.harm.kind) for f in watch.findings
    ]
    return facts, watch.stats()


def assert_the_same_as_reading_everything(seed: int) -> int:
    found, stats = weird_training(seed)
    exact, _ = weird_training(seed, rescan_every=1)
    assert found == exact, f"weird_training({seed})"
    assert stats["internal_errors"] == 0, f"weird_training({seed})"
    return len(found)


@pytest.mark.breadth(1)
@pytest.mark.parametrize("block", range(4))
def test_absurd_trainings_are_checked_as_if_everything_were_read(block):
    with_findings = sum(assert_the_same_as_reading_everything(seed) > 0 for seed in range(10 * block, 10 * block + 10))
    assert 1 < with_findings < 9


def test_a_variance_below_zero_proves_nothing():
    """Fails when the rule of native_batch_norm treats a value that may be zero as nonzero."""
    norm = torch.nn.BatchNorm1d(64).eval()
    norm.running_var[3] = -1.0
    with torchnan.detect(action="log", rescan_every=0) as watch:
        norm(torch.randn(128, 64)).sum().item()
    assert watch.first.op == "aten::native_batch_norm"


@pytest.mark.parametrize("rescan_every", [0, 1])
@pytest.mark.parametrize("compute", [torch.tanh, torch.sin, torch.clone, torch.sum, lambda x: x * 2, lambda x: x + x])
def test_a_sparse_tensor_is_not_bounded_by_its_stored_values(compute, rescan_every):
    """Entries with the same index add up. Fails without is_plain(): rules would ask for its size, which throws."""
    twice = torch.sparse_coo_tensor([[0, 0]], [3e38, 3e38], (10000,), check_invariants=True)
    with torchnan.detect(rescan_every=rescan_every) as watch:
        compute(torch.eye(100).to_sparse())
    assert watch.findings == []
    assert watch.stats()["internal_errors"] == 0
    with torchnan.detect(action="log", rescan_every=rescan_every) as watch:
        twice.coalesce().to_dense().tolist()
    assert watch.first.op == "aten::_coalesce"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_hundreds_of_absurd_trainings_are_checked_as_if_everything_were_read(block):
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        assert_the_same_as_reading_everything(seed)


# -- counts: they do not depend on the machine


def bytes_of_a_step(name: str) -> dict[str, int]:
    from benchmarks import workloads

    torch.manual_seed(0)
    workload = workloads.ALL[name]()
    with torchnan.detect(rescan_every=0) as watch:
        for _ in range(3):
            workload.step()
        before = watch.stats()
        workload.step()
        after = watch.stats()
    assert after["internal_errors"] == 0
    return {
        key: after[key] - before[key] for key in ("bytes", "bytes_scanned_unknown", "bytes_proved", "checked", "proved")
    }


@pytest.mark.breadth(1)
@pytest.mark.parametrize("name", ["gpt2", "bert", "resnet50", "llama", "t5"])
def test_a_twentieth_of_the_bytes_that_a_step_writes_is_read(name):
    counted = bytes_of_a_step(name)
    written = counted["bytes"] - counted["bytes_scanned_unknown"] + counted["bytes_proved"]
    assert counted["bytes"] <= 0.055 * written


def test_a_sample_of_n_reads_every_result_once_in_n_steps():
    x = torch.ones(100, 100)

    def bytes_read(steps: int, rescan_every: int) -> int:
        with torchnan.detect(rescan_every=rescan_every) as watch:
            y = x * 1
            y = x * 1
            for step in (-2, -1):  # the first step is over
                watch.mark_step(step)
            before = watch.stats()["bytes"]
            for step in range(steps):
                watch.mark_step(step)
                for _ in range(10):
                    y = y * 0.5
            return watch.stats()["bytes"] - before

    assert bytes_read(5, rescan_every=0) == 0
    assert bytes_read(5, rescan_every=1) == 5 * 10 * 40000
    assert bytes_read(5, rescan_every=5) == 10 * 40000
    assert bytes_read(10, rescan_every=5) == 20 * 40000


def test_a_sample_finds_unobserved_writes():
    """Not visible to any hook: an address that was handed out before detection began."""
    x = torch.ones(N)
    memory = (ctypes.c_float * N).from_address(x.data_ptr())
    with torchnan.detect(action="log", rescan_every=2) as watch:
        for step in range(4):
            watch.mark_step(step)
            x.mul_(1)
            y = known(x) * 2
            memory[5] = np.nan
            _ = (y * 2).sum().item()
    assert len(watch.findings) == 1


def test_small_elements_of_a_list_are_scanned_without_a_bound():
    """Fails when a rule is evaluated for each element of a list of small tensors, which costs as much as the call."""
    small, large = [torch.ones(16) for _ in range(3)], torch.ones(8192)
    with torchnan.detect(rescan_every=0) as watch:
        torch._foreach_mul_(small, 0.5)
        assert watch.stats()["bytes_rescanned"] == 0  # counts scans of tensors with a bound
        torch._foreach_mul_([*small, large], 0.5)
        large.mul_(0.5)
    assert watch.stats()["proved"] >= 1


def loosely_bounded(columns: int) -> torch.Tensor:
    """Zeros, about which only the large terms of a difference are known."""
    large = torch.randn(512, columns) * 1e20
    return large - large


def test_much_smaller_arguments_are_read_in_place_of_a_result():
    with torchnan.detect(rescan_every=0) as watch:
        x, loose = torch.ones(16, 2048), loosely_bounded(16)
        before = watch.stats()
        product = loose @ x
        product = product * product
        after = watch.stats()
    assert after["bytes"] - before["bytes"] == loose.nbytes
    assert after["proved"] - before["proved"] == 2


def test_arguments_that_are_not_much_smaller_are_left_alone():
    with torchnan.detect(rescan_every=0) as watch:
        x, loose = torch.ones(512, 512), loosely_bounded(512)
        before = watch.stats()["bytes"]
        assert (loose @ x).shape == (512, 512)
        assert watch.stats()["bytes"] == before


def test_a_value_that_an_argument_was_given_unseen_is_found_when_it_is_read_in_place_of_the_result():
    x = torch.ones(512, 16)
    array = x.numpy()
    with torchnan.detect(action="log", rescan_every=0) as watch:
        x.copy_(loosely_bounded(16))
        array[0, 0] = np.nan
        assert (x @ torch.ones(16, 2048)).isnan().any()
    assert len(watch.findings) == 1


# -- memory that another tensor shows in another way


def used(x: torch.Tensor) -> torch.Tensor:
    """The same memory, whose bound and sign are now known."""
    for _ in range(2):
        x * 1.0
    x.sqrt()
    return x


def crow_and_columns(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n + 1), torch.zeros(n, dtype=torch.long)


SPARSE = {
    "COO": lambda values: torch.sparse_coo_tensor(torch.arange(len(values))[None], values, check_invariants=True),
    "CSR": lambda values: torch.sparse_csr_tensor(*crow_and_columns(len(values)), values, check_invariants=True),
}


@pytest.mark.parametrize(
    ("layout", "write"),
    [
        ("COO", lambda sparse: sparse.div_(1e-30)),
        ("COO", lambda sparse: sparse.data.div_(1e-30)),
        ("CSR", lambda sparse: sparse.mul_(1e30)),
    ],
)
def test_writing_a_sparse_tensor_ends_the_bound_of_its_values(layout, write):
    watch = torchnan.detect(action="log", when="origin", rescan_every=0)
    with watch:
        values = used(torch.ones(5000) * 1.0)
        write(SPARSE[layout](values))
        product = values * 1e10
    assert not torch.isfinite(product).all()
    assert [finding.op for finding in watch.findings] == ["aten::mul"]


@pytest.mark.parametrize("layout", SPARSE)
def test_a_sparse_tensor_that_is_negated_blames_no_rule(layout):
    watch = torchnan.detect(action="log", when="origin", rescan_every=1)
    with watch:
        values = used(torch.ones(5000) * 1.0)
        SPARSE[layout](values).neg_()
        (values * 1e10).sqrt()
    assert watch.stats()["internal_errors"] == 0


@pytest.mark.parametrize("copy", [torch.clone, lambda x: torch.empty(5000).copy_(x)])
def test_a_view_with_the_opposite_signs_of_its_memory_is_not_taken_for_positive(copy):
    watch = torchnan.detect(action="log", when="origin", rescan_every=0)
    with watch:
        numbers = torch.complex(torch.ones(5000), torch.ones(5000)) * 2
        used(torch.view_as_real(numbers))
        copy(numbers.conj().imag).sqrt()
    assert [(finding.op, finding.kind) for finding in watch.findings] == [("aten::sqrt", "nan")]


# -- a kernel that reads what it has written


def with_own_column(compute, value=1e12, size=80):
    def run():
        x = torch.full((size, size), value)
        compute(x, x[:, :1])
        return x

    return run


def every_second():
    x = torch.full((12000,), 1e10)
    torch.mul(x[:6000], x[:6000], out=x[::2])
    return x


def product_in_place_of_a_factor():
    x, y, c = torch.ones(100, 100), torch.full((100, 100), 1e9), torch.full((100, 100), 1e30)
    return torch.addmm(c, x, y, out=x)


@pytest.mark.parametrize(
    "compute",
    [
        with_own_column(lambda x, column: x.mul_(column), 1e15, 300),
        with_own_column(lambda x, column: x.addcmul_(column, column)),
        with_own_column(lambda x, column: torch._foreach_addcmul_([x], [column], [column])),
        every_second,
        product_in_place_of_a_factor,
    ],
    ids=["mul_", "addcmul_", "_foreach_addcmul_", "mul(out=)", "addmm(out=)"],
)
def test_a_kernel_that_reads_what_it_has_written_proves_nothing(compute):
    """PyTorch refuses most overlaps, but not those that take long to find out."""
    with torchnan.detect(action="log", rescan_every=0) as watch:
        held = compute()
    assert not held.isfinite().all()
    assert [finding.harm.kind for finding in watch.findings] == ["alive"]


def test_the_same_view_twice_proves_as_much_as_two_tensors():
    with torchnan.detect(action="log", rescan_every=0) as watch:
        x, y = torch.full((5000,), 2.0), torch.full((5000,), 3.0)
        before = watch.stats()["bytes"]
        x.mul_(x).addcmul_(x, x)
        torch._foreach_mul_([x, y], [x, y])
        assert watch.stats()["bytes"] == before


# -- the statistics of another tensor


@pytest.mark.parametrize(
    ("shape", "forward"),
    [
        ((100, 100), lambda h: torch.nn.functional.layer_norm(h, [100])),
        ((4, 8, 32, 32), lambda h: torch.nn.functional.group_norm(h, 2)),
        ((40, 8, 8, 8), lambda h: torch.nn.functional.batch_norm(h, None, None, training=True)),
    ],
    ids=["layer norm", "group norm", "batch norm"],
)
def test_a_backward_pass_does_not_rely_on_the_statistics_of_other_values(shape, forward):
    """Values that change through `.data` change no version that autograd checks."""
    torch.manual_seed(0)
    with torchnan.detect(action="log", rescan_every=0) as watch:
        x = torch.full(shape, 3.0, requires_grad=True)
        h = x * 1
        y = forward(h)
        h.data.copy_(torch.randn(shape) * 1e10)
        y.backward(torch.full(shape, 1e-6))
        held = x.grad * x.grad
    assert not held.isfinite().all()
    assert len(watch.findings) == 1


def test_the_backward_pass_of_attention_does_not_rely_on_the_scores_of_other_queries():
    torch.manual_seed(0)
    with torchnan.detect(action="log", rescan_every=0) as watch:
        queries, keys, values = (torch.randn(1, 2, 64, 64) for _ in range(3))
        h = queries.requires_grad_() * 1
        y = torch.nn.functional.scaled_dot_product_attention(h, keys, values)
        h.data.mul_(100)
        y.backward(torch.ones_like(y))
    assert not queries.grad.isfinite().all()
    assert [finding.op for finding in watch.findings] == ["aten::_scaled_dot_product_flash_attention_for_cpu_backward"]


# -- subnormal numbers


def test_a_thread_that_flushes_subnormal_numbers_does_not_take_them_for_zero():
    """Fails if the scan converts them to float64: that flushes them, too."""
    small = torch.full((5000,), 1e-39)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush them")
    try:
        with torchnan.detect(action="log", rescan_every=0) as watch:
            torch.optim.SGD([torch.nn.Parameter(torch.ones(3))]).step()  # every result of the first step is read
            x = small.clone()
            for _ in range(2):
                x * 1.0  # at the second request of its bound, x is scanned
            torch.set_flush_denormal(False)
            held = x * 3e38 * 1e30 * 1e30
    finally:
        torch.set_flush_denormal(False)
    assert not held.isfinite().all()
    assert [finding.kind for finding in watch.findings] == ["inf"]


# -- integers that no int64 can hold


@pytest.mark.parametrize(
    "compute",
    [
        lambda: torch.full((5000,), 2**63, dtype=torch.float32),
        lambda: torch.full((5000,), 2**63, dtype=torch.uint64),
        lambda: torch.ones(5000).fill_(2**64 - 1),
        lambda: torch.ones(5000).masked_fill(torch.ones(5000) > 0, 2**63),
        lambda: torch.add(torch.ones(5000), torch.ones(5000), alpha=2**63),
        lambda: torch.ones(5000).clamp(0, 2**63),
        lambda: torch.ones(5000).pow(2**63),
        lambda: torch.ones(5000).eq(2**63),
    ],
    ids=["full", "full of integers", "fill_", "masked_fill", "add", "clamp", "pow", "eq"],
)
def test_an_integer_beyond_int64_is_passed_on(compute):
    plain = compute()
    with torchnan.detect() as watch:
        watched = compute()
    assert torch.equal(plain, watched)
    assert watch.stats()["internal_errors"] == 0
