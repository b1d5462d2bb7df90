"""The kernels as an autograd node and as operators, and which calls they leave to torch.

Under Triton's interpreter: `test_kernels_interpreter.py` starts this file.
"""

from __future__ import annotations

import gc

import pytest
import torch
from attention_cases import Case, output_and_gradients, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreting import CPU, OF_FEW_BLOCKS, TINY, uninitialised_memory_is_nan  # noqa: F401
from misfits import HOW, TARGETS, Change, assert_refused_or_right
from torch.utils._python_dispatch import TorchDispatchMode

from nsa.attention import BranchKV, backends_used, nsa_attention, resolve_backend
from nsa.attention.kernels import node

# Scores are exponentiated before they are masked, here as on a GPU.
pytestmark = [pytest.mark.filterwarnings("ignore:overflow encountered in exp2"), pytest.mark.one_in(3)]


@pytest.mark.parametrize("case", [Case(config=TINY, n_tokens=14, n_heads=2, n_kv_heads=1), OF_FEW_BLOCKS])
def test_as_operators_they_give_the_same_bits_as_an_autograd_node(case):
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            seen.add(str(function).split(".")[1])
            return function(*arguments, **(keywords or {}))

    seen: set[str] = set()
    inputs = random_inputs(case, dtype=torch.float32)
    one_node = output_and_gradients(case, inputs, "triton")
    with Recorder():
        operators = output_and_gradients(case, inputs, "triton")
    assert {"band_attention", "select_blocks", "gated_attention"} <= seen
    assert all(torch.equal(a, b) for a, b in zip(one_node, operators, strict=True))


@pytest.mark.parametrize("case", [Case(config=TINY, n_tokens=14, n_heads=2, n_kv_heads=1), OF_FEW_BLOCKS])
def test_compiled_without_a_graph_break_they_give_the_same_bits(case):
    inputs = random_inputs(case, dtype=torch.float32)

    def attend(*leaves: torch.Tensor) -> torch.Tensor:
        q, *kv, gates = leaves
        return nsa_attention(q, BranchKV(*kv[:3]), BranchKV(*kv[3:]), gates, case.config, backend="triton")

    results = []
    for call in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        out = call(*inputs.leaves())
        results.append([out, *torch.autograd.grad(out.sin().sum(), inputs.leaves(), allow_unused=True)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True) if (a is None) + (b is None) == 0)
    assert [x is None for x in results[0]] == [x is None for x in results[1]]


def test_backward_frees_the_branches_outputs_before_it_allocates_gradients(monkeypatch):
    held, freed = [], []
    case = Case(config=TINY, n_tokens=14, n_heads=2, n_kv_heads=1)
    forward, backward = node.chosen_forward, node.branches_backward

    def chosen_forward(*arguments):
        total, out, *rest = forward(*arguments)
        compressed, _, sliding = arguments[6]
        held.extend(x.untyped_storage()._weak_ref() for x in (compressed, out, sliding))
        return total, out, *rest

    def branches_backward(*arguments):
        gc.collect()  # the interpreter keeps arguments in cycles
        freed.extend(torch.UntypedStorage._expired(storage) for storage in held)
        return backward(*arguments)

    monkeypatch.setattr(node, "chosen_forward", chosen_forward)
    monkeypatch.setattr(node, "branches_backward", branches_backward)
    output_and_gradients(case, random_inputs(case, dtype=torch.float32), "triton")
    assert freed == [True, True, True]


def test_the_backend_runs_here_by_name_and_fp64_goes_to_torch_and_is_counted():
    assert resolve_backend("triton", CPU) == "triton"
    case = Case(n_tokens=20)
    inputs = random_inputs(case)
    actual = output_and_gradients(case, inputs, "triton")
    expected = output_and_gradients(case, inputs, "torch")
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert backends_used().fallbacks["triton -> torch: torch.float64"] >= 1


def test_bf16_goes_to_torch_as_the_interpreter_computes_it_wrongly():
    case = Case(config=TINY, n_tokens=9, n_heads=2, n_kv_heads=1)
    inputs = random_inputs(case, dtype=torch.bfloat16)
    actual, expected = (output_and_gradients(case, inputs, backend) for backend in ("triton", "torch"))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert any("bf16 under the interpreter" in reason for reason in backends_used().fallbacks)


def test_gates_of_another_dtype_get_gradients_of_their_own():
    inputs = random_inputs(Case(config=TINY, n_tokens=9, n_heads=2, n_kv_heads=1), dtype=torch.float32)
    gates = inputs.gates.detach().double().requires_grad_()
    out = nsa_attention(inputs.q, inputs.k, inputs.v, gates, TINY, backend="triton")
    assert out.dtype == torch.float32
    out.sum().backward()
    expected = nsa_attention(inputs.q, inputs.k, inputs.v, inputs.gates, TINY, backend="torch")
    (gradient,) = torch.autograd.grad(expected.sum(), inputs.gates)
    torch.testing.assert_close(gates.grad.float(), gradient, rtol=1e-5, atol=1e-6)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    change=st.builds(Change, st.sampled_from(TARGETS), st.integers(0, 3), st.sampled_from(HOW)),
    n_tokens=st.integers(1, 9),
    packed=st.booleans(),
)
def test_any_shape_is_refused_or_answered_by_the_equations(change, n_tokens, packed):
    lengths = (n_tokens // 2, n_tokens - n_tokens // 2) if packed else ()
    case = Case(config=TINY, n_tokens=n_tokens, n_heads=2, n_kv_heads=1, qk_dim=4, v_dim=2, lengths=lengths)
    assert_refused_or_right(case, change, "triton", torch.float32, 1e-5)
