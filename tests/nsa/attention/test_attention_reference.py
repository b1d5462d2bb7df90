"""Every backend answers to the token-by-token reference, in outputs and in all gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from attention_cases import SMALL, Case, assert_close, output_and_gradients, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.attention import BRANCHES, nsa_attention
from nsa.attention.blocks import n_compress_slots
from nsa.attention.compressed import BlockCompression
from nsa.attention.reference import reference_compression
from nsa.config import AttentionConfig


def shape(l: int, d: int, l_select: int, n: int, w: int, **others: object) -> AttentionConfig:  # noqa: E741
    """A configuration in the paper's letters."""
    return AttentionConfig(
        compress_block=l, compress_stride=d, select_block=l_select, select_count=n, window=w, **others
    )


CASES = {
    "group_of_3": Case(),
    "group_of_1": Case(n_heads=2, n_kv_heads=2, batch=2),
    "group_of_4": Case(n_heads=4, n_kv_heads=1, batch=2),
    "v_wider_than_qk": Case(qk_dim=6, v_dim=10),
    "v_narrower_than_qk": Case(qk_dim=10, v_dim=4),
    "shorter_than_a_compression_block": Case(n_tokens=7),
    "a_single_token": Case(n_tokens=1),
    "exactly_one_compression_block": Case(n_tokens=8),
    "ragged_last_blocks": Case(n_tokens=51),
    "compression_blocks_wider_than_selection_blocks": Case(config=shape(12, 3, 6, 5, 10), n_tokens=50),
    "blocks_without_overlap": Case(config=shape(8, 8, 8, 3, 5)),
    "stride_of_1": Case(config=shape(3, 1, 2, 4, 4), n_tokens=24),
    "window_of_1": Case(config=shape(8, 4, 16, 3, 1)),
    "window_beyond_the_sequence": Case(config=shape(8, 4, 8, 4, 100), n_tokens=20),
    "nothing_forced": Case(config=shape(8, 4, 8, 2, 6, initial_blocks=0, local_blocks=0)),
    "more_selected_than_blocks": Case(config=shape(8, 4, 8, 20, 6), n_tokens=30),
    "packed": Case(lengths=(3, 17, 0, 21, 4)),
    "packed_with_a_tail_behind_the_last_border": Case(lengths=(9, 16)),
    "packed_and_all_short": Case(lengths=(5, 5, 5), n_tokens=15),
    "packed_wide_compression": Case(config=shape(12, 3, 6, 5, 10), lengths=(20, 25)),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_equal_the_reference(name):
    case = CASES[name]
    inputs = random_inputs(case)
    expected = output_and_gradients(case, inputs, "reference")
    for backend in ("torch", "sequential"):
        assert_close(output_and_gradients(case, inputs, backend), expected, 1e-9)
    assert all(x.isfinite().all() for x in expected)


@pytest.mark.parametrize("name", ["group_of_3", "v_wider_than_qk", "packed"])
def test_fp32_stays_within_1e_5_of_the_fp64_reference(name):
    case = CASES[name]
    expected = output_and_gradients(case, random_inputs(case), "reference")
    for backend in ("torch", "sequential"):
        actual = output_and_gradients(case, random_inputs(case, dtype=torch.float32), backend)
        assert_close(actual, expected, 1e-5)


@st.composite
def cases(draw):
    """Any small shape that AttentionConfig accepts, packed or not."""
    stride = draw(st.integers(1, 4))
    config = shape(
        stride * draw(st.integers(1, 4)),
        stride,
        stride * draw(st.integers(1, 4)),
        draw(st.integers(3, 6)),
        draw(st.integers(1, 12)),
    )
    n_tokens = draw(st.integers(1, 24))
    lengths = draw(st.lists(st.integers(0, 12), max_size=4))
    fits = 0 < sum(lengths) <= n_tokens
    n_kv_heads = draw(st.integers(1, 2))
    return Case(
        config=config,
        batch=1 if fits else draw(st.integers(1, 2)),
        n_tokens=n_tokens,
        n_heads=n_kv_heads * draw(st.integers(1, 3)),
        n_kv_heads=n_kv_heads,
        qk_dim=draw(st.integers(1, 5)),
        v_dim=draw(st.integers(1, 5)),
        lengths=tuple(lengths) if fits else (),
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(case=cases(), seed=st.integers(0, 100))
def test_any_small_shape_equals_the_reference(case, seed):
    inputs = random_inputs(case, seed)
    expected = output_and_gradients(case, inputs, "reference")
    assert_close(output_and_gradients(case, inputs, "torch"), expected, 1e-9)


@pytest.mark.parametrize("backend", ["torch", "sequential", "reference"])
@pytest.mark.parametrize("branches", [("compressed",), ("selected",), ("sliding",), ("sliding", "selected")])
def test_a_subset_of_branches_is_what_is_left_with_the_other_gates_shut(branches, backend):
    case = Case(config=SMALL.model_copy(update={"branches": branches}), n_tokens=30)
    inputs = random_inputs(case)
    alone = output_and_gradients(case, inputs, backend)
    is_open = torch.tensor([float(branch in branches) for branch in BRANCHES], dtype=torch.float64)
    shut = nsa_attention(inputs.q, inputs.k, inputs.v, inputs.gates * is_open, SMALL, backend="reference")
    torch.testing.assert_close(alone[0], shut.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("branch", ["selected", "sliding"])
def test_full_coverage_equals_dense_attention(branch):
    config = shape(8, 4, 8, 8, 64, branches=(branch,))
    inputs = random_inputs(Case(config=config, n_tokens=60))
    out = nsa_attention(inputs.q, inputs.k, inputs.v, torch.ones_like(inputs.gates), config)
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, getattr(inputs.k, branch), getattr(inputs.v, branch)))
    k, v = k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)
    dense = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(out, dense, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "sequential", "reference"])
def test_a_query_before_its_first_whole_block_gets_nothing_from_the_compressed_branch(backend):
    case = Case(config=SMALL.model_copy(update={"branches": ("compressed",)}))
    inputs = random_inputs(case)
    out = nsa_attention(inputs.q, inputs.k, inputs.v, inputs.gates, case.config, backend=backend)
    (q_gradient,) = torch.autograd.grad(out.square().sum(), inputs.q)
    assert (out[:, :7] == 0).all() and (q_gradient[:, :7] == 0).all()
    assert (out[:, 7:] != 0).all()


def test_scores_beyond_the_range_of_exp_give_no_nan():
    case = Case()
    inputs = random_inputs(case, dtype=torch.float32)
    out = nsa_attention(inputs.q * 1e4, inputs.k, inputs.v, inputs.gates, case.config)
    gradients = torch.autograd.grad(out.sum(), inputs.leaves())
    assert all(x.isfinite().all() for x in (out, *gradients))


@pytest.mark.parametrize("kind", ["mlp", "mean"])
@pytest.mark.parametrize("lengths", [(), (3, 17, 0, 21, 4), (9, 16)])
def test_blocks_are_compressed_as_if_one_after_another(kind, lengths):
    case = Case(lengths=lengths)
    phi = BlockCompression(8, SMALL, kind=kind).double()
    x = random_inputs(case).k.selected
    blocks = phi(x, case.cu_seqlens())
    one_by_one = reference_compression(phi, x, SMALL, cu_seqlens=case.cu_seqlens())
    assert blocks.shape[1] == n_compress_slots(SMALL, case.n_tokens, packed=bool(lengths))
    torch.testing.assert_close(blocks[:, : one_by_one.shape[1]], one_by_one, rtol=1e-9, atol=1e-12)


def test_mean_compression_has_no_parameters():
    assert not list(BlockCompression(8, SMALL, kind="mean").parameters())
