"""Which blocks a query selects, and which keys it then sees."""

from __future__ import annotations

import pytest
import torch
from attention_cases import SMALL, Case, random_inputs

from nsa.attention.blocks import block_layout, stencil
from nsa.attention.reference import reference_selection
from nsa.attention.selected import block_importance, select_blocks, selected_key_counts
from nsa.config import AttentionConfig

CPU = torch.device("cpu")


def select(case: Case, q: torch.Tensor, k_compressed: torch.Tensor) -> torch.Tensor:
    return select_blocks(q, k_compressed, block_layout(case.config, case.n_tokens, CPU, case.cu_seqlens()))


@pytest.mark.parametrize("lengths", [(), (3, 37, 0, 60), (50,)])
def test_selection_equals_the_reference(lengths):
    case = Case(n_tokens=100, lengths=lengths)
    inputs = random_inputs(case)
    expected = reference_selection(inputs.q, inputs.k.compressed, case.config, cu_seqlens=case.cu_seqlens())
    assert torch.equal(select(case, inputs.q, inputs.k.compressed), expected)


def test_the_selected_keys_oracle():
    # The number is of keys that lie in the selected blocks and not in the query's future: t + 1 for the first
    # 1,024 queries, then 15 whole blocks and the query's own up to itself.
    config = AttentionConfig()
    inputs = random_inputs(Case(config=config, n_tokens=2048, n_heads=1, n_kv_heads=1, qk_dim=4, v_dim=4))
    layout = block_layout(config, 2048, CPU)
    counts = selected_key_counts(select_blocks(inputs.q, inputs.k.compressed, layout), layout).flatten()
    assert counts.double().mean() == 752.5
    assert counts.max() == 1024
    assert (counts == 1024).sum() == 17


def test_ties_go_to_the_lower_block():
    case = Case(n_tokens=160)
    inputs = random_inputs(case)
    blocks = select(case, torch.zeros_like(inputs.q), inputs.k.compressed)  # every block equally important
    # At query 159, block 19 is its own and 18 the other local one; 0 is initial; one is left to choose.
    assert blocks[0, 0, 159].tolist() == [0, 1, 18, 19]


def test_fewer_blocks_than_the_count_end_in_minus_one():
    case = Case(n_tokens=20)
    inputs = random_inputs(case)
    blocks = select(case, inputs.q, inputs.k.compressed)
    assert blocks[0, 0, 7].tolist() == [0, -1, -1, -1]
    assert blocks[0, 0, 8].tolist() == [0, 1, -1, -1]
    assert blocks[0, 1, 19].tolist() == [0, 1, 2, -1]


def test_initial_and_local_blocks_are_always_selected():
    case = Case(n_tokens=200)
    inputs = random_inputs(case)
    blocks = select(case, inputs.q, inputs.k.compressed)
    own = torch.arange(200) // 8
    for forced in (torch.zeros(200, dtype=torch.long), (own - 1).clamp(min=0), own):
        assert (blocks == forced[None, None, :, None]).any(-1).all()


def test_the_stencil_of_the_paper_is_1_2_2_2_1():
    assert stencil(AttentionConfig()) == [(-1, 1), (0, 2), (1, 2), (2, 2), (3, 1)]


def test_importance_is_the_double_sum_of_equation_9():
    layout = block_layout(AttentionConfig(), 2048, CPU)
    p = torch.rand(127, dtype=torch.float64)
    importance = block_importance(p, layout)
    for j in (0, 1, 17, 31):
        indices = [4 * (j + 1) - m - n - 1 for m in range(4) for n in range(2)]
        assert importance[j] == pytest.approx(sum(p[i].item() for i in indices if 0 <= i < 127), rel=1e-12)


def test_the_heads_of_a_group_select_together_and_groups_apart():
    case = Case(n_tokens=200)
    inputs = random_inputs(case)
    blocks = select(case, inputs.q, inputs.k.compressed)
    assert blocks.shape == (1, 2, 200, 4)
    assert not torch.equal(blocks[:, 0], blocks[:, 1])
    one_head_changed = inputs.q.detach().clone()
    one_head_changed[:, :, 0] *= -1
    changed = select(case, one_head_changed, inputs.k.compressed)
    assert not torch.equal(changed[:, 0], blocks[:, 0])
    assert torch.equal(changed[:, 1], blocks[:, 1])


def test_selection_carries_no_gradient_and_repeats_bit_for_bit():
    case = Case(n_tokens=200)
    inputs = random_inputs(case, dtype=torch.float32)
    blocks = select(case, inputs.q, inputs.k.compressed)
    assert not blocks.requires_grad
    assert torch.equal(blocks, select(case, inputs.q, inputs.k.compressed))


def test_packed_blocks_are_numbered_through_from_sequence_to_sequence():
    case = Case(config=SMALL, n_tokens=40, lengths=(12, 28))
    inputs = random_inputs(case)
    blocks = select(case, inputs.q, inputs.k.compressed)
    assert blocks[0, 0, 11].tolist() == [0, 1, -1, -1]
    assert blocks[0, 0, 12].tolist() == [2, -1, -1, -1]
