"""The arguments of attention: keys and values of the three branches, and the checks that every backend relies on.

Shapes, dtypes and devices are always checked, which takes no device work and nothing in a compiled graph. Values
are checked where that does not synchronise with a device: on a CPU, and anywhere under `torch.autograd.detect_anomaly`.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from nsa.attention.blocks import n_compress_slots
from nsa.config import AttentionConfig

BRANCHES = ("compressed", "selected", "sliding")  # the order of the gates' last axis
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class BranchKV(NamedTuple):
    """The keys, or the values, of the three branches, each with its own projection.

    `compressed` is already compressed, [B, NC, Hkv, D]; `selected` and `sliding` are tokens, [B, S, Hkv, D],
    where `sliding` may hold only the newest of them. A branch that is not used may be None.
    """

    compressed: Tensor | None
    selected: Tensor | None
    sliding: Tensor | None


class Call(NamedTuple):
    """The arguments of `nsa_attention` in their full form, as a backend gets them."""

    q: Tensor
    k: BranchKV
    v: BranchKV
    gates: Tensor
    config: AttentionConfig
    cu_seqlens: Tensor | None = None
    past_length: int = 0


def check_inputs(call: Call) -> None:
    """Raise ValueError for arguments that do not fit; it names the tensor and what it needs."""
    q, k, v, gates, config, cu_seqlens, past_length = call
    _check_queries(q, past_length)
    check_packing(q.shape[0], q.shape[1], cu_seqlens, past=past_length > 0)
    n_tokens = past_length + q.shape[1]
    n_blocks = n_compress_slots(config, n_tokens, packed=cu_seqlens is not None)
    counts = {
        "compressed": (n_blocks, n_blocks),
        "selected": (n_tokens, n_tokens),
        "sliding": (min(n_tokens, config.window - 1 + q.shape[1]), n_tokens),
    }
    for branch in keys_read(config):
        _check_keys(f"k.{branch}", getattr(k, branch), q, *counts[branch])
    for branch in config.branches:
        _check_values(f"v.{branch}", getattr(v, branch), getattr(k, branch))
    _check_branches_agree(k, v, config)
    check_gates(gates, q)


def check_newest(q: Tensor, gates: Tensor, k: BranchKV, batch: int, most: int) -> None:
    """Raise ValueError unless `q` and `gates` are of at most `most` new tokens of rows that a cache holds."""
    _check_queries(q, 0)
    if q.shape[0] != batch or q.shape[1] > most:
        _refuse(
            "q", q, f"[{batch}, 1 to {most}, H, D], for the rows and new tokens that the cache has room for"
        )
    for branch, x in zip(BRANCHES, k, strict=True):
        if x is not None:
            _check_keys(f"k.{branch}", x, q, x.shape[1], x.shape[1])
    check_gates(gates, q)


def check_plain(
    q: Tensor, k: Tensor, v: Tensor, past_length: int | None, cu_seqlens: Tensor | None = None
) -> None:
    """Raise ValueError unless plain k and v fit q and `cu_seqlens`, for every branch."""
    _check_queries(q, 0)
    for name, x in (("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} is a {type(x).__name__}; k and v are both tensors, or both BranchKV")
        if x.dim() != 4 or x.shape[1] < q.shape[1] or x.shape[1] != k.shape[1]:
            needed = f"[B, S, Hkv, D] with the S of k, at least the T of q {tuple(q.shape)}"
            _refuse(name, x, needed)
    _check_keys("k", k, q, k.shape[1], k.shape[1])
    _check_values("v", v, k)
    check_packing(q.shape[0], q.shape[1], cu_seqlens, past=k.shape[1] > q.shape[1])
    if past_length not in (None, k.shape[1] - q.shape[1]):
        raise ValueError(
            f"past_length is {past_length}; k has {k.shape[1]} tokens and q {q.shape[1]}, so it is "
            f"{k.shape[1] - q.shape[1]}, or left out"
        )


def check_gates(gates: Tensor, q: Tensor) -> None:
    """Raise ValueError unless `gates` are [B, T, H, 3] for q [B, T, H, D], floating point and not negative."""
    _check_tensor("gates", gates)
    wanted = (*q.shape[:3], len(BRANCHES))
    if gates.shape != wanted:
        _refuse("gates", gates, f"[B, T, H, 3] = {tuple(wanted)}, for q {tuple(q.shape)}")
    if gates.dtype not in DTYPES:
        raise ValueError(f"gates are {gates.dtype}; they must be floating point")
    if gates.device != q.device:
        raise ValueError(f"gates are on {gates.device}; q is on {q.device}")
    # The kernels' backward takes the logarithm of a gate.
    if values_are_free(gates) and bool((gates.detach() < 0).any()):
        lowest = gates.detach().min().item()
        raise ValueError(f"gates reach down to {lowest:g}; they must not be negative: apply a sigmoid")


def _check_branches_agree(k: BranchKV, v: BranchKV, config: AttentionConfig) -> None:
    """Raise ValueError where branches that meet in a sum, or in a selection, differ in heads or value dims."""
    dims = {branch: getattr(v, branch).shape[3] for branch in config.branches}
    if len(set(dims.values())) > 1:
        raise ValueError(f"the head dims of v are {dims}; they must be equal, as the branches are summed")
    if "selected" in config.branches and k.compressed.shape[2] != k.selected.shape[2]:
        raise ValueError(
            f"k.compressed has {k.compressed.shape[2]} KV heads and k.selected {k.selected.shape[2]}; "
            "they must have as many, as one selects for the other"
        )


def check_packing(batch: int, n_tokens: int, cu_seqlens: Tensor | None, *, past: bool) -> None:
    """Raise ValueError unless `cu_seqlens` are the borders of sequences in one row of `n_tokens` without a past."""
    if cu_seqlens is None:
        return
    _check_tensor("cu_seqlens", cu_seqlens)
    if batch != 1:
        raise ValueError(f"cu_seqlens packs sequences into one row, but the batch has {batch} rows")
    if past:
        raise ValueError("packed sequences have no past: give cu_seqlens or a cache, not both")
    if cu_seqlens.dim() != 1 or not len(cu_seqlens) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        shape = tuple(cu_seqlens.shape)
        raise ValueError(f"cu_seqlens is {cu_seqlens.dtype} {shape}; it must be int32 or int64 [N + 1]")
    if values_are_free(cu_seqlens):
        borders = cu_seqlens.tolist()
        if borders[0] != 0 or borders != sorted(borders) or borders[-1] > n_tokens:
            raise ValueError(
                f"cu_seqlens is {borders}; it must begin at 0, ascend and end at the row's {n_tokens} tokens or before"
            )


def check_heads(n_heads: int, n_kv_heads: int) -> None:
    """Raise ValueError unless query heads divide into KV heads."""
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads is {n_heads}, which n_kv_heads ({n_kv_heads}) does not divide")


def check_positions(positions: Tensor | None, x: Tensor) -> None:
    """Raise ValueError unless `positions` are [T] or [B, T] for x [B, T, dim]."""
    if positions is not None and positions.shape not in ((x.shape[1],), tuple(x.shape[:2])):
        batch, n = x.shape[:2]
        _refuse("positions", positions, f"[T] = [{n}] or [B, T] = {[batch, n]}")


def check_sharded(positions: object, cache: object) -> None:
    """Raise ValueError for what context parallelism cannot take."""
    if positions is not None or cache is not None:
        raise ValueError("context parallelism counts positions itself, and has no cache: leave both out")


def check_sizes(**sizes: object) -> None:
    """Raise ValueError unless all are whole numbers of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} is {size!r}; it must be a whole number, at least 1")


def check_states(x: Tensor, dim: int) -> None:
    """Raise ValueError unless x is [B, T, dim] with none of them 0."""
    if x.dim() != 3 or x.shape[2] != dim or 0 in x.shape:
        _refuse("the layer's input", x, f"[B, T, {dim}] with none of them 0")


def check_tokens(tokens: Tensor) -> None:
    """Raise ValueError unless `tokens` are integers [B, T], at least one."""
    if tokens.dim() != 2 or 0 in tokens.shape or tokens.dtype not in (torch.int32, torch.int64):
        has = f"{tokens.dtype} {tuple(tokens.shape)}"
        raise ValueError(f"tokens is {has}; it must be int32 or int64 [B, T] with none of them 0")


def keys_read(config: AttentionConfig) -> tuple[str, ...]:
    """The branches whose keys are read: those configured, and the compressed keys that score selection."""
    scored = config.branches if "selected" not in config.branches else (*config.branches, "compressed")
    return tuple(branch for branch in BRANCHES if branch in scored)


def _check_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} is a {type(x).__name__}; it must be a tensor")


def _check_queries(q: Tensor, past_length: int) -> None:
    _check_tensor("q", q)
    if q.dim() != 4 or 0 in q.shape:
        _refuse("q", q, "[B, T, H, D] with none of them 0")
    if q.dtype not in DTYPES:
        raise ValueError(f"q is {q.dtype}; it must be one of {', '.join(map(str, DTYPES))}")
    if past_length < 0:
        raise ValueError(f"past_length is {past_length}; it must not be negative")


def _check_keys(name: str, x: Tensor | None, q: Tensor, least: int, most: int) -> None:
    if x is None:
        raise ValueError(f"{name} is None; a branch that is configured reads it")
    batch, _, n_heads, dim = q.shape
    fits = x.dim() == 4 and (x.shape[0], x.shape[3]) == (batch, dim) and least <= x.shape[1] <= most
    if not fits or not x.shape[2]:
        tokens = f"{least}" if least == most else f"{least} to {most}"
        _refuse(name, x, f"[B, tokens, Hkv, D] = [{batch}, {tokens}, Hkv, {dim}], for q {tuple(q.shape)}")
    _check_alike(name, x, q)
    if n_heads % x.shape[2]:
        raise ValueError(f"{name} has {x.shape[2]} KV heads, which do not divide the {n_heads} heads of q")


def _check_values(name: str, x: Tensor | None, k: Tensor) -> None:
    if x is None:
        raise ValueError(f"{name} is None; the branch is configured and reads it")
    if x.dim() != 4 or x.shape[:3] != k.shape[:3] or not x.shape[3]:
        _refuse(name, x, f"[B, tokens, Hkv, Dv] as its keys, {tuple(k.shape)}, with a Dv of its own")
    _check_alike(name, x, k)


def _check_alike(name: str, x: Tensor, q: Tensor) -> None:
    if x.dtype != q.dtype:
        raise ValueError(f"{name} is {x.dtype}; it must have the dtype of q, {q.dtype}")
    if x.device != q.device:
        raise ValueError(f"{name} is on {x.device}; q is on {q.device}")


def traced() -> bool:
    """Whether operations are traced, transformed or intercepted, so that tensors made now must not outlive the call."""
    if torch.compiler.is_compiling():
        return True
    return is_in_torch_dispatch_mode() or torch._C._are_functorch_transforms_active()


def readable(x: Tensor) -> bool:
    """Whether the values of `x` may be read: not under tracing, functorch transforms, dispatch modes or graph capture."""
    if traced() or type(x) not in (Tensor, torch.nn.Parameter) or x.is_meta:
        return False
    return x.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def values_are_free(x: Tensor) -> bool:
    """Whether `x` may be read without synchronising, or anomaly detection asks for it."""
    return readable(x) and (x.device.type == "cpu" or torch.is_anomaly_enabled())


def _refuse(name: str, x: Tensor, needed: str) -> NoReturn:
    raise ValueError(f"{name} is {tuple(x.shape)}; it must be {needed}")
