"""The digest of a batch: the same for the same data, another one for others."""

from __future__ import annotations

import torch

from tests.support.processes import run_python
from torchnan.training.monitor.batch_digest import BatchDigest


def digest_of(*batches, **samples):
    digest = BatchDigest()
    for batch in batches:
        assert digest.add(batch) == {}
    return digest.hexdigest(samples)


def test_a_digest_tells_different_batches_apart():
    x = torch.arange(12.0).reshape(3, 4)
    others = [x.int(), x.double(), x.reshape(4, 3), x.flip(0), x + 1, {"x": x}, (x, x), x[:2], x.bfloat16()]
    assert len({digest_of(batch) for batch in [x, *others]}) == len(others) + 1
    assert digest_of(x) == digest_of(x.clone()) == digest_of(x.t().contiguous().t())
    assert digest_of({"a": x, "b": 1}) == digest_of({"b": 1, "a": x.clone()})
    assert digest_of(x, x) != digest_of(x)


def test_a_digest_of_large_tensors_sees_rows_that_are_mostly_padding():
    batches = []
    for seed in range(2):
        tokens = torch.zeros(32, 2048, dtype=torch.long)
        tokens[:, 1:12] = torch.randint(1, 9, (32, 11), generator=torch.Generator().manual_seed(seed))
        batches.append(tokens)
    assert digest_of(batches[0]) != digest_of(batches[1])


def test_a_batch_that_cannot_be_distinguished_has_no_digest():
    assert digest_of(object()) is None
    assert digest_of({"x": torch.empty(0)}) is None
    assert digest_of(torch.empty(2, device="meta")) is None


def test_a_digest_is_the_same_in_every_process():
    code = """
import torch
from torchnan.training.monitor.batch_digest import BatchDigest
digest = BatchDigest()
digest.add({"x": torch.arange(10000) % 7, "name": "a", "half": torch.ones(3, dtype=torch.bfloat16)})
print(digest.hexdigest({}))
"""
    first, second = (run_python(code, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first.stdout == second.stdout
    assert len(first.stdout) == 17


def test_a_digest_reads_memory_that_is_shared_without_a_copy():
    whole = torch.arange(8.0)
    lazy = torch._lazy_clone(whole)
    digest_of(lazy)
    assert torch._C._is_cow_tensor(lazy)


def test_a_sample_is_the_same_in_every_layout():
    """Fails when elements are counted in the order of memory, or when bits that say "negated" are left out."""
    x = torch.arange(3 * 5 * 7 * 11, dtype=torch.float32).reshape(3, 5, 7, 11)
    laid_out = [x, x.to(memory_format=torch.channels_last), x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)]
    laid_out += [torch.cat([x, x], -1)[..., :11], x.expand(2, 3, 5, 7, 11)[1]]
    assert len({digest_of(tensor) for tensor in laid_out}) == 1
    z = torch.complex(x, -x)
    for lazy in (z.conj(), z.conj().imag):
        digest = BatchDigest()
        assert digest.hexdigest(digest.add(lazy)) == digest_of(lazy.clone())
