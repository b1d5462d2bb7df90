"""Packed rows, and queries after a past.

Under Triton's interpreter: `test_kernels_interpreter.py` starts this file.
"""

from __future__ import annotations

import pytest
import torch
from attention_cases import SMALL, Case, output_and_gradients, random_inputs
from interpreting import (  # noqa: F401
    FEW,
    OF_16,
    TINY,
    assert_equals_the_reference,
    take_tiles_by_descriptors,
    uninitialised_memory_is_nan,
)

from nsa.attention import BranchKV, nsa_attention
from nsa.attention.blocks import packed_borders

# Scores are exponentiated before they are masked, here as on a GPU.
pytestmark = [pytest.mark.filterwarnings("ignore:overflow encountered in exp2"), pytest.mark.one_in(3)]


# Shorter than l, of one token, empty, longer than all blocks selected; with and without a tail behind the last.
@pytest.mark.parametrize(("lengths", "n_tokens"), [((3, 15, 1, 0, 14), 33), ((2, 14), 24), ((9,), 22)])
def test_packed_sequences_equal_the_reference(lengths, n_tokens):
    assert_equals_the_reference(
        Case(config=TINY, n_tokens=n_tokens, n_heads=2, n_kv_heads=1, lengths=lengths)
    )


def test_packed_sequences_that_select_all_they_may_equal_the_reference():
    assert_equals_the_reference(Case(n_tokens=31, n_heads=3, n_kv_heads=1, qk_dim=12, lengths=(4, 13, 11)))


def test_packed_sequences_by_descriptors_equal_the_reference(monkeypatch):
    take_tiles_by_descriptors(monkeypatch)
    assert_equals_the_reference(
        Case(config=OF_16, n_tokens=60, n_heads=2, n_kv_heads=1, qk_dim=16, v_dim=16, lengths=(3, 37, 19))
    )


BY_POINTERS = Case(config=TINY, n_tokens=25, n_heads=2, n_kv_heads=1, lengths=(5, 6, 14))
BY_DESCRIPTORS = Case(
    config=OF_16, n_tokens=50, n_heads=1, n_kv_heads=1, qk_dim=16, v_dim=16, lengths=(35, 6, 9)
)


@pytest.mark.parametrize("case", [BY_POINTERS, BY_DESCRIPTORS], ids=["by_pointers", "by_descriptors"])
def test_a_packed_sequence_of_nan_leaves_the_others_their_bits(case, monkeypatch):
    if case is BY_DESCRIPTORS:
        take_tiles_by_descriptors(monkeypatch)
    clean, poisoned = (random_inputs(case, dtype=torch.float32) for _ in range(2))
    borders = packed_borders(case.config, case.n_tokens, case.cu_seqlens())
    with torch.no_grad():
        for each in (poisoned.k, poisoned.v):
            for x, row in zip(each, (1, 0, 0), strict=True):
                x[:, borders[row, 1] : borders[row, 2]] = float("nan")
    expected, actual = (output_and_gradients(case, inputs, "triton") for inputs in (clean, poisoned))
    assert actual[0][:, borders[0, 1] : borders[0, 2]].isnan().all()
    for a, e in zip(actual, expected, strict=True):
        tokens = a.shape[1] == case.n_tokens  # else compressed keys or values
        start, end = borders[0 if tokens else 1, 1:3].tolist()
        assert torch.equal(a[:, :start], e[:, :start])
        assert torch.equal(a[:, end:], e[:, end:])


def test_most_of_few_blocks_selected_by_the_last_queries_equal_a_prefill():
    inputs = random_inputs(Case(config=FEW, n_tokens=210, n_heads=2, n_kv_heads=1), dtype=torch.float32)
    q, k, v, gates = inputs.q, inputs.k, inputs.v, inputs.gates
    whole = nsa_attention(q, k, v, gates, FEW, backend="triton")
    newest = [BranchKV(x.compressed, x.selected, x.sliding[:, -(FEW.window + 40) :]) for x in (k, v)]
    last = nsa_attention(q[:, -41:], *newest, gates[:, -41:], FEW, past_length=169, backend="triton")
    torch.testing.assert_close(last, whole[:, -41:])


def test_queries_after_a_past_equal_a_prefill():
    inputs = random_inputs(Case(n_tokens=45, n_heads=2, n_kv_heads=1), dtype=torch.float32)
    q, k, v, gates = inputs.q, inputs.k, inputs.v, inputs.gates
    whole = nsa_attention(q, k, v, gates, SMALL, backend="triton")
    newest = [BranchKV(x.compressed, x.selected, x.sliding[:, -(SMALL.window + 2) :]) for x in (k, v)]
    last = nsa_attention(q[:, -3:], *newest, gates[:, -3:], SMALL, past_length=42, backend="triton")
    torch.testing.assert_close(last, whole[:, -3:])
