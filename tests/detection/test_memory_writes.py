"""Every way to write the memory of a tensor without a dispatched operation ends its bound."""

from __future__ import annotations

import _thread
import concurrent.futures
import copy
import ctypes
import inspect
import io
import tempfile
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

import torchnan
from tests.support.bound_samples import known

N = 5000  # more than small results, which are always scanned
NAN = float("nan")
Write = Callable[[torch.Tensor], None]


def use(x: torch.Tensor) -> None:
    """Writes `x` and then uses its bound."""
    x.add_(1)
    _ = x * 2


def set_bytes(address: int) -> None:
    ctypes.memset(address, 0xFF, 64)


# -- in the thread of the session


def through_apply(x):
    x.apply_(lambda value: NAN)


def through_map(x):
    x.map_(torch.ones(N), lambda value, other: NAN)


def through_map2(x):
    x.map2_(torch.ones(N), torch.ones(N), lambda value, one, other: NAN)


def through_a_map_that_raises(x):
    values = iter([NAN] * 10)
    with pytest.raises(StopIteration):
        x.apply_(lambda value: next(values))


def through_a_map_that_uses_its_tensor(x):
    def change(value: float) -> float:
        _ = x * 2
        return NAN

    x[:3].apply_(change)


def through_an_address_taken_earlier(x):
    address = x.data_ptr()
    use(x)
    set_bytes(address)


def through_a_const_address(x):
    address = x.const_data_ptr()
    use(x)
    set_bytes(address)


def through_a_storage_taken_earlier(x):
    storage = x.untyped_storage()
    use(x)
    for i in range(4):
        storage[i] = 0xFF


def through_the_address_of_a_storage(x):
    address = x.untyped_storage().data_ptr()
    use(x)
    set_bytes(address)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def through_a_typed_storage(x):
    address = x.storage().data_ptr()
    use(x)
    set_bytes(address)


def through_the_address_of_its_own_storage(x):
    storage = torch.UntypedStorage(4 * N)
    x.set_(storage, 0, (N,))
    x.fill_(1)
    address = storage.data_ptr()
    use(x)
    set_bytes(address)


def through_a_storage_that_was_swapped_and_swapped_back(x):
    other = torch.ones(N)
    mine, others = x.untyped_storage(), other.untyped_storage()
    x.add_(1)
    mine._swap_data_ptr_(others)
    other.fill_(NAN)
    mine._swap_data_ptr_(others)


def through_a_file(x):
    with tempfile.TemporaryFile() as file:
        torch.full((N,), NAN).untyped_storage()._write_file(file, True, True, 4)
        file.seek(0)
        storage = x.untyped_storage()
        use(x)
        storage._set_from_file(file, 0, True, 4)


def through_swapped_bytes(x):
    nan_reversed = int.from_bytes(bytes([0x7F, 0xC0, 0, 0]), "little")
    x.view(torch.int32).fill_(nan_reversed)
    _ = x * 2
    x.untyped_storage()._byteswap(4)


def through_numpy_after_a_use(x):
    array = x.numpy()
    use(x)
    array[3] = NAN


def through_a_shallow_copy(x):
    alias = copy.copy(x)
    use(x)
    alias.apply_(lambda value: NAN)


IN_ITS_THREAD = [
    through_apply,
    through_map,
    through_map2,
    through_a_map_that_raises,
    through_a_map_that_uses_its_tensor,
    through_an_address_taken_earlier,
    through_a_const_address,
    through_a_storage_taken_earlier,
    through_the_address_of_a_storage,
    through_a_typed_storage,
    through_the_address_of_its_own_storage,
    through_a_storage_that_was_swapped_and_swapped_back,
    through_a_file,
    through_swapped_bytes,
    through_numpy_after_a_use,
    through_a_shallow_copy,
]


@pytest.mark.parametrize("write", IN_ITS_THREAD, ids=lambda write: write.__name__)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_write_past_the_dispatcher_is_found_by_the_first_operation_that_reads_it(write):
    """Fails when the old bound is used: then the sum of the products is the first value to be scanned."""
    with torchnan.detect(action="log", rescan_every=0) as watch:
        x = torch.ones(N) * 2
        use(x)
        write(x)
        line = inspect.currentframe().f_lineno + 1
        y = x * 5
        _ = y.sum().item()
    assert y.isnan().any()
    (finding,) = watch.findings
    assert finding.line == line or finding.op in ("aten::copy_", "aten::fill_")
    assert watch.stats()["internal_errors"] == 0


def test_a_write_into_an_array_from_before_detection_is_found_by_the_first_operation_that_reads_it():
    """Fails when memory is trusted because nobody saw the call of numpy()."""
    x = torch.ones(N) * 2
    array = x.numpy()
    with torchnan.detect(action="log", rescan_every=0) as watch:
        use(x)
        array[3] = NAN
        line = inspect.currentframe().f_lineno + 1
        y = x * 5
        _ = y.sum().item()
    assert [finding.line for finding in watch.findings] == [line]


def test_a_repaired_tensor_is_believed_again():
    """The callback for a loop in C runs after it, and does not hide its error."""
    with torchnan.detect(rescan_every=0) as watch:
        x = torch.ones(N)
        with pytest.raises(ZeroDivisionError):
            x.apply_(lambda value: 1 / 0)
        use(x)
        before = watch.stats()["bytes"]
        _ = x * 2
        assert watch.stats()["bytes"] == before


def test_memory_whose_address_pytorch_took_is_trusted_after_the_next_write():
    with torchnan.detect(rescan_every=0) as watch:
        x = torch.ones(N)
        torch.save({"x": x}, io.BytesIO())
        copy.deepcopy(x)
        use(x)
        before = watch.stats()["bytes"]
        _ = x * 2
        assert watch.stats()["bytes"] == before


def test_memory_whose_address_the_program_has_taken_is_read_at_every_use():
    with torchnan.detect(rescan_every=0) as watch:
        x = torch.ones(N)
        x.data_ptr()
        for _ in range(3):
            use(x)
            before = watch.stats()["bytes"]
            _ = x * 2
            assert watch.stats()["bytes"] > before


def test_memory_that_was_resized_away_and_back_has_no_old_bound():
    reused = 0
    for _ in range(50):
        with torchnan.detect(rescan_every=0) as watch:
            x = torch.ones(N)
            storage, before = x.untyped_storage(), x.untyped_storage().data_ptr()
            use(x)
            storage.resize_(0)
            storage.resize_(4 * N)
            reused += storage.data_ptr() == before
            read = watch.stats()["bytes"]
            _ = x.view(torch.int32).fill_(0).view(torch.float32) * 2
            assert watch.stats()["bytes"] > read
    assert reused >= 0


# -- in a thread outside of every session


def in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_a_raw_thread(work: Callable[[], None]) -> None:
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        work()
        done.release()

    _thread.start_new_thread(run, ())
    done.acquire()


def in_a_pool(work: Callable[[], None]) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


class OlderThread:
    """A thread that existed before the session, and runs in inference mode."""

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(1, initializer=self._enter)
        self._pool.submit(int).result()

    @staticmethod
    def _enter() -> None:
        torch.autograd.grad_mode.inference_mode(True).__enter__()

    def __call__(self, work: Callable[[], None]) -> None:
        self._pool.submit(work).result()


def through_data(x):
    x.data.fill_(NAN)


def through_data_of_a_part(x):
    x[10:20].data.fill_(NAN)


def through_unsafe_parts(x):
    x.unsafe_split(N // 2)[0].fill_(NAN)


def through_unsafe_chunks_of_the_function(x):
    torch.unsafe_chunk(x, 2)[1].fill_(NAN)


def through_another_tensor(x):
    torch.empty(0).set_(x).fill_(NAN)


def through_data_of_another(x):
    other = torch.empty(0)
    other.data = x
    other.fill_(NAN)


def through_a_storage(x):
    x.untyped_storage().fill_(0xFF)


def through_its_version(x):
    x.fill_(NAN)


@pytest.mark.parametrize("run", [in_a_thread, in_a_raw_thread, in_a_pool], ids=lambda run: run.__name__)
@pytest.mark.parametrize(
    "write",
    [
        through_data,
        through_data_of_a_part,
        through_unsafe_parts,
        through_unsafe_chunks_of_the_function,
        through_another_tensor,
        through_data_of_another,
        through_a_storage,
        through_its_version,
    ],
    ids=lambda write: write.__name__,
)
def test_a_write_of_a_thread_without_a_session_is_found(run, write):
    assert_found(lambda x: lambda: run(lambda: write(x)))


def assert_found(writer_of: Callable[[torch.Tensor], Callable[[], None]], inference: bool = False) -> None:
    with torchnan.detect(action="log", rescan_every=0) as watch, torch.inference_mode(inference):
        x = torch.ones(N) * 2
        write = writer_of(x)
        use(x)
        write()
        line = inspect.currentframe().f_lineno + 1
        y = x * 5
        _ = y.sum().item()
    assert y.isnan().any()
    (finding,) = watch.findings
    assert finding.line == line


def test_an_alias_that_the_session_has_made_and_another_thread_writes():
    def writer_of(x):
        alias = x.data
        return lambda: in_a_thread(lambda: alias.fill_(NAN))

    assert_found(writer_of)


@pytest.mark.parametrize("inference", [False, True])
def test_an_older_thread_in_inference_mode(inference):
    older = OlderThread()
    assert_found(lambda x: lambda: older(lambda: x.data.fill_(NAN)), inference)


def test_an_inference_tensor_that_another_thread_writes():
    def writer_of(x):
        def work():
            with torch.inference_mode():
                x.fill_(NAN)

        return lambda: in_a_thread(work)

    assert_found(writer_of, inference=True)


@pytest.mark.parametrize("make", [lambda x: x.data, copy.copy, lambda x: torch.empty(0).set_(x)])
def test_an_alias_that_was_there_before_the_session(make):
    x = torch.ones(N)
    alias = make(x)
    weight = torch.ones(50, 100)
    part = make(weight)
    older = OlderThread()
    with torchnan.detect(action="log", rescan_every=0) as watch:
        _ = torch.ones(80, 100) @ weight.t()  # a view of it is scanned
        _ = torch.ones(80, 100) @ weight.t()
        known(x)
        older(lambda: (alias.fill_(NAN), part.fill_(NAN)))
        y, z = x * 5, torch.ones(80, 100) @ weight.t()
        _ = (y * 2, z * 2)
        kept = (y, z)
    del kept
    assert [finding.op for finding in watch.findings] == ["aten::mul", "aten::mm"]


def test_an_alias_costs_nothing_while_no_other_thread_runs():
    x = torch.ones(N)
    with torchnan.detect(rescan_every=0) as watch:
        use(x)
        before = watch.stats()["bytes"]
        for _ in range(3):
            alias = x.data
            _ = x * 2
            use(x)
        del alias
        use(x)
        assert watch.stats()["bytes"] == before
    with torchnan.detect(rescan_every=0) as watch, torch.inference_mode():
        y = torch.ones(N) * 2
        before = watch.stats()["bytes"]
        for _ in range(3):
            y = y.add_(1) * 0.5
        assert watch.stats()["bytes"] == before


def test_a_thread_that_runs_and_shares_nothing_ends_no_bound_of_a_tensor_with_a_version():
    weight = torch.ones(100, 100)
    with torchnan.detect(rescan_every=0) as watch:
        batch = torch.ones(80, 100)
        for _ in range(3):
            _ = batch @ weight.t()
        before = watch.stats()["bytes"]
        in_a_thread(lambda: torch.ones(N).add_(1))
        _ = batch @ weight.t()
        assert watch.stats()["bytes"] == before


# -- all functions in C and their effects on memory are listed


DISPATCHES = "an operation is dispatched"
READS = "memory is only read, or metadata"
FRESH = "the result has memory of its own, or memory that never has a bound"
HOOKED = "torchnan/detection/memory_hooks.py"

TENSOR = {
    DISPATCHES: """
        __add__ __bool__ __complex__ __div__ __eq__ __float__ __floordiv__ __ge__ __gt__ __iadd__ __idiv__ __ifloordiv__
        __imod__ __imul__ __index__ __int__ __invert__ __isub__ __le__ __long__ __lt__ __matmul__ __mod__ __mul__ __ne__
        __nonzero__ __radd__ __rand__ __rmul__ __ror__ __rxor__ __sub__ __truediv__ __setitem__ __delitem__ __getitem__
        _rev_view_func_unsafe _view_func _view_func_unsafe bfloat16 bool byte cdouble cfloat char cpu cuda double float
        half int ipu long mtia new new_tensor short type xpu H T mH mT real imag
    """,
    READS: """
        __len__ _fix_weakref _is_view _use_count as_subclass element_size ndimension nelement tolist _backward_hooks
        _base _cdata _grad _grad_fn _has_symbolic_sizes_strides _post_accumulate_grad_hooks _python_dispatch _version
        device dtype grad grad_dtype grad_fn is_cpu is_cuda is_ipu is_leaf is_maia is_meta is_mkldnn is_mps is_mtia
        is_nested is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu itemsize layout name names nbytes ndim
        output_nr requires_grad retains_grad shape volatile __new__ _dtensor__new__ _make_subclass
        _make_wrapper_subclass
    """,
    HOOKED: "apply_ map_ map2_ data_ptr const_data_ptr untyped_storage numpy data set_ unsafe_chunk unsafe_split "
    "unsafe_split_with_sizes",
}
STORAGE = {
    DISPATCHES: "__setitem__ __delitem__ copy_ fill_",  # dispatches to a tensor of bytes made from the storage
    READS: """
        __getitem__ __len__ _cdata _expired _fix_weakref _free_weak_ref _get_filename _get_shared_fd
        _release_ipc_counter_cuda _set_cdata _shared_decref _shared_incref _weak_ref _write_file device element_size
        is_shared nbytes resizable _new_with_weak_ptr __new__ _resize_with_addr_
    """,
    FRESH: """
        _new_shared_cuda _new_shared_fd_cpu _new_shared_filename_cpu _new_using_fd_cpu _new_using_filename_cpu
        _new_with_file _share_cuda_ _share_fd_cpu_ _share_filename_cpu_ from_buffer from_file new
    """,
    HOOKED: "_byteswap _set_from_file _swap_data_ptr_ data_ptr resize_",
}


def operators() -> set[str]:
    names = torch._C._dispatch_get_all_op_names()
    return {name.partition("::")[2].partition(".")[0] for name in names if name.startswith("aten::")}


def written_in_c(holder: type) -> set[str]:
    return {
        name
        for name, value in vars(holder).items()
        if callable(value) or inspect.isdatadescriptor(value) or isinstance(value, staticmethod | classmethod)
    }


def classified(table: dict[str, str]) -> list[str]:
    return [name for names in table.values() for name in names.split()]


@pytest.mark.parametrize(
    ("holder", "table"), [(torch._C.TensorBase, TENSOR), (torch._C.StorageBase, STORAGE)], ids=["tensor", "storage"]
)
def test_each_function_in_c_of_a_tensor_and_a_storage_is_classified(holder, table):
    """A new PyTorch may bring a function that writes memory: read its source, and give it a row here."""
    names = classified(table)
    assert len(names) == len(set(names))
    is_tensor = holder is torch._C.TensorBase
    assert written_in_c(holder) - set(names) - (operators() if is_tensor else set()) == set()


def test_each_hooked_function_is_there_and_hooked():
    from torchnan.detection import memory_hooks

    hooked = {hook.method.__name__ for hook in memory_hooks.all_hooks()} | {memory_hooks.data_attribute().__name__}
    assert set(f"{TENSOR[HOOKED]} {STORAGE[HOOKED]}".split()) <= hooked
    with torchnan.detect(rescan_every=0) as watch:
        pass
    assert watch.stats()["internal_errors"] == 0


def test_the_hooks_are_gone_after_the_session():
    x = torch.ones(N)
    with torchnan.detect(rescan_every=0):
        assert x.data is not x
    array = x.numpy()
    x.apply_(lambda value: value + 1)
    assert x.data_ptr() == array.__array_interface__["data"][0]
    x.data = torch.zeros(3)
    np.testing.assert_array_equal(x.data.numpy(), np.zeros(3))


def test_a_tensor_in_other_memory_does_not_stand_for_an_alias():
    """Fails when tensors that share the version counter are taken for tensors that share the storage: a kept `detach()`
    has the counter of the weight, but its old memory."""
    weight = torch.nn.Parameter(torch.ones(128, 128))
    kept = weight.detach()
    weight.data = weight.data * 2  # as Module.double() does
    alias = weight.data
    older = OlderThread()
    with torchnan.detect(action="log", rescan_every=0) as watch, torch.no_grad():
        weight.mul_(1)
        older(lambda: alias.fill_(NAN))
        y = torch.sigmoid(weight * 3)
        _ = y * 2
    assert kept.isfinite().all()
    assert [(finding.op, finding.origin) for finding in watch.findings] == [("aten::mul", "parameter")]
