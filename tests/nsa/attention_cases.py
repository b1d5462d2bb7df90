"""Small attention configurations and random inputs for them, shared by the tests of this directory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nsa.attention import BranchKV, nsa_attention
from nsa.attention.blocks import n_compress_slots
from nsa.config import AttentionConfig

SMALL = AttentionConfig(compress_block=8, compress_stride=4, select_block=8, select_count=4, window=6)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Shapes of one call; `lengths` packs sequences into one row."""

    config: AttentionConfig = SMALL
    batch: int = 1
    n_tokens: int = 45
    n_heads: int = 6
    n_kv_heads: int = 2
    qk_dim: int = 8
    v_dim: int = 8
    lengths: tuple[int, ...] = ()

    def cu_seqlens(self) -> Tensor | None:
        """The borders, int32 as varlen kernels have them."""
        if not self.lengths:
            return None
        return torch.tensor([0, *self.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Leaves that require a gradient."""

    q: Tensor
    k: BranchKV
    v: BranchKV
    gates: Tensor

    def leaves(self) -> list[Tensor]:
        return [self.q, *self.k, *self.v, self.gates]


def random_inputs(case: Case, seed: int = 0, dtype: torch.dtype = torch.float64) -> Inputs:
    """Normal q, k, v and gates between 0 and 1 in `dtype`; drawn in fp64, so every dtype sees the same."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, gate: bool = False) -> Tensor:
        x = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return (x.sigmoid() if gate else x).to(dtype).requires_grad_()

    n_blocks = n_compress_slots(case.config, case.n_tokens, packed=bool(case.lengths))
    lengths = (n_blocks, case.n_tokens, case.n_tokens)
    return Inputs(
        q=draw(case.batch, case.n_tokens, case.n_heads, case.qk_dim),
        k=BranchKV(*(draw(case.batch, n, case.n_kv_heads, case.qk_dim) for n in lengths)),
        v=BranchKV(*(draw(case.batch, n, case.n_kv_heads, case.v_dim) for n in lengths)),
        gates=draw(case.batch, case.n_tokens, case.n_heads, 3, gate=True),
    )


def output_and_gradients(case: Case, inputs: Inputs, backend: str) -> list[Tensor]:
    """The output, then the gradient of a fixed random projection of it for every leaf; None becomes 0."""
    out = nsa_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.gates,
        case.config,
        cu_seqlens=case.cu_seqlens(),
        backend=backend,
    )
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    leaves = inputs.leaves()
    gradients = torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True)
    return [out.detach()] + [
        torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)
    ]


def assert_close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Every tensor within `tolerance` of the expected one, in relative norm.

    The floor is for gradients that are exactly 0 in one order of summation and 1e-15 in another.
    """
    names = ("out", "q", "k.compressed", "k.selected", "k.sliding", "v.compressed", "v.selected", "v.sliding")
    for name, a, e in zip((*names, "gates"), actual, expected, strict=True):
        error = (a.double() - e.double()).norm()
        assert error <= tolerance * e.double().norm() + 1e-12, f"{name}: {error} of {e.double().norm()}"


def count_autograd_nodes(out: Tensor) -> int:
    """Nodes of the graph behind `out`."""
    seen, todo = set(), [out.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    return len(seen)
