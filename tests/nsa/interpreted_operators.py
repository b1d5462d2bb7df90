"""What the operators return, and what they refuse.

Under Triton's interpreter: `test_kernels_interpreter.py` starts this file.
"""

from __future__ import annotations

import pytest
import torch
from attention_cases import Case, output_and_gradients, random_inputs
from interpreting import FEW, TINY, uninitialised_memory_is_nan  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode

from nsa.attention import nsa_attention

BRANCHES = ("compressed", "selected", "sliding")
PACKED = Case(config=TINY, n_tokens=33, n_heads=2, n_kv_heads=1, lengths=(3, 15, 1, 0))


class Returned(TorchDispatchMode):
    """What operators of ours returned, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[tuple[str, torch.Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "nsa":
            outs = out if isinstance(out, (list, tuple)) else [out]
            self.tensors += [(func.name(), x) for x in outs]
        return out


@pytest.mark.parametrize(
    ("case", "branches"),
    [
        (PACKED, BRANCHES),
        (PACKED, ("selected",)),
        (Case(config=TINY, n_tokens=21, n_heads=1, n_kv_heads=1), ("compressed", "selected")),
        (Case(config=FEW, n_tokens=130, n_heads=1, n_kv_heads=1), BRANCHES),
    ],
    ids=["packed", "packed_selected", "without_a_window", "few_blocks"],
)
def test_operators_write_all_that_they_return(case, branches):
    case = Case(**{**vars(case), "config": case.config.model_copy(update={"branches": branches})})
    with Returned() as returned:
        output_and_gradients(case, random_inputs(case, dtype=torch.float32), "triton")
    names = {name for name, _ in returned.tensors}
    assert len(names) == 5, names
    for name, x in returned.tensors:
        # Memory that torch.empty gives is NaN here, or the largest integer.
        unwritten = x.isnan() if x.is_floating_point() else x == torch.iinfo(x.dtype).max
        assert not unwritten.any(), f"{name}: {int(unwritten.sum())} of {tuple(x.shape)}"


def jvp(case: Case, direction: str) -> None:
    inputs = random_inputs(case, dtype=torch.float32)

    def attend(x: torch.Tensor) -> torch.Tensor:
        leaves = {"q": inputs.q, "gates": inputs.gates, direction: x}
        return nsa_attention(leaves["q"], inputs.k, inputs.v, leaves["gates"], case.config, backend="triton")

    x = getattr(inputs, direction).detach()
    torch.func.jvp(attend, (x,), (torch.ones_like(x),))


@pytest.mark.parametrize("direction", ["q", "gates"])
def test_forward_mode_is_refused_as_operators_would_drop_its_tangents(direction):
    with pytest.raises(NotImplementedError, match="forward-mode"):
        jvp(Case(config=TINY, n_tokens=14, n_heads=2, n_kv_heads=1), direction)


def test_dual_tensors_are_refused():
    case = Case(config=TINY, n_tokens=14, n_heads=2, n_kv_heads=1)
    inputs = random_inputs(case, dtype=torch.float32)
    with torch.autograd.forward_ad.dual_level():
        q = torch.autograd.forward_ad.make_dual(inputs.q.detach(), torch.ones_like(inputs.q))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            nsa_attention(q, inputs.k, inputs.v, inputs.gates, case.config, backend="triton")
