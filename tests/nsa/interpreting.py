"""What the tests under Triton's interpreter share: small shapes, and the comparison with `reference.py`."""

from __future__ import annotations

import pytest
import torch
from attention_cases import Case, output_and_gradients, random_inputs
from quick_interpreter import quicken

from nsa.attention.kernels.bands import band
from nsa.attention.kernels.selected import choose, gather
from nsa.attention.kernels.tiles import Tile
from nsa.config import AttentionConfig

quicken()
FP32 = 3e-6  # relative norm, against the reference in fp64
CPU = torch.device("cpu")
# The interpreter takes milliseconds for an operation: so few tokens that 12 of them are selected.
TINY = AttentionConfig(compress_block=4, compress_stride=2, select_block=4, select_count=3, window=5)
# Four blocks at most, of which two are selected: by bits, if the row is not packed.
FEW = AttentionConfig(
    compress_block=32,
    compress_stride=16,
    select_block=64,
    select_count=2,
    window=40,
    initial_blocks=0,
    local_blocks=1,
)
# Blocks that a descriptor may have: of a power of two.
OF_16 = AttentionConfig(
    compress_block=4,
    compress_stride=2,
    select_block=16,
    select_count=2,
    window=13,
    initial_blocks=0,
    local_blocks=1,
)
OF_FEW_BLOCKS = Case(config=FEW, n_tokens=130, n_heads=1, n_kv_heads=1)


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan():
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    yield
    torch.use_deterministic_algorithms(False)


def take_tiles_by_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Hopper for long rows, with several tiles for few tokens."""
    for module in (band, choose, gather):
        monkeypatch.setattr(module, "describable", lambda *_, **__: True)
    for name, held in (("band_forward_tile", False), ("band_dq_tile", True), ("band_dkv_tile", False)):
        monkeypatch.setattr(band, name, lambda *_, held=held: Tile(32, 32, 4, 2, held))


def assert_equals_the_reference(case: Case, *, scale: float = 1.0, seed: int = 0) -> None:
    inputs = {dtype: random_inputs(case, seed, dtype) for dtype in (torch.float32, torch.float64)}
    with torch.no_grad():
        for each in inputs.values():
            each.q.mul_(scale)
    actual = output_and_gradients(case, inputs[torch.float32], "triton")
    expected = output_and_gradients(case, inputs[torch.float64], "reference")
    assert all(x.isfinite().all() for x in actual)
    for a, e in zip(actual, expected, strict=True):
        # The floor is for gradients that are 0 in exact arithmetic: those of a softmax over one key.
        assert (a.double() - e).norm() <= FP32 * e.norm() + 1e-6
