"""Detection on a device: the reports, their time, and that nothing waits for the device. A test fails without the
device's scan (`plug_into_torchnan`); tests that name a rule also fail without that rule."""

from __future__ import annotations

import pytest
import torch

import torchnan

NAN, INF = float("nan"), float("inf")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


class Model(torch.nn.Module):
    """Whose second block takes the logarithm of what may be zero."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x, takes_logarithm=False):
        x = self.second(torch.tanh(self.first(x)))
        if takes_logarithm:
            x = torch.log(x * 0)
        return self.last(x).square().mean()


def training(device, steps, bad_step=-1, **options):
    """A function that trains; its findings are returned."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [torch.randn(16, 8).to(device) for _ in range(steps)]

    def run():
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            model(batch, step == bad_step).backward()
            optimizer.step()

    return run


@pytest.mark.guarantee(16)
def test_a_healthy_training_is_waited_for_as_often_as_without(machine, device, figure):
    training(device, 1)()  # whatever is made at first
    plain = machine.count(training(device, 30))
    with torchnan.detect(action="log") as watch:
        training(device, 1)()
        watched = machine.count(training(device, 30))
        stats = watch.stats()
    assert watched == plain
    assert watch.findings == []
    assert stats["checked"] > 30 * 20
    figure(f"{stats['ops']:,} operations on a device: {watched[0]} waits and {watched[1]} copies, as without")


def test_a_late_notice_names_operation_line_module_and_step(machine, device):
    run = training(device, 4, bad_step=2)
    with torchnan.detect(action="log") as watch:
        run()
        machine.synchronize()
        torch.ones(4, device=device).add_(1)  # the next operation hears of it
        heard = [finding.op for finding in watch.findings]
    assert heard == ["aten::log"]
    found = watch.first
    assert (found.kind, found.origin, found.phase, found.step) == ("inf", "op", "forward", 3)
    assert found.device == str(device)
    assert found.line == Model.forward.__code__.co_firstlineno + 3
    assert found.harm.kind == "backward"


def test_a_read_raises_where_it_is(device):
    x = torch.zeros(4, device=device)
    with pytest.raises(torchnan.NonFiniteError) as raised:
        with torchnan.detect():
            (x / x).sum().item()
    assert raised.value.finding.op == "aten::div"
    assert raised.value.finding.harm.kind == "read"


@pytest.mark.parametrize(
    "read", [torch.Tensor.tolist, torch.Tensor.cpu, lambda x: print(x)], ids=["tolist", "cpu", "print"]
)
def test_values_that_are_read_in_other_ways_are_found(device, read):
    x = torch.zeros(4, device=device)
    with torchnan.detect(action="log") as watch:
        bad = x / x
        held = read(bad)
    assert [finding.op for finding in watch.findings if finding.level == "error"] == ["aten::div"]
    del held


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", [0, 4097, -1])
def test_one_element_of_many_is_found(device, dtype, place):
    x = torch.ones(70_001, dtype=dtype)
    x[place] = NAN
    x = x.to(device)
    with torchnan.detect(action="log") as watch:
        held = x * 1
    assert [(f.origin, f.op, f.kind) for f in watch.findings] == [("input", "aten::mul", "nan")]
    zero = torch.ones(70_001, dtype=dtype)
    zero[place] = 0
    zero = zero.to(device)
    with torchnan.detect(action="log") as watch:
        held = zero.log()
    assert [(f.origin, f.op) for f in watch.findings if f.level == "error"] == [("op", "aten::log")]
    del held


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda zeros, mask: mask, []),
        (lambda zeros, mask: torch.where(zeros > 0, mask, zeros), []),
        (lambda zeros, mask: torch.cat([zeros / zeros, zeros + 1]), [("aten::div", "nan")]),
        (lambda zeros, mask: torch.cat([zeros / zeros, mask]), [("aten::div", "nan")]),
        (lambda zeros, mask: mask + zeros.log(), [("aten::log", "inf")]),
        (lambda zeros, mask: torch.cat([zeros / zeros, (zeros - 1).log()]), [("aten::div", "nan")]),
    ],
    ids=["mask", "masked", "accident", "accident and mask", "accident on a mask", "two accidents"],
)
def test_a_copy_on_the_host_keeps_the_causes_of_its_source(device, make, found):
    """Fails if the host reads the memory of the device to compare the copy with its source."""
    zeros = torch.zeros(8).to(device)
    with torchnan.detect(action="log") as watch:
        source = make(zeros, torch.full((8,), -INF).to(device))
        copy = source.cpu()
        assert watch.stats()["internal_errors"] == 0
    del source, copy
    assert [(finding.op, finding.kind) for finding in watch.findings] == found


@pytest.mark.parametrize(
    "view",
    [lambda x: x.t(), lambda x: x[:, 3:], lambda x: x[::2], lambda x: x[5], lambda x: x.unfold(1, 2, 3)],
    ids=["t", "columns", "rows", "row", "windows"],
)
def test_values_beside_a_view_are_not_reported(device, view):
    x = torch.ones(40, 41)
    view(x).fill_(2)
    x[x == 1] = NAN
    x = x.to(device)
    with torchnan.detect(action="log") as watch:
        held = view(x) * 1
    assert watch.findings == []
    del held


def test_a_mask_that_is_computed_and_kept_is_no_finding(device):
    """A scan does not know the sign of an infinity: only log(0) is a mask."""
    with torchnan.detect(action="log") as watch:
        causal = torch.log(torch.ones(5, 5, device=device).tril())
        torch.softmax(torch.ones(5, 5, device=device) + causal, -1).sum()
    assert watch.findings == []
    with torchnan.detect(action="log") as watch:
        inverse = torch.reciprocal(torch.ones(5, 5, device=device).tril())
        torch.softmax(torch.ones(5, 5, device=device) - inverse, -1).sum()
    assert [(finding.op, finding.harm.kind) for finding in watch.findings] == [("aten::reciprocal", "alive")]
    del causal, inverse


def test_a_finite_part_of_a_tensor_may_stay_alive(device):
    """Only its memory has the infinity, which nothing refers to."""
    with torchnan.detect(action="log") as watch:
        period = 1 / torch.arange(9.0).to(device)
        period = period[1:]
        assert torchnan.origin_of(period) is None
    assert watch.findings == []
    assert period.isfinite().all()


def test_masked_repaired_or_unused_values_are_not_errors(device):
    x = torch.ones(6, 6, device=device)
    mask = torch.ones(6, 6, device=device).triu(1).bool()
    with torchnan.detect(action="log") as watch:
        weights = torch.softmax(x.masked_fill(mask, -INF) * 0.5, -1)
        repaired = torch.nan_to_num(x.sub(1).div(0))
        held = weights + repaired
        x.sub(1).log()
    assert [finding.level for finding in watch.findings] == ["warning"]
    del held


def test_counts_of_alarms_and_waits(device):
    """A healthy step does not wait for a device; an alarm is handled once, and printing waits for the value."""
    x = torch.rand(64, 64).to(device) + 1
    with torchnan.detect(action="log") as watch:
        y = (x @ x).log()
        healthy = watch.stats()
        assert healthy["device_bytes"] > 0
        assert [healthy[f"device_{what}"] for what in ("alarms", "resolves", "waits")] == [0, 0, 0]
        bad = (y - y).log().sum()
        assert bad.item() == -INF
        alarmed = watch.stats()
    assert alarmed["device_alarms"] == 1
    assert alarmed["device_waits"] >= alarmed["device_resolves"] >= 1
    assert [finding.op for finding in watch.findings] == ["aten::log"]


def test_bounds_spare_most_of_the_scan(device):
    """Fails if BoundsElsewhere is not asked: nothing is proved then."""
    x = torch.randn(256, 256).to(device)
    with torchnan.detect(action="log", rescan_every=0) as watch:
        y = x
        for _ in range(8):
            y = torch.relu(y @ x).tanh()
        stats = watch.stats()
    assert stats["proved"] >= 24
    assert stats["bytes"] <= x.nbytes * 1.1
    assert watch.findings == []
    with torchnan.detect(action="log", rescan_every=1) as watch:
        y = torch.relu(x)
        stats = watch.stats()
    assert stats["proved"] == 0
    del y


def test_the_maker_of_an_argument_is_known(device):
    """The rule of a backward pass asks for it: nothing is above 0 in a log_softmax. Fails if only the host is asked."""
    x = torch.randn(64, 128).to(device)
    backward = torch.ops.aten._log_softmax_backward_data
    with torchnan.detect(action="log", rescan_every=0) as watch:
        gradient, logarithms = torch.tanh(x), torch.log_softmax(x, -1)
        before = watch.stats()["device_bytes"]
        backward(gradient, logarithms, -1, torch.float32)
        assert watch.stats()["device_bytes"] == before
        logarithms.mul_(2)
        backward(gradient, logarithms, -1, torch.float32)
        assert watch.stats()["device_bytes"] >= before + x.nbytes
    assert watch.findings == []


def test_conclusions_from_a_failed_assumption_are_void(machine, device):
    """Fails without void_proofs(): the last product is proved finite from an assumption that does not hold."""
    x = torch.full((100, 100), 1e9).to(device)
    with torchnan.detect(action="log", rescan_every=0) as watch:
        square = x * x  # 1e18; proved: 2^40
        fourth = square * square  # 1e36; 2^80
        sixth = fourth * square  # Inf; 2^120
        stats = watch.stats()
        sixth.tolist()
    assert stats["proved"] == 3 or device.type == "cuda"  # which may raise the alarm after the first
    assert [(finding.op, finding.kind) for finding in watch.findings] == [("aten::mul", "inf")]
    line = test_conclusions_from_a_failed_assumption_are_void.__code__.co_firstlineno + 6
    assert watch.first.line == line


def test_a_value_larger_than_assumed_raises_the_alarm_once(machine, device):
    """Fails without Assumptions::raise(): each step waits for the device again."""
    x = torch.full((100, 100), 20.0).to(device)

    def steps():
        for _ in range(250):  # more than are scanned at a time
            y = torch.special.i0(x)  # 4e7, and there is no rule for it
            machine.synchronize()  # what has raised the alarm is heard of by the next operation
            del y

    with torch.no_grad():
        plain = machine.count(steps)
        with torchnan.detect(action="log") as watch:
            first, second = [machine.count(steps) for _ in range(2)]  # from one place in the program
    assert watch.findings == []
    assert first > second == plain


@pytest.mark.parametrize("place", [0, 7, 8, 15, 16, 39])
def test_one_of_many_inputs_is_followed(device, place):
    """Fails without Event::more: stack() would be reported as the origin."""
    norms = [torch.ones((), device=device) for _ in range(40)]
    with torchnan.detect(action="log") as watch:
        norms[place] = (norms[place] - 2).log()
        torch.stack(norms).sum().item()
    assert [finding.op for finding in watch.findings] == ["aten::log"]
    assert [step.op for step in watch.first.lineage] == ["aten::stack", "aten::sum"]


def test_lists_are_gone_through_together(device):
    """Fails without OpPlan::pairs_lists: the first cause would be that of all."""
    values = [torch.full((3,), -1.0, device=device) for _ in range(40)]
    with torchnan.detect(action="log") as watch:
        values[3], values[30] = values[3].log(), values[30].sqrt()
        sums = torch._foreach_add(values, torch._foreach_mul(values, 2.0))
        sums[30].sum().item()
        assert [finding.op for finding in watch.findings] == ["aten::sqrt"]
        sums[3].sum().item()
    assert [finding.op for finding in watch.findings] == ["aten::sqrt", "aten::log"]


def test_a_nan_that_the_program_writes_raises_no_alarm_and_is_followed(device):
    """As on the host: the operation that computes with the value is reported, and so is the one that receives it."""
    with torchnan.detect(action="log") as watch:
        places = torch.full((4,), NAN, device=device)
        places = places.nan_to_num(0.0)
        places.sum().item()
        assert watch.findings == []
        weight = torch.nn.Parameter(torch.ones(4, device=device))
        weight.data[2] = NAN
        (weight * 2).sum().item()
    assert [(finding.kind, finding.origin) for finding in watch.findings] == [("nan", "parameter")]


def test_what_takes_only_the_shape_of_a_mask_is_not_bad(device):
    """The root of a backward pass is reported although no gradient is bad, as documented; ``zeros_like`` is not."""
    layer = torch.nn.Linear(3, 5).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x, banned = torch.randn(4, 3).to(device), torch.tensor([0, 1, 0, 0, 1]).bool().to(device)
    chosen = torch.tensor([[0], [2], [3], [0]]).to(device)
    with torchnan.detect(action="log") as watch:
        for _ in range(3):
            root = torch.log_softmax(layer(x).masked_fill(banned, float("-inf")), -1)
            optimizer.zero_grad()
            root.backward(torch.zeros_like(root).scatter_(1, chosen, 1.0))
            optimizer.step()
    assert {finding.op for finding in watch.findings} == {"aten::_log_softmax"}


def test_a_value_from_another_rank_is_reported_as_such(machine, device, two_ranks):
    x = torch.ones(4, device=device)
    with torchnan.detect(action="log") as watch:
        torch.distributed.all_reduce(x)
        machine.put(x, NAN)
        held = x * 2
    assert [(finding.kind, finding.origin) for finding in watch.findings] == [("nan", "input")]
    assert watch.first.hint.startswith("allreduce_ received it from another rank: ")
    del held


def test_memory_that_others_may_have_written_is_scanned_again(machine, device):
    """Fails if Journal::doubt() does nothing."""
    x = torch.ones(4, device=device)
    with torchnan.detect(action="log") as watch:
        y = x + 1
        bits = y.view(torch.int32)
        bits.fill_(0x7FC00000)
        held = y * 1
    found = [(finding.kind, finding.origin) for finding in watch.findings if finding.level == "error"]
    assert found == [("nan", "input")]
    del held


def test_memory_that_is_written_in_parts_is_known_in_parts(device):
    """Fails without Journal::tells_all_of(): unwritten memory would count as written."""
    cache = torch.empty(5, 4, device=device)
    with torchnan.detect(action="log") as watch:
        cache = torch.empty(5, 4, device=device)
        cache.view(torch.int32)[2:] = 0x7FC00000
        cache[:2].copy_(torch.ones(2, 4, device=device))
        held = cache @ torch.ones(4, 4, device=device)
    found = [(finding.kind, finding.origin) for finding in watch.findings if finding.level == "error"]
    assert found == [("nan", "uninit")]
    del held


def test_a_step_guard_leaves_out_the_bad_step(device):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = torchnan.StepGuard(model, optimizer, lambda model, batch: -model(batch).square().neg().log().mean())
    before = [parameter.detach().cpu().clone() for parameter in model.parameters()]
    result = guard.step(torch.full((3, 4), -100.0).to(device))
    assert not result.applied
    after = [parameter.detach().cpu() for parameter in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_origin_of_a_tensor_is_told_when_it_is_asked_for(device):
    with torchnan.detect(action="log") as watch:
        x = torch.zeros(4).to(device)
        loss = (x / x).sum()
        found = torchnan.origin_of(loss)
        assert (found.op, found.level) == ("aten::div", "note")
        assert torchnan.origin_of(x) is None
        assert watch.findings == []
        del loss
