"""Outputs and gradients of the kernels, against `reference.py`.

Under Triton's interpreter: `test_kernels_interpreter.py` starts this file.
"""

from __future__ import annotations

import pytest
from attention_cases import Case
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreting import (  # noqa: F401
    FEW,
    OF_16,
    TINY,
    assert_equals_the_reference,
    take_tiles_by_descriptors,
    uninitialised_memory_is_nan,
)

from nsa.config import AttentionConfig

# Scores are exponentiated before they are masked, here as on a GPU.
pytestmark = [pytest.mark.filterwarnings("ignore:overflow encountered in exp2"), pytest.mark.one_in(3)]


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "n_tokens"), [(2, 2, 17), (3, 1, 14), (4, 1, 15), (8, 1, 19), (16, 1, 13)]
)
def test_groups_of_any_size_equal_the_reference(n_heads, n_kv_heads, n_tokens):
    assert_equals_the_reference(Case(config=TINY, n_tokens=n_tokens, n_heads=n_heads, n_kv_heads=n_kv_heads))


def test_large_queries_equal_the_reference():
    assert_equals_the_reference(Case(config=TINY, n_tokens=14, n_heads=3, n_kv_heads=1), scale=8)


def test_head_dims_that_are_no_powers_of_two_and_differ_equal_the_reference():
    case = Case(config=TINY, n_tokens=14, n_heads=2, n_kv_heads=1, qk_dim=24, v_dim=12, batch=2)
    assert_equals_the_reference(case)


@pytest.mark.parametrize(("qk_dim", "v_dim"), [(64, 128), (192, 128), (256, 256)])
def test_the_head_dims_of_real_models_equal_the_reference(qk_dim, v_dim):
    case = Case(config=TINY, n_tokens=9, n_heads=2, n_kv_heads=1, qk_dim=qk_dim, v_dim=v_dim)
    assert_equals_the_reference(case)


@pytest.mark.parametrize("n_tokens", [1, 7, 8])
def test_sequences_around_the_first_block_equal_the_reference(n_tokens):
    assert_equals_the_reference(Case(n_tokens=n_tokens, n_heads=2, n_kv_heads=1))


@pytest.mark.parametrize(
    "branches", [("compressed",), ("selected",), ("sliding",), ("sliding", "compressed")]
)
def test_some_of_the_branches_equal_the_reference(branches):
    config = TINY.model_copy(update={"branches": branches})
    assert_equals_the_reference(Case(config=config, n_tokens=15, n_heads=2, n_kv_heads=1))


def test_bands_over_several_tiles_equal_the_reference():
    config = TINY.model_copy(update={"branches": ("compressed", "sliding"), "window": 40})
    assert_equals_the_reference(Case(config=config, n_tokens=70, n_heads=1, n_kv_heads=1))


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    stride=st.sampled_from([2, 3, 4]),
    compress=st.integers(1, 3),
    select=st.integers(2, 3),
    extra=st.integers(0, 2),
    window=st.integers(1, 26),
    lengths=st.one_of(st.integers(9, 24), st.lists(st.integers(0, 10), min_size=2, max_size=3)),
    seed=st.integers(0, 9),
)
def test_random_shapes_equal_the_reference(stride, compress, select, extra, window, lengths, seed):
    config = AttentionConfig(
        compress_block=compress * stride, compress_stride=stride, select_block=select * stride,
        select_count=1 + extra, window=window, initial_blocks=min(1, extra), local_blocks=1,
    )  # fmt: skip
    packed = tuple(lengths) if isinstance(lengths, list) else ()
    n_tokens = sum(packed) + 1 if packed else lengths
    case = Case(config=config, n_tokens=n_tokens, n_heads=2, n_kv_heads=1, lengths=packed)
    assert_equals_the_reference(case, seed=seed)


@pytest.mark.parametrize(("n_tokens", "dims"), [(150, (16, 16)), (197, (24, 12))])
def test_most_of_few_blocks_selected_equal_the_reference(n_tokens, dims):
    assert_equals_the_reference(
        Case(config=FEW, n_tokens=n_tokens, n_heads=2, n_kv_heads=1, qk_dim=dims[0], v_dim=dims[1])
    )


def test_tiles_by_descriptors_equal_the_reference(monkeypatch):
    take_tiles_by_descriptors(monkeypatch)
    case = Case(config=OF_16, n_tokens=50, n_heads=2, n_kv_heads=1, qk_dim=16, v_dim=128, batch=2)
    assert_equals_the_reference(case)
