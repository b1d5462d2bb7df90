"""Arguments of attention: what does not fit is refused by every backend, with the tensor's name and what it needs."""

from __future__ import annotations

import functools

import pytest
import torch
from attention_cases import SMALL, Case, output_and_gradients, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from misfits import HOW, TARGETS, Change, assert_refused_or_right, changed_call
from torch import Tensor

from nsa.attention import BranchKV, nsa_attention
from nsa.config import AttentionConfig
from nsa.layers.sparse import NSAAttention

BACKENDS = ("torch", "sequential", "reference")
TINY = AttentionConfig(compress_block=4, compress_stride=2, select_block=4, select_count=3, window=5)
CASE = Case(n_tokens=40)

# name of the tensor, what it becomes, what the error says
REFUSED = {
    "q_without_heads": ("q", lambda x: x[:, :, 0], r"q is \(1, 40, 8\); it must be \[B, T, H, D\]"),
    "no_tokens": ("q", lambda x: x[:, :0], r"q is \(1, 0, 6, 8\)"),
    "whole_numbers": ("q", lambda x: x.long(), "q is torch.int64; it must be one of torch.bfloat16"),
    "another_head_dim": ("k.sliding", lambda x: x[..., :4], r"k.sliding is \(1, 40, 2, 4\); .* \[1, 10 to 40|40"),
    "too_few_keys": ("k.selected", lambda x: x[:, :39], r"k.selected is \(1, 39, 2, 8\); .*\[1, 40, Hkv, 8\]"),
    "too_few_values": ("v.selected", lambda x: x[:, :1], r"v.selected is \(1, 1, 2, 8\); it must be .* as its keys"),
    "too_few_compressed_values": ("v.compressed", lambda x: x[:, :3], r"v.compressed is \(1, 3, 2, 8\)"),
    "too_many_blocks": ("k.compressed", lambda x: x.repeat(1, 2, 1, 1), r"k.compressed is \(1, 18, .*\[1, 9, Hkv"),
    "another_batch": ("k.selected", lambda x: x.repeat(2, 1, 1, 1), r"k.selected is \(2, 40, 2, 8\)"),
    "other_kv_heads_of_v": ("v.selected", lambda x: x[:, :, :1], r"v.selected is \(1, 40, 1, 8\)"),
    "heads_that_do_not_divide": ("k.sliding", lambda x: x.repeat(1, 1, 2, 1), "k.sliding has 4 KV heads, .* 6 heads of q"),
    "no_kv_heads": ("k.sliding", lambda x: x[:, :, :0], r"k.sliding is \(1, 40, 0, 8\)"),
    "another_dtype": ("k.selected", lambda x: x.float(), "k.selected is torch.float32; .* dtype of q, torch.float64"),
    "another_dtype_of_v": ("v.selected", lambda x: x.float(), "v.selected is torch.float32; .*torch.float64"),
    "another_device": ("v.sliding", lambda x: x.to("meta"), "v.sliding is on meta; q is on cpu"),
    "no_keys": ("k.selected", lambda x: None, "k.selected is None; a branch that is configured reads it"),
    "no_values": ("v.compressed", lambda x: None, "v.compressed is None"),
    "value_dims_that_differ": ("v.sliding", lambda x: x[..., :1], r"head dims of v are .*'sliding': 1"),
    "two_gates": ("gates", lambda x: x[..., :2], r"gates are|gates is \(1, 40, 6, 2\); it must be \[B, T, H, 3\]"),
    "gates_of_whole_numbers": ("gates", lambda x: x.long(), "gates are torch.int64"),
    "negative_gates": ("gates", lambda x: x - 0.5, "gates reach down to -0.4.*apply a sigmoid"),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("refused", REFUSED)
def test_what_does_not_fit_is_refused_with_its_name_and_what_it_needs(refused, backend):
    target, becomes, message = REFUSED[refused]
    arguments = changed_call(CASE, lambda name, x: becomes(x) if name == target else x, torch.float64)
    with pytest.raises(ValueError, match=message):
        nsa_attention(**arguments, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_of_too_few_keys_is_refused_and_one_of_just_enough_is_right(backend):
    inputs = random_inputs(Case(n_tokens=45))
    q, gates = inputs.q[:, -3:], inputs.gates[:, -3:]

    def attend(n: int) -> Tensor:
        k, v = (x._replace(sliding=x.sliding[:, -n:]) for x in (inputs.k, inputs.v))
        return nsa_attention(q, k, v, gates, SMALL, past_length=42, backend=backend)

    torch.testing.assert_close(attend(SMALL.window + 2), attend(45))
    with pytest.raises(ValueError, match=r"k.sliding is \(1, 7, 2, 8\); it must be .*\[1, 8 to 45, Hkv, 8\]"):
        attend(SMALL.window + 1)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    change=st.builds(Change, st.sampled_from(TARGETS), st.integers(0, 3), st.sampled_from(HOW)),
    n_tokens=st.integers(1, 14),
    batch=st.integers(1, 2),
    heads=st.sampled_from([(2, 1), (2, 2), (3, 1)]),
    packed=st.booleans(),
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_shape_is_refused_or_answered_by_the_equations(backend, change, n_tokens, batch, heads, packed):
    case = Case(
        config=TINY, n_tokens=n_tokens, batch=1 if packed else batch, n_heads=heads[0], n_kv_heads=heads[1],
        qk_dim=4, v_dim=2, lengths=(n_tokens // 2, n_tokens - n_tokens // 2) if packed else (),
    )  # fmt: skip
    assert_refused_or_right(case, change, backend, torch.float64, 1e-9)


def attend_packed(cu_seqlens: Tensor, batch: int = 1) -> Tensor:
    inputs = random_inputs(Case(n_tokens=20, lengths=(20,), batch=batch))
    return nsa_attention(inputs.q, inputs.k, inputs.v, inputs.gates, SMALL, cu_seqlens=cu_seqlens)


@pytest.mark.parametrize(
    ("borders", "message"),
    [
        ([3, 20], r"cu_seqlens is \[3, 20\]; it must begin at 0"),
        ([0, 12, 7, 20], "ascend"),
        ([0, 21], "end at the row's 20 tokens or before"),
        ([], r"must be int32 or int64 \[N \+ 1\]"),
        ([[0, 20]], r"\(1, 2\); it must be"),
        ([0.0, 20.0], "cu_seqlens is torch.float32"),
    ],
)
def test_borders_that_cannot_be_are_refused(borders, message):
    with pytest.raises(ValueError, match=message):
        attend_packed(torch.tensor(borders))


def test_borders_in_a_batch_or_after_a_past_are_refused():
    with pytest.raises(ValueError, match="the batch has 2 rows"):
        attend_packed(torch.tensor([0, 20]), batch=2)
    inputs = random_inputs(Case(n_tokens=20, lengths=(20,)))
    with pytest.raises(ValueError, match="packed sequences have no past"):
        nsa_attention(
            inputs.q[:, 4:], inputs.k, inputs.v, inputs.gates[:, 4:], SMALL, past_length=4,
            cu_seqlens=torch.tensor([0, 16]),
        )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_gates_of_another_dtype_leave_the_output_in_that_of_q(backend):
    inputs = random_inputs(Case(n_tokens=12), dtype=torch.float32)
    wide = nsa_attention(inputs.q, inputs.k, inputs.v, inputs.gates.double(), SMALL, backend=backend)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(
        wide, nsa_attention(inputs.q, inputs.k, inputs.v, inputs.gates, SMALL, backend=backend)
    )


@pytest.fixture(params=["torch", "torch, under a mask as when compiled", "sequential"])
def packing_backend(request, monkeypatch):
    """Backends that keep sequences apart, each by its ways."""
    if "mask" in request.param:
        monkeypatch.setattr("nsa.attention.torch_backend.readable", lambda x: False)
    return request.param.partition(",")[0]


@functools.cache
def by_the_equations(case: Case) -> list[Tensor]:
    return output_and_gradients(case, random_inputs(case), "reference")


@pytest.mark.parametrize("lengths", [(3, 19, 1, 0, 17), (2, 14), (9,), (45,)])
def test_packed_sequences_equal_the_equations(packing_backend, lengths):
    case = Case(n_tokens=45, lengths=lengths)
    actual = output_and_gradients(case, random_inputs(case), packing_backend)
    for a, e in zip(actual, by_the_equations(case), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("poisoned", range(7))
def test_what_is_not_finite_stays_in_its_packed_sequence(packing_backend, poisoned):
    case = Case(config=TINY, n_tokens=18, lengths=(7, 5, 6), n_heads=4)
    clean, broken = random_inputs(case), random_inputs(case)
    with torch.no_grad():
        x = broken.leaves()[poisoned]
        compressed = poisoned in (1, 4)  # the second sequence has one block, after the two of the first
        x[:, slice(2, 3) if compressed else slice(7, 12)] = [torch.nan, torch.inf][poisoned % 2]
    expected, actual = (output_and_gradients(case, inputs, packing_backend) for inputs in (clean, broken))
    assert not actual[0][:, 7:12].isfinite().all()
    for a, e in zip(actual, expected, strict=True):
        start, end = (7, 12) if a.shape[1] == 18 else (2, 3)
        for kept in (slice(0, start), slice(end, None)):
            torch.testing.assert_close(a[:, kept], e[:, kept], rtol=1e-12, atol=1e-14)


@pytest.mark.slow  # importing the compiler takes 8 s
def test_a_compiled_call_refuses_what_does_not_fit():
    inputs = random_inputs(Case(n_tokens=12))
    compiled = torch.compile(nsa_attention, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"v\.selected is"):
        compiled(
            inputs.q, inputs.k, inputs.v._replace(selected=inputs.v.selected[:, :3]), inputs.gates, SMALL
        )


def test_the_layer_never_makes_what_is_refused():
    for branches in (("selected",), ("compressed", "sliding"), ("compressed", "selected", "sliding")):
        layer = NSAAttention(8, 4, 2, 4, TINY.model_copy(update={"branches": branches}), v_head_dim=6)
        layer(torch.randn(2, 9, 8))
        layer(torch.randn(1, 9, 8), cu_seqlens=torch.tensor([0, 4, 9]))


def test_what_no_branch_reads_may_have_any_shape():
    inputs = random_inputs(Case(n_tokens=12))
    config = SMALL.model_copy(update={"branches": ("sliding",)})
    k, v = (BranchKV(None, x.selected[:, :1], x.sliding) for x in (inputs.k, inputs.v))
    assert nsa_attention(inputs.q, k, v, inputs.gates, config).isfinite().all()
