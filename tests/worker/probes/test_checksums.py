"""Checksums over every bit of a tensor, as the probe `invariants` takes them."""

from __future__ import annotations

import pytest
import torch

from nsadiag.worker.probes.correctness.invariants import checksums
from nsadiag.worker.probes.correctness.invariants.checksums import whole_sums
from nsadiag.worker.probes.correctness.invariants.journal import Journal


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("size", [1, 7, 100_003])
def test_any_flipped_bit_changes_the_checksum(dtype: torch.dtype, size: int) -> None:
    tensor = torch.arange(size).to(dtype)
    before = whole_sums([tensor], 0)
    generator = torch.Generator().manual_seed(size)
    for _ in range(8):
        other = tensor.clone()
        raw = other.view(torch.uint8)
        raw[int(torch.randint(len(raw), (), generator=generator))] ^= 1 << int(
            torch.randint(8, (), generator=generator)
        )
        assert whole_sums([other], 0) != before


def test_a_part_of_a_larger_tensor_is_read_for_itself() -> None:
    large = torch.randn(101)
    part = large[1:]
    assert whole_sums([part], 0) == whole_sums([part.clone()], 0)


def test_what_does_not_fit_is_read_at_another_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checksums.WHOLE, "cpu", 20)
    tensors = [torch.full((8,), float(n)) for n in range(5)]
    each = [whole_sums([tensor], 0)[0] for tensor in tensors]
    assert whole_sums(tensors, 0) == each[:2]
    assert whole_sums(tensors, 4) == [each[4], each[0]]


def test_tensors_are_read_unless_a_gpu_would_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert journal.valued
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not journal.valued
    journal.waits = True  # as the probe `invariants` asks
    assert journal.valued
