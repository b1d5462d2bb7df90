

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from nsa.config import AttentionConfig

BRANCHES = ("compressed", "selected", "sliding")  # the order of the gates' last axis


class BranchKV(NamedTuple):
    """The keys, or the values, of the three branches, each with weights of its own.

    `compressed` is already compressed, [B, NC, Hkv, D]; `selected` and `sliding` are tokens, [B, S, Hkv, D],
    where `sliding` may hold only the newest of them. A branch that nothing reads may be None.
    """

    compressed: Tensor | None
    selected: Tensor | None
    sliding: Tensor | None


def check_inputs(q: Tensor, k: BranchKV, gates: Tensor, config: AttentionConfig, n_blocks: int) -> None:
    """Raise ValueError for shapes that no backend can use; `n_blocks` is how many compressed keys fit."""
    if gates.shape != (*q.shape[:3], len(BRANCHES)):
        raise ValueError(f"gates are {tuple(gates.shape)}; for q {tuple(q.shape)} they must be [B, T, H, 3]")
    for branch in keys_read(config):
        key = getattr(k, branch)
        if key is None:
            raise ValueError(f"branches {config.branches} read the {branch} keys, which are None")
        if q.shape[2] % key.shape[2]:
            heads = f"{q.shape[2]} query heads do not divide into {key.shape[2]} KV heads"
            raise ValueError(f"{heads} ({branch})")
    if "compressed" in keys_read(config) and k.compressed.shape[1] != n_blocks:
        raise ValueError(f"{k.compressed.shape[1]} compressed keys, but the tokens have {n_blocks} blocks")


def check_packing(batch: int, cu_seqlens: Tensor | None, *, past: bool) -> None:
    """Raise ValueError where packed sequences meet a batch or a past."""
    if cu_seqlens is not None and batch != 1:
        raise ValueError(f"cu_seqlens packs sequences into one row, but the batch has {batch} rows")
    if cu_seqlens is not None and past:
        raise ValueError("packed sequences have no past: give cu_seqlens or a cache, not both")


def keys_read(config: AttentionConfig) -> tuple[str, ...]:
    """The branches whose keys are read: those configured, and the compressed keys that score selection."""
    scored = config.branches if "selected" not in config.branches else (*config.branches, "compressed")
    return tuple(branch for branch in BRANCHES if branch in scored)
