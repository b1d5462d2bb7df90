"""The Triton kernels on a GPU at real sizes: against the torch backend in fp32, and against themselves."""

from __future__ import annotations

import functools

import pytest
import torch
from attention_cases import SMALL, Case, random_inputs
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nsa.attention import BranchKV, backends_used, nsa_attention, resolve_backend
from nsa.attention.blocks import block_layout, n_compress_slots, packed_borders
from nsa.attention.selected import block_importance, select_blocks
from nsa.config import AttentionConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="the kernels need a GPU: `pytest -m gpu` on a machine with an H200 or A100",
    ),
]
CONFIG = AttentionConfig()
DESCRIPTORS = "nsa.attention.kernels.descriptors"
# Relative norms. Operands are rounded to 8 (bf16) or 11 bits; queries scaled by 8 make softmax nearly hard.
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 3e-6}


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan():
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
    yield
    torch.use_deterministic_algorithms(False)


def inputs(
    heads: int, kv_heads: int, dim: int, v_dim: int, n_tokens: int, *, batch: int = 1, scale: float = 1.0,
    dtype: torch.dtype = torch.bfloat16, packed: bool = False,
) -> list[Tensor]:  # fmt: skip
    """q, the three k, the three v, gates; then a gradient of the output."""
    generator = torch.Generator("cuda").manual_seed(heads * n_tokens)

    def normal(n: int, h: int, d: int) -> Tensor:
        return torch.randn(batch, n, h, d, generator=generator, device="cuda").to(dtype)

    lengths = (n_compress_slots(CONFIG, n_tokens, packed=packed), n_tokens, n_tokens)
    return [
        scale * normal(n_tokens, heads, dim),
        *(normal(n, kv_heads, dim) for n in lengths),
        *(normal(n, kv_heads, v_dim) for n in lengths),
        normal(n_tokens, heads, 3).sigmoid(),
        normal(n_tokens, heads, v_dim),
    ]


def call(leaves: list[Tensor], backend: str = "triton", cu_seqlens: Tensor | None = None) -> Tensor:
    q, *kv, gates = leaves
    k, v = BranchKV(*kv[:3]), BranchKV(*kv[3:])
    return nsa_attention(q, k, v, gates, CONFIG, cu_seqlens=cu_seqlens, backend=backend)


def output_and_gradients(tensors: list[Tensor], backend: str = "triton", run=call) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors[:-1]]
    out = run(leaves, backend)
    gradients = torch.autograd.grad(out, leaves, tensors[-1], allow_unused=True)
    return [out.detach()] + [
        torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)
    ]


def assert_bits_equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "v_dim", "n_tokens", "batch", "dtype", "scale"),
    [
        (64, 4, 128, 128, 2048, 1, torch.bfloat16, 1),
        pytest.param(64, 4, 128, 128, 2200, 1, torch.bfloat16, 1, marks=pytest.mark.slow),
        pytest.param(
            64, 4, 128, 128, 2048, 2, torch.bfloat16, 1, marks=pytest.mark.slow
        ),  # by bits, in two rows
        pytest.param(12, 2, 64, 64, 1999, 2, torch.bfloat16, 8, marks=pytest.mark.slow),
        (12, 4, 64, 64, 3001, 2, torch.bfloat16, 1),
        pytest.param(4, 4, 128, 128, 1300, 1, torch.bfloat16, 8, marks=pytest.mark.slow),
        pytest.param(16, 4, 64, 64, 2500, 1, torch.float16, 1, marks=pytest.mark.slow),
        pytest.param(16, 1, 192, 128, 1500, 1, torch.bfloat16, 1, marks=pytest.mark.slow),
        pytest.param(8, 2, 256, 256, 1100, 1, torch.bfloat16, 1, marks=pytest.mark.slow),
        pytest.param(6, 2, 128, 64, 20, 1, torch.bfloat16, 1, marks=pytest.mark.slow),
        pytest.param(6, 2, 64, 64, 1201, 1, torch.float32, 1, marks=pytest.mark.slow),
    ],
)
def test_outputs_and_gradients_equal_those_of_torch_in_fp32(
    heads, kv_heads, dim, v_dim, n_tokens, batch, dtype, scale
):
    tensors = inputs(heads, kv_heads, dim, v_dim, n_tokens, batch=batch, dtype=dtype, scale=scale)
    actual = output_and_gradients(tensors)
    torch.use_deterministic_algorithms(False)  # the oracle scatters
    expected = output_and_gradients([x.float() for x in tensors], "torch")
    for a, e in zip(actual, expected, strict=True):
        assert (a.float() - e).norm() <= TOLERANCE[dtype] * e.norm() + 1e-6
    assert_bits_equal(output_and_gradients(tensors), actual)


@pytest.mark.slow
def test_offsets_beyond_2_to_the_31_reach_the_right_elements():
    n_tokens, n_last = 2**31 // (64 * 128) + 1000, 5
    torch.use_deterministic_algorithms(False)  # the fills would take longer than the kernels
    *leaves, dout = inputs(64, 4, 128, 128, n_tokens)
    assert leaves[0].numel() > 2**31
    dout[:, :-n_last] = 0
    out, dq, *dkv, dgates = output_and_gradients([*leaves, dout])
    q, *kv, gates = (
        x.detach().float() for x in (leaves[0][:, -n_last:], *leaves[1:-1], leaves[-1][:, -n_last:])
    )
    last = [x.requires_grad_() for x in (q, *kv, gates)]
    k, v = BranchKV(*last[1:4]), BranchKV(*last[4:7])
    expected = nsa_attention(q, k, v, gates, CONFIG, past_length=n_tokens - n_last, backend="torch")
    gradients = torch.autograd.grad(expected, last, dout[:, -n_last:].float(), allow_unused=True)
    actual = (out[:, -n_last:], dq[:, -n_last:], *dkv, dgates[:, -n_last:])
    for a, e in zip(actual, (expected, *gradients), strict=True):
        assert (a.float() - e).norm() <= TOLERANCE[torch.bfloat16] * e.norm()
    assert not dq[:, :-n_last].any()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "v_dim", "n_tokens", "batch", "dtype"),
    [
        (64, 4, 128, 128, 2048, 1, torch.bfloat16),
        pytest.param(12, 4, 64, 64, 3001, 2, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(8, 2, 128, 64, 2500, 2, torch.float16, marks=pytest.mark.slow),
    ],
)
def test_tiles_by_descriptors_equal_torch_in_fp32(
    monkeypatch, heads, kv_heads, dim, v_dim, n_tokens, batch, dtype
):
    monkeypatch.setattr(f"{DESCRIPTORS}.WORTHWHILE", 0)
    tensors = inputs(heads, kv_heads, dim, v_dim, n_tokens, batch=batch, dtype=dtype)
    actual = output_and_gradients(tensors)
    torch.use_deterministic_algorithms(False)  # the oracle scatters
    expected = output_and_gradients([x.float() for x in tensors], "torch")
    for a, e in zip(actual, expected, strict=True):
        assert (a.float() - e).norm() <= TOLERANCE[dtype] * e.norm() + 1e-6
    assert_bits_equal(output_and_gradients(tensors), actual)


def test_selection_of_few_blocks_by_bits_is_that_of_the_blocks():
    from nsa.attention.kernels.bands import band
    from nsa.attention.kernels.selected import choose

    q, k = inputs(12, 2, 64, 64, 2048)[:2]
    lengths = band.Lengths(16, 32, 64, 512, 0)
    lse = band.bands_forward(q, (k, None, None), (k, None, None), lengths).lses[0]
    chosen = choose.Selection(16, 32, 64, 16, 1, 2)
    blocks = choose.select(q, k, lse, chosen, 0).long()
    expected = torch.where(blocks < 0, 0, 1 << blocks.clamp(min=0)).sum(-1).int()
    # Products of other sizes may round otherwise, between blocks that are all but equal.
    assert (choose.select_few(q, k, lse, chosen, 0) == expected).float().mean() > 0.999


@pytest.mark.parametrize("shape", [(64, 4, 128, 128), pytest.param((12, 4, 64, 64), marks=pytest.mark.slow)])
def test_long_sequences_repeat_bit_for_bit_and_are_finite(shape):
    tensors = inputs(*shape, 16384)
    first = output_and_gradients(tensors)
    assert all(x.isfinite().all() for x in first)
    assert_bits_equal(output_and_gradients(tensors), first)


@pytest.mark.slow
def test_selection_differs_from_torch_only_between_blocks_that_rounding_ties():
    from nsa.attention.kernels import ops

    q, k = inputs(16, 1, 128, 128, 4096)[:2]
    lse = ops.band_attention(q, [k, None, None], [k, None, None], None, 16, 32, 64, 512, 0)[3]
    blocks = ops.select_blocks(q, k, lse, 16, 32, 64, 16, 1, 2, 0).long()
    torch.use_deterministic_algorithms(False)
    layout = block_layout(CONFIG, 4096, q.device)
    expected = select_blocks(q, k, layout)
    scores = torch.einsum("bthd,bchd->bhtc", q.float(), k.float().expand(-1, -1, 16, -1)) * 128**-0.5
    visible = layout.sees_compressed()
    p = scores.masked_fill(~visible, -torch.inf).softmax(-1).masked_fill(~visible, 0)
    importance = block_importance(p.sum(1, keepdim=True), layout)
    chosen, wanted = (importance.gather(-1, x.clamp(min=0)).sum(-1) for x in (blocks, expected))
    torch.testing.assert_close(chosen, wanted, rtol=1e-5, atol=1e-7)
    assert (blocks == expected).all(-1).float().mean() > 0.99


def test_activation_checkpointing_recomputes_the_same_bits():
    tensors = inputs(12, 4, 64, 64, 2500)

    def recomputed(leaves: list[Tensor], backend: str) -> Tensor:
        return checkpoint(call, leaves, backend, use_reentrant=False)

    assert_bits_equal(output_and_gradients(tensors, run=recomputed), output_and_gradients(tensors))


def test_compiled_without_a_graph_break_gives_the_same_bits():
    tensors = inputs(12, 4, 64, 64, 2048)
    compiled = torch.compile(call, fullgraph=True)
    assert_bits_equal(output_and_gradients(tensors, run=compiled), output_and_gradients(tensors))


@pytest.mark.slow
def test_inputs_that_are_not_aligned_give_the_same_bits():
    tensors = inputs(12, 4, 64, 64, 2048)
    expected = output_and_gradients(tensors)
    shifted = [torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view_as(x) for x in tensors]
    for x, shift in zip(tensors, shifted, strict=True):
        shift.copy_(x)
    assert shifted[0].data_ptr() % 16 != 0
    assert_bits_equal(output_and_gradients(shifted), expected)
    assert_bits_equal(output_and_gradients(tensors), expected)


@pytest.mark.parametrize(
    "shape",
    [
        (12, 4, 64, 64, 3000),
        pytest.param((64, 4, 128, 128, 2048), marks=pytest.mark.slow),
        (64, 4, 128, 128, 3000),
    ],
)  # by pointers and by descriptors
def test_direct_launches_work_and_give_the_bits_of_those_through_triton(monkeypatch, shape):
    from nsa.attention.kernels import launch

    assert launch.direct_launches_work()
    tensors = inputs(*shape)
    directly = output_and_gradients(tensors)
    monkeypatch.setattr(launch.Launcher, "_launch_known", lambda *_: False)
    assert_bits_equal(output_and_gradients(tensors), directly)


def test_where_the_trial_of_direct_launches_fails_they_go_through_triton(monkeypatch):
    from nsa.attention.kernels import launch

    monkeypatch.setattr(launch._Known, "of", lambda *_: 1 / 0)  # another release's launcher
    launch.direct_launches_work.cache_clear()
    assert not launch.direct_launches_work()
    launch.direct_launches_work.cache_clear()


def test_a_step_allocates_its_output_its_gradients_and_less_than_two_tensors_as_large_as_q():
    tensors = inputs(64, 4, 128, 128, 16384)
    torch.use_deterministic_algorithms(False)
    output_and_gradients(tensors)  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    leaves = [x.detach().requires_grad_() for x in tensors[:-1]]
    torch.autograd.grad(call(leaves), leaves, tensors[-1])
    outputs = sum(x.nbytes for x in (*leaves, tensors[-1]))
    assert torch.cuda.max_memory_allocated() - before < outputs + 2 * tensors[0].nbytes


@pytest.mark.parametrize(
    ("n_tokens", "packed"), [(1200, False), (2100, False), (2100, True)]
)  # bits, lists, lists
def test_the_ops_pass_opcheck(n_tokens, packed):
    from nsa.attention.kernels import ops

    torch.use_deterministic_algorithms(False)  # which fills memory, by which two runs always agree
    q, *kv, gates, dout = inputs(12, 4, 64, 64, n_tokens, packed=packed)
    k, v, lengths = kv[:3], kv[3:], (16, 32, 64, 512, 0)
    borders = packed_borders(CONFIG, n_tokens, torch.tensor([0, 700, 701, 2000]).cuda()) if packed else None
    torch.library.opcheck(ops.band_attention, (q, k, v, k[0], *lengths, borders))
    *bands, _ = ops.band_attention(q, k, v, k[0], *lengths, borders)
    bands = [None if i % 3 == 1 else x for i, x in enumerate(bands)]
    selection = (q, k[0], bands[3], 16, 32, 64, 16, 1, 2, 0, borders)
    torch.library.opcheck(ops.select_blocks, selection)
    blocks = ops.select_blocks(*selection)
    assert blocks.dim() == (3 if n_tokens <= 2048 else 4)
    leaves = [x.requires_grad_() for x in (q, *kv, gates)]
    torch.library.opcheck(ops.gated_attention, (*leaves, *bands, blocks, *lengths, borders))
    with torch.no_grad():
        _, out, lse, *union = ops.gated_attention(*leaves, *bands, blocks, *lengths, borders)
        saved = (dout, [bands[0], out, bands[2]], [bands[3], lse, bands[5]], gates.detach())
        torch.library.opcheck(ops.gates_backward, saved)
        _, stats = ops.gates_backward(*saved)
        detached = (q.detach(), [x.detach() for x in k], [x.detach() for x in v])
        torch.library.opcheck(
            ops._branches_backward, (dout, *detached, stats, blocks, union, *lengths, borders)
        )


@pytest.mark.parametrize("argument", range(8))
def test_forward_mode_is_refused_as_operators_would_drop_its_tangents(argument):
    *leaves, _ = inputs(6, 2, 64, 64, 1200)

    def attend(factor: Tensor) -> Tensor:  # of one element: jacfwd makes a basis of its size squared
        return call([*leaves[:argument], leaves[argument] * factor, *leaves[argument + 1 :]])

    for transform in (lambda x: torch.func.jvp(attend, (x,), (x,)), torch.func.jacfwd(attend)):
        with pytest.raises(NotImplementedError, match="forward-mode"):
            transform(leaves[argument].new_ones(1))


@pytest.mark.slow
def test_the_last_queries_after_a_past_equal_those_of_a_prefill():
    q, *kv, gates, _ = inputs(12, 4, 64, 64, 2000)
    whole = nsa_attention(q, BranchKV(*kv[:3]), BranchKV(*kv[3:]), gates, CONFIG, backend="triton")
    k, v = (BranchKV(x[0], x[1], x[2][:, -600:]) for x in (kv[:3], kv[3:]))
    last = nsa_attention(q[:, -3:], k, v, gates[:, -3:], CONFIG, past_length=1997, backend="triton")
    torch.testing.assert_close(last, whole[:, -3:], rtol=2e-2, atol=2e-2)


def test_auto_is_triton_and_fp64_falls_back_to_torch_and_is_counted():
    assert resolve_backend("auto", torch.device("cuda")) == "triton"
    torch.use_deterministic_algorithms(False)
    drawn = random_inputs(Case(n_tokens=20))
    q, *kv, gates = (x.detach().cuda() for x in drawn.leaves())
    nsa_attention(q, BranchKV(*kv[:3]), BranchKV(*kv[3:]), gates, SMALL)
    assert backends_used().fallbacks["triton -> torch: torch.float64"] >= 1


# A single token, fewer than l, none, about as many as are selected; and 77 more behind the last border.
LENGTHS = (1, 20, 0, 1023, 1100, 31)


@pytest.mark.parametrize(
    ("shape", "least"),
    [
        pytest.param((64, 4, 128, 128), 0, id="by descriptors"),
        pytest.param((12, 4, 64, 64), 2**60, id="by pointers"),
        *(
            pytest.param(shape, least, marks=pytest.mark.slow)
            for shape, least in [((64, 4, 128, 128), 2**60), ((12, 4, 64, 64), 0), ((6, 2, 192, 128), 2**60)]
        ),
    ],
)
def test_packed_sequences_equal_those_of_torch_in_fp32(monkeypatch, shape, least):
    monkeypatch.setattr(f"{DESCRIPTORS}.WORTHWHILE", least)
    tensors = inputs(*shape, sum(LENGTHS) + 77, packed=True)
    borders = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0)
    run = functools.partial(call, cu_seqlens=borders)
    actual = output_and_gradients(tensors, run=run)
    assert_bits_equal(output_and_gradients(tensors, run=run), actual)
    torch.use_deterministic_algorithms(False)  # the oracle scatters
    expected = output_and_gradients([x.float() for x in tensors], "torch", run)
    for a, e in zip(actual, expected, strict=True):
        assert (a.float() - e).norm() <= TOLERANCE[torch.bfloat16] * e.norm() + 1e-6


@pytest.mark.parametrize("shape", [(12, 4, 64, 64), pytest.param((64, 4, 128, 128), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "least", [2**60, pytest.param(0, marks=pytest.mark.slow)], ids=["by pointers", "by descriptors"]
)
def test_a_packed_sequence_of_nan_leaves_the_others_their_bits(monkeypatch, shape, least):
    monkeypatch.setattr(f"{DESCRIPTORS}.WORTHWHILE", least)
    borders = torch.tensor([0, 1500, 2600, 4000], device="cuda")
    run = functools.partial(call, cu_seqlens=borders)
    clean, poisoned = (inputs(*shape, 4000, packed=True) for _ in range(2))
    slots = packed_borders(CONFIG, 4000, borders)[1, 1:3].tolist()
    for x in poisoned[1:7]:
        begin, end = (1500, 2600) if x.shape[1] == 4000 else slots
        x[:, begin:end] = float("nan")
    expected, actual = (output_and_gradients(each, run=run) for each in (clean, poisoned))
    assert actual[0][:, 1500:2600].isnan().all()
    for a, e in zip(actual, expected, strict=True):
        begin, end = (1500, 2600) if a.shape[1] == 4000 else slots
        assert_bits_equal([a[:, :begin], a[:, end:]], [e[:, :begin], e[:, end:]])


def test_packed_sequences_compile_without_a_graph_break():
    tensors = inputs(12, 4, 64, 64, 3000, packed=True)
    run = functools.partial(call, cu_seqlens=torch.tensor([0, 1200, 3000], device="cuda"))
    compiled = torch.compile(run, fullgraph=True)
    assert_bits_equal(output_and_gradients(tensors, run=compiled), output_and_gradients(tensors, run=run))
