"""The positions of blocks in packed rows, as every consumer of them compiles."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nsa.config import AttentionConfig
from nsa.layers.sparse import NSAAttention

CONFIG = AttentionConfig(compress_block=8, compress_stride=4, select_block=8, select_count=3, window=6)


class Searches(TorchDispatchMode):
    """The sorted tensors that were searched."""

    def __init__(self) -> None:
        super().__init__()
        self.searched: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.searchsorted.Tensor:
            self.searched.append(args[0])
        return func(*args, **(kwargs or {}))


def test_no_slice_is_searched_as_compilers_of_older_torch_ignore_its_offset():
    # torch 2.11's Inductor, on a GPU only: with statistics, the last sequence's tokens were given to the one after it.
    torch.manual_seed(0)
    layer = NSAAttention(16, 2, 1, 8, CONFIG)
    layer.collect_stats = True
    with Searches() as searches:
        layer(torch.randn(1, 40, 16), cu_seqlens=torch.tensor([0, 13, 13, 30]))
    assert len(searches.searched) >= 3
    for each in searches.searched:
        assert each.storage_offset() == 0 and each.is_contiguous()
