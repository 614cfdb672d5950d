"""Streams, memory and graphs as GPU programs use them, on the lagging device: no freed memory is read, no finite value
is reported, and nothing waits."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import threading
import types

import pytest
import torch

import torchnan
from tests.devices.conftest import NAME, of_kernel
from tests.devices.lagging import SCANNER

NAN, INF = float("nan"), float("inf")
N = 1 << 14

pytestmark = pytest.mark.skipif(NAME != "lagging", reason="a GPU cannot be made to lag at will")


def errors(watch):
    return [(finding.kind, finding.origin, finding.op) for finding in watch.findings if finding.level == "error"]


def assert_silent_and_as_often(machine, step):
    """A correct step is silent under detection, also while its result is held at the end, and waits no more often."""
    plain = machine.count(step)
    with torchnan.detect(action="log") as watch:
        step()
        watched = machine.count(step)
        held = step()
    assert watched == plain
    assert watch.findings == []
    del held


def assert_silent_and_nothing_stale_is_read(machine, step):
    """A correct step is silent under detection and waits no more often; no scan reads memory that was given back."""
    plain = machine.count(step)
    with torchnan.detect(action="log") as watch:
        step()
        watched = machine.count(step)
        assert machine.stale_reads() == 0
    assert watched == plain
    assert watch.findings == []


@pytest.fixture
def ints(device, machine):
    """Integers that are NaN if they are read as bfloat16 or float32."""
    made = torch.full((N // 2,), -1, dtype=torch.int32).to(device)
    machine.synchronize()
    return made


def stream(device):
    return torch.Stream(device=device)


def default_stream(device):
    return torch.Stream(stream_id=0, device_index=device.index, device_type=20)


# -- memory that is given back


def test_memory_that_a_storage_gives_back_is_not_read_by_a_scan_that_waits(machine, device, ints):
    """Like FSDP2: gather, use, reshard by resize_(0); the block is then reused for something else."""
    ones = torch.ones(N, dtype=torch.bfloat16).to(device)

    def step():
        unsharded = torch.special.i0e(ones)  # no rule: it is scanned
        y = unsharded * ones + ones
        unsharded.untyped_storage().resize_(0)
        other = torch.empty(N // 2, dtype=torch.int32, device=device)
        other.copy_(ints)
        return y.float().sum().item()

    assert_silent_and_nothing_stale_is_read(machine, step)


def test_memory_that_is_given_back_is_not_scanned_when_an_assumption_fails(machine, device):
    """On a GPU: a kernel at address 0, just when a NaN is to be reported."""
    big = torch.full((200, 200), 20.0).to(device)
    ones = torch.ones(200, 200).to(device)
    machine.reset_counts()
    with torchnan.detect(action="log") as watch:
        large = torch.special.i0(big)  # 4e7 > 2^20
        activation = torch.tanh(large)  # proved
        activation.untyped_storage().resize_(0)  # offloaded
        machine.synchronize()
        ones.sum().item()
        assert machine.stale_reads() == 0
        assert watch.stats()["internal_errors"] == 0
    assert watch.findings == []


def test_a_bad_tensor_that_is_given_back_is_reported_without_its_values(machine, device):
    with torchnan.detect(action="log") as watch:
        bad = torch.zeros(64, device=device).log()
        total = bad.sum()
        bad.untyped_storage().resize_(0)
        total.item()
        assert watch.stats()["internal_errors"] == 0
    assert errors(watch) == [("inf", "op", "aten::log")]


def test_memory_written_without_an_operation_is_scanned_before(machine, device):
    """Like Triton and ctypes, which take the address first."""
    with torchnan.detect(action="log") as watch:
        x = torch.special.i0e(torch.ones(64, device=device))
        address = x.data_ptr()
        machine.synchronize()
        ctypes.c_float.from_address(address).value = NAN
        (x * 2).sum().item()
    assert errors(watch) == [("nan", "input", "aten::mul")]


# -- streams


def test_memory_of_another_stream_is_read_before_the_event_that_frees_it(machine, device, ints):
    """Like FSDP2: one stream gathers, another reads, and events say when the memory may be reused."""
    main, gather = default_stream(device), stream(device)
    weight = torch.ones(N, dtype=torch.bfloat16).to(device)
    machine.synchronize()

    def step():
        with gather:
            gathered = torch.empty(N, dtype=torch.bfloat16, device=device)
            gathered.view(torch.int16).copy_(weight.view(torch.int16))  # a collective that torchnan does not see
        main.wait_stream(gather)
        y = gathered * weight  # the copy out
        event = main.record_event()
        del gathered
        with gather:
            gather.wait_event(event)
            other = torch.empty(N // 2, dtype=torch.int32, device=device)
            other.copy_(ints)
        machine.run(gather, 100)  # at the same time as the remaining work of the main stream
        return y.float().sum().item()

    assert_silent_and_nothing_stale_is_read(machine, step)


@of_kernel
@pytest.mark.parametrize(
    "write",
    [lambda x: x.atan_(), lambda x: torch.atan(x, out=x), lambda x: torch._foreach_lgamma_([x])],
    ids=["in place", "out", "list"],
)
def test_in_place_writes_are_scanned_with_the_operation(machine, device, write):
    x = torch.ones(64).to(device)
    machine.synchronize()
    with torchnan.detect(action="log", rescan_every=1):
        write(x)
        machine.reset_counts()
        write(x)
        assert machine.scan_launches() == 1


@of_kernel
def test_new_results_on_the_default_stream_wait_and_those_of_others_do_not(machine, device):
    x = torch.ones(64).to(device)
    other = stream(device)
    machine.synchronize()
    with torchnan.detect(action="log", rescan_every=1):
        held = [torch.atan(x)]
        machine.reset_counts()
        held.append(torch.atan(x))
        assert machine.scan_launches() == 0
        with other:
            held.append(torch.atan(x))
        assert machine.scan_launches() == 1


def test_a_stream_that_is_not_current_keeps_its_batch(machine, device):
    """Switching streams launches nothing where a program has recorded its events already."""
    x = torch.ones(64).to(device)
    machine.synchronize()
    with torchnan.detect(action="log", rescan_every=1):
        held = [torch.atan(x) for _ in range(3)]
        machine.reset_counts()
        with stream(device):
            held.append(torch.empty(3, device=device))
        assert machine.scan_launches() == 0


ORDERS = pytest.mark.parametrize("first", ["default", "side"])


def run_first(machine, device, side, first):
    """Runs a stream as far as the other lets it, and then the rest."""
    machine.run(side if first == "side" else default_stream(device), 10**6)
    machine.synchronize()


@ORDERS
@pytest.mark.parametrize("is_full", [False, True], ids=["waiting", "launched by another call"])
def test_a_write_on_another_stream_waits_for_the_scan_that_has_waited(machine, device, first, is_full):
    """The event of the program is recorded before the batch is launched, so it does not cover the scan."""
    main, side = default_stream(device), stream(device)
    ones, zeros = torch.ones(64).to(device), torch.zeros(64).to(device)
    machine.synchronize()
    with torchnan.detect(action="log", rescan_every=1) as watch:
        result = torch.special.i0e(ones)
        side.wait_stream(main)
        if is_full:
            held = [torch.atan(ones) for _ in range(110)]
        with side:
            result.div_(zeros)
        run_first(machine, device, side, first)
        main.wait_stream(side)
        result.sum().item()
    assert errors(watch) == [("inf", "op", "aten::div_")]
    assert not is_full or held


@ORDERS
def test_scratch_values_on_another_stream_are_not_those_of_the_scan(machine, device, first):
    main, side = default_stream(device), stream(device)
    ones = torch.ones(64).to(device)
    machine.synchronize()
    with torchnan.detect(action="log") as watch:
        result = torch.special.i0e(ones)
        side.wait_stream(main)
        with side:
            result.fill_(NAN)
            result.zero_()
        if first == "side":
            machine.run(side, 3)
        machine.run(main, 10**6)
        machine.synchronize()
        main.wait_stream(side)
        result.sum().item()
    assert watch.findings == []


@ORDERS
def test_a_kernel_on_another_stream_waits_for_the_scan_that_has_waited(machine, device, first):
    """Like Triton's, which takes the address first."""
    main, side = default_stream(device), stream(device)
    ones = torch.ones(64).to(device)
    machine.synchronize()
    put_nan = ctypes.CFUNCTYPE(None, ctypes.c_int64)(
        lambda address: setattr(ctypes.c_float.from_address(address), "value", NAN)
    )
    with torchnan.detect(action="log") as watch:
        result = torch.special.i0e(ones)
        side.wait_stream(main)
        with side:
            machine.enqueue(put_nan, result.data_ptr())
        run_first(machine, device, side, first)
        main.wait_stream(side)
        (result * 2).sum().item()
    assert errors(watch) == [("nan", "input", "aten::mul")]


# -- copies in the background


def test_a_copy_in_the_background_is_not_read_before_it_is_made(machine, device):
    x = torch.full((N,), 1.0).to(device)
    machine.synchronize()
    host = torch.full((N,), NAN)  # the old contents of the buffer
    with torchnan.detect(action="log") as watch:
        host.copy_(x, non_blocking=True)
        machine.synchronize()
        assert (host + 0)[0].item() == 1
    assert watch.findings == []


def test_a_copy_in_the_background_proves_nothing(machine, device):
    x = torch.full((N,), 1e30).to(device)
    machine.synchronize()
    host = torch.zeros(N)
    with torchnan.detect(action="log") as watch:
        host.copy_(x, non_blocking=True)
        machine.synchronize()
        held = host * 1e30
    assert errors(watch) == [("inf", "op", "aten::mul")]
    del held


# -- collectives


def gather_into_tensor(x, out):
    torch.distributed.all_gather_into_tensor(out, x)


def gather_list(x, out):
    torch.distributed.all_gather(list(out.chunk(2)), x)


def exchange(x, out):
    torch.distributed.all_to_all_single(out, torch.cat([x, x]))


def receive(x, out):
    torch.distributed.recv(out, 1)


@pytest.mark.parametrize("collective", [gather_into_tensor, gather_list, exchange, receive], ids=lambda f: f.__name__)
def test_memory_of_a_pending_collective_is_not_read(machine, device, two_ranks, collective):
    x = torch.ones(512).to(device)
    junk = torch.full((1024,), -1, dtype=torch.int32).to(device)
    machine.synchronize()
    del junk  # whose block is given out again

    def step():
        out = torch.empty(1024, device=device)
        collective(x, out)
        machine.synchronize()
        ctypes.memset(out.data_ptr(), 0, 4096)  # as NCCL would
        (out * 2).sum().item()
        return out

    assert_silent_and_as_often(machine, step)


def test_the_output_of_a_collective_loses_its_old_bound(machine, device, two_ranks):
    """Fails if the output keeps the bound of the program's earlier values there."""
    x = torch.ones(512).to(device)
    with torchnan.detect(action="log") as watch:
        out = torch.zeros(1024, device=device)
        torch.distributed.all_to_all_single(out, torch.cat([x, x]))
        machine.put(out, NAN)
        torch.tanh(out).sum().item()
    assert errors(watch) == [("nan", "input", "aten::tanh")]
    assert "received it from another rank" in watch.first.hint


def test_the_copy_in_of_fsdp2_returns_uninitialized_memory(machine, device, two_ranks):
    import torch.distributed.fsdp._fully_shard._fsdp_collectives  # registers fsdp::*

    parts = [torch.ones(8).to(device), torch.ones(8).to(device)]
    junk = torch.full((32,), -1, dtype=torch.int32).to(device)
    machine.synchronize()
    del junk

    def step():
        out = torch.empty(32, device=device)
        given, out = torch.ops.fsdp.all_gather_copy_in(parts, out, [8, 8], 16, 0)
        torch.distributed.all_gather_into_tensor(out, given)
        machine.synchronize()
        ctypes.memset(out.data_ptr(), 0, 128)
        (out * 2).sum().item()

    plain = machine.count(step)
    with torchnan.detect(action="log") as watch:
        step()
        watched = machine.count(step)
    assert watched == plain
    assert watch.findings == []


# -- graphs


def test_a_capture_takes_nothing_in_that_waits_elsewhere(machine, device, ints):
    """A scan that waits must not become a part of the graph: it would read its memory at every replay."""
    x = torch.full((N // 2,), 0.5).to(device)
    side = stream(device)
    machine.synchronize()
    with torchnan.detect(action="log", rescan_every=1) as watch:
        for current in (default_stream(device), side):
            with current:
                waiting = torch.atan(x)
                with machine.capture(current) as graph:
                    out = torch.atan(x)
                del waiting
                machine.synchronize()
                other = torch.empty(N // 2, dtype=torch.int32, device=device)
                other.copy_(ints)
                machine.synchronize()
                for _ in range(3):
                    graph.replay()
                    machine.synchronize()
                    (x + 1).sum()
                assert bool(torch.isfinite(out.cpu()).all())
    assert watch.findings == []


@of_kernel
def test_a_warm_up_leaves_its_outputs_alone_in_the_pool(machine, device):
    """CUDAGraph trees compare their pool with the outputs before they capture, and fail if there is more in it. Fails
    if a scan of another stream waits: it keeps its tensor."""
    x = torch.full((64,), 0.5).to(device)
    side = stream(device)
    machine.synchronize()
    with torchnan.detect(action="log", rescan_every=1) as watch:
        with side:
            for _ in range(2):
                before = machine.live_blocks(side)
                out = torch.atan(torch.atan(x) + 1)
                assert machine.live_blocks(side) == before + 1
                del out
                assert machine.live_blocks(side) == before
    assert watch.findings == []


@of_kernel
def test_a_replay_is_reported_with_the_operation_that_was_captured(machine, device):
    x = torch.ones(64).to(device)
    side = stream(device)
    machine.synchronize()
    with torchnan.detect(action="log") as watch:
        with side:
            with machine.capture(side) as graph:
                result = x.log().sum()
        for replay in range(5):
            if replay == 4:
                x.fill_(-1)
                machine.synchronize()
            graph.replay()
            machine.synchronize()
            assert errors(watch) == []
        result.item()
    assert errors(watch) == [("nan", "op", "aten::log")]


def test_writes_of_a_graph_are_not_bounded_by_writes_before_its_replay(machine, device):
    """Like a gradient that is set to zero between replays, and read after them: a replay is not an observable
    operation."""
    x = torch.ones(N).to(device)
    side = stream(device)
    machine.synchronize()
    with torchnan.detect(action="log") as watch:
        with side:
            with machine.capture(side) as graph:
                x.add_(1e30)
        machine.synchronize()
        x.zero_()
        machine.synchronize()
        graph.replay()
        machine.synchronize()
        assert errors(watch) == []
        (x * x).sum().item()
    assert errors(watch) == [("inf", "op", "aten::mul")]


def test_graphs_beyond_the_recorded_events_are_counted_and_not_scanned(machine, device, ints):
    x = torch.full((8,), 0.5).to(device)
    side = stream(device)
    machine.synchronize()
    with torchnan.detect(action="log") as watch:
        with side:
            for _ in range(18):
                with machine.capture(side):
                    outs = [torch.atan(x) for _ in range(1000)]
                machine.synchronize()
        del outs
        held = torch.empty(8, dtype=torch.int32, device=device).fill_(-1)
        machine.reset_counts()
        (x + 1).add_(1)
        machine.synchronize()
        assert machine.count(lambda: x + 1)[0] == 0
        skipped = watch.stats()["skipped"]["device"]
    if SCANNER == "kernel":
        assert 18_000 - (1 << 14) <= skipped <= 18_000
    else:
        assert skipped == 36_000  # each result, and each argument
    assert watch.findings == []
    del held


def test_a_scanner_that_cannot_be_made_during_a_capture_is_made_later(machine):
    other = torch.device("lagging:1")
    side = torch.Stream(device=other)
    x = torch.zeros(64).to(other)
    machine.synchronize()
    with torchnan.detect(action="log") as watch:
        with side:
            with machine.capture(side):
                machine.fail_next_scanner()
                x + 1
        machine.synchronize()
        (x / x).sum().item()
    assert errors(watch) == [("nan", "op", "aten::div")]


# -- launches that the device refuses


@of_kernel
@pytest.mark.filterwarnings("ignore:torchnan. checking arguments on a device failed")
def test_a_gradient_whose_scan_is_refused_is_scanned_at_the_step(machine, device):
    parameter = torch.ones(8).to(device).requires_grad_()
    optimizer = torch.optim.SGD([parameter])
    with torchnan.detect(action="log") as watch:
        zeros = torch.zeros(8).to(device)
        parameter.grad = zeros / zeros
        machine.refuse_scans(1)
        zeros.add_(1)  # launches the scans that wait, of the gradient too
        optimizer.step()
        machine.synchronize()
    assert watch.first.harm.kind == "gradient"
    assert watch.stats()["internal_errors"] == 1


# -- infinities by design


def test_the_padding_of_attentions_logsumexp_raises_no_alarm(machine, device):
    """Memory-efficient attention pads it to a multiple of 32 with +inf, and its backward pass reads it."""
    library = torch.library.Library("aten", "IMPL")

    def attend(query, key, value, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
        lse = torch.full((1, 1, 32), INF).to(query.device)
        return torch.empty_like(query).fill_(1.0), lse, torch.zeros(()), torch.zeros(())

    def attend_backward(grad, query, key, value, bias, out, lse, *rest, **options):
        return grad * 1, grad * 1, grad * 1, None

    library.impl("_scaled_dot_product_efficient_attention", attend, "PrivateUse1")
    library.impl("_scaled_dot_product_efficient_attention_backward", attend_backward, "PrivateUse1")
    q = torch.ones(1, 1, 8, 4).to(device)
    none = torch.zeros(()).to(device)

    def step():
        op = torch.ops.aten._scaled_dot_product_efficient_attention
        out, lse, *rest = op(q, q, q, None, True)
        back = torch.ops.aten._scaled_dot_product_efficient_attention_backward
        grads = back(out, q, q, q, none, out, lse, *rest, 0.0, [True] * 4)
        grads[0].sum().item()
        return lse

    assert_silent_and_as_often(machine, step)
    library._destroy()


# -- optimizers


def test_a_bad_gradient_is_reported_at_the_step_that_uses_it(machine, device):
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8).to(device)
    before = model.weight.detach().cpu().clone()
    with torchnan.detect() as watch:
        model(x).sum().backward()
        with torch.no_grad():
            model.weight.grad.div_(0)
        machine.synchronize()
        torch.ones(4, device=device).add_(1)
        with pytest.raises(torchnan.NonFiniteError) as raised:
            optimizer.step()
    assert raised.value.finding.harm.kind == "gradient"
    assert raised.value.finding.op == "aten::div_"
    assert torch.equal(before, model.weight.detach().cpu())
    assert len(watch.findings) == 1


def test_writes_of_a_step_are_scanned_when_it_ends(machine, device):
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(4, 8).to(device)
    with torchnan.detect(action="log") as watch:
        model(x).sum().backward()
        with torch.no_grad():
            model.weight.grad.div_(0)
        optimizer.step()
        optimizer.zero_grad()
        machine.synchronize()
        torch.ones(4, device=device).add_(1)
        heard = [(finding.op, finding.harm.kind) for finding in watch.findings]
    assert heard == [("aten::div_", "gradient")]


def test_an_error_is_not_raised_between_two_operations(machine, device):
    """Nothing catches it there, and half of the weights are written: it is raised at the next harm."""
    x = torch.zeros(4).to(device)
    with torchnan.detect() as watch:
        (x / x).sum()
        loss = (x / x).sum().requires_grad_()
        with pytest.raises(torchnan.NonFiniteError):
            loss.backward()
            machine.synchronize()
            for _ in range(3):
                x.add_(1)  # the first hears of it
            heard = len(watch.findings)
            x.sum().item()
    assert heard == 1


# -- the window of events


@pytest.mark.parametrize(("lists", "is_recorded"), [(10, True), (60, False)])
def test_an_origin_older_than_the_window_is_reported_as_such(machine, device, lists, is_recorded):
    x = torch.zeros(4).to(device)
    parameters, gradients = ([torch.ones(4).to(device) for _ in range(500)] for _ in range(2))
    machine.synchronize()
    with torchnan.detect(action="log") as watch, torch.no_grad():
        bad = x / x
        for _ in range(lists):
            torch._foreach_add_(parameters, gradients)
        (bad * 3).sum().item()
    assert len(errors(watch)) == 1
    if is_recorded:
        assert errors(watch) == [("nan", "op", "aten::div")]
    else:
        assert watch.first.hint.startswith(
            "the operation that made it is older than the recorded operations on devices"
        )


def test_an_alarm_is_waited_for_once(machine, device):
    """Fails if the host polls on while the alarm is being reset."""
    x = torch.full((100, 100), 20.0).to(device)
    y = torch.ones(8).to(device)
    machine.synchronize()
    with torchnan.detect(action="log"):
        large = torch.special.i0(x)  # above the assumed bound: an alarm without a NaN
        for _ in range(120):  # as many as go out together
            y + 1
        machine.synchronize()
        waits, _ = machine.count(lambda: [y + 1 for _ in range(6)])
    assert waits == 1
    del large


def test_repeated_values_are_read_once(machine, device):
    x = torch.ones(1, 4).to(device).expand(1 << 20, 4)
    with torchnan.detect(action="log", rescan_every=1) as watch:
        held = x.sum()
    assert watch.findings == []
    del held


# -- threads and processes


@pytest.fixture
def ends():
    """Ends the process where a test hangs: the thread that would fail is one of those that do."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def run_beside(work, other, rounds):
    """Runs `work` a number of times while another thread repeats `other`. Both must end."""
    is_over = threading.Event()
    turns = [0]

    def repeat():
        while not is_over.is_set():
            other()
            turns[0] += 1

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    for round_ in range(rounds):
        work(round_)
    is_over.set()
    thread.join()
    return turns[0]


@of_kernel  # the simulated device asks Python for the shape of a norm
def test_the_gil_is_not_waited_for_under_a_lock(machine, device):
    """Counts each reference to a Python object that PyTorch makes or drops for a thread without the GIL."""
    from tests.support.testing_extension import _testing  # which is not built where these tests are skipped

    _testing.check_lock_discipline()
    before = _testing.gil_waits_under_lock()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.ones(4, 8).to(device)
    with torchnan.detect(action="log") as watch:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        bad = torch.log(x - 2)
        torch.cat([bad, x]).sum().item()
    assert errors(watch) == [("nan", "op", "aten::log")]
    assert _testing.gil_waits_under_lock() == before
    _testing.wait_for_gil_under_lock(x)
    assert _testing.gil_waits_under_lock() > before


@pytest.mark.usefixtures("ends")
def test_taking_addresses_does_not_wait_for_operations_of_another_thread(machine, device):
    """Deadlocks if a new call site is looked up while a lock is held: the holder of the GIL waits for the lock."""
    x, y = torch.ones(8).to(device), torch.ones(8).to(device)
    machine.synchronize()

    def add(x):
        return x + 1

    def new_call_site(i):
        types.FunctionType(add.__code__.replace(co_filename=f"<place {i}>"), {})(x)

    with torchnan.detect(action="log"):
        assert run_beside(new_call_site, y.untyped_storage, 1000) > 0


@pytest.mark.usefixtures("ends")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_do_not_wait_for_operations_of_another_thread(machine, device):
    x = torch.ones(8).to(device)
    machine.synchronize()

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    with torchnan.detect(action="log"):
        assert run_beside(lambda _: [x + 1 for _ in range(20)], fork, 200) > 0


def test_a_child_of_a_fork_forgets_the_devices(machine, device):
    x = torch.zeros(8).to(device)
    with torchnan.detect(action="log"):
        bad = x / x
        machine.synchronize()
        end, other_end = os.pipe()
        child = os.fork()
        if child == 0:
            found = b"?"
            try:
                from torchnan._load import _C

                found = f"{_C.uses_devices()} {_C.unscanned_reason('lagging')}".encode()
            finally:
                os.write(other_end, found)
                os._exit(0)
        os.close(other_end)
        os.waitpid(child, 0)
        assert os.read(end, 1000) == b"False the process was forked from one that has used it"
        os.close(end)
    del bad
    gc.collect()
