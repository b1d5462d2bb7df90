"""Arguments of attention that do not fit each other: one or two tensors of a good call, changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from attention_cases import Case, random_inputs
from torch import Tensor

from nsa.attention import BranchKV, nsa_attention
from nsa.attention.inputs import Call
from nsa.attention.reference import reference_attention

NAMES = ("q", "k.compressed", "k.selected", "k.sliding", "v.compressed", "v.selected", "v.sliding", "gates")
BRANCH_PAIRS = [(f"k.{branch}", f"v.{branch}") for branch in BranchKV._fields]
# What may be changed together; a window of fewer keys and values, say, fits.
TARGETS = [*((name,) for name in NAMES), *BRANCH_PAIRS, NAMES[1:4], NAMES[4:7], NAMES[1:7], ("q", "gates")]


@dataclass(frozen=True)
class Change:
    """New sizes along one axis for some of the tensors: one less, one more, one, twice, or none at all."""

    targets: tuple[str, ...]
    axis: int
    how: str

    def __call__(self, name: str, x: Tensor) -> Tensor:
        if name not in self.targets:
            return x
        size = x.shape[self.axis]
        new = {"less": max(0, size - 1), "more": size + 1, "one": 1, "double": 2 * size, "none": 0}[self.how]
        repeats = [1] * x.dim()
        repeats[self.axis] = max(1, -(-new // max(1, size)))
        return x.detach().repeat(repeats).narrow(self.axis, 0, min(new, size * repeats[self.axis]))


HOW = ("less", "more", "one", "double", "none")


def changed_call(
    case: Case, change: Callable[[str, Tensor], Tensor], dtype: torch.dtype
) -> dict[str, object]:
    """The arguments of a call, each tensor changed."""
    inputs = random_inputs(case, dtype=dtype)
    new = {name: change(name, x.detach()) for name, x in zip(NAMES, inputs.leaves(), strict=True)}
    return {
        "q": new["q"],
        "k": BranchKV(*(new[f"k.{branch}"] for branch in BranchKV._fields)),
        "v": BranchKV(*(new[f"v.{branch}"] for branch in BranchKV._fields)),
        "gates": new["gates"],
        "config": case.config,
        "cu_seqlens": case.cu_seqlens(),
    }


def assert_refused_or_right(
    case: Case, change: Change, backend: str, dtype: torch.dtype, tolerance: float
) -> bool:
    """Whether the call was answered, which then equals the equations."""
    arguments = changed_call(case, change, dtype)
    try:
        out = nsa_attention(**arguments, backend=backend)
    except ValueError as error:
        assert any(name in str(error) for name in ("q ", "k.", "v.", "gates", "head", "cu_seqlens")), error
        return False
    expected = reference_attention(Call(**arguments))
    assert out.shape == expected.shape and out.dtype == expected.dtype
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    return True
