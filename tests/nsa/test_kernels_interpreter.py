"""The Triton kernels on a CPU, under Triton's interpreter, against `reference.py`: outputs and gradients.

Triton reads TRITON_INTERPRET when a kernel is defined, so the tests run in a process of their own, which the
first lines below start; there this file holds the tests themselves.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys

import pytest
import torch
from attention_cases import SMALL, Case, output_and_gradients, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from misfits import HOW, TARGETS, Change, assert_refused_or_right
from torch.utils._python_dispatch import TorchDispatchMode

from nsa.attention import BranchKV, backends_used, nsa_attention, resolve_backend
from nsa.attention.blocks import block_layout, n_compress_slots, packed_borders
from nsa.attention.reference import reference_selection
from nsa.attention.selected import select_blocks
from nsa.cache import DecodeCache, Rows, as_ring
from nsa.config import AttentionConfig, ConfigError

pytest.importorskip("triton")
# Scores are exponentiated before they are masked, here as on a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2")
FP32 = 3e-6  # relative norm, against the reference in fp64
CPU = torch.device("cpu")
# The interpreter takes milliseconds for an operation: so few tokens that 12 of them are selected.
TINY = AttentionConfig(compress_block=4, compress_stride=2, select_block=4, select_count=3, window=5)
# Four blocks at most, of which two are selected: by bits, if the row is not packed.
FEW = AttentionConfig(
    compress_block=32,
    compress_stride=16,
    select_block=64,
    select_count=2,
    window=40,
    initial_blocks=0,
    local_blocks=1,
)

if os.environ.get("TRITON_INTERPRET") != "1":

    def test_triton_by_name_is_refused_where_it_cannot_run():
        with pytest.raises(ConfigError, match=r"'triton' is not available on cpu.*needs a GPU"):
            resolve_backend("triton", CPU)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, direct launches work")
    def test_without_a_gpu_the_trial_of_direct_launches_fails_without_a_word():
        from nsa.attention.kernels.launch import direct_launches_work

        assert not direct_launches_work()

    def test_the_kernels_under_the_interpreter():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

else:
    from nsa.attention.decode_attention import decode_attention
    from nsa.attention.kernels import band, choose, decode, gather, lists, node
    from nsa.attention.kernels.band import Lengths, bands_forward
    from nsa.attention.kernels.choose import Selection, select, select_few
    from nsa.attention.kernels.tiles import Tile

    OF_FEW_BLOCKS = Case(config=FEW, n_tokens=130, n_heads=1, n_kv_heads=1)

    @pytest.fixture(autouse=True)
    def uninitialised_memory_is_nan():
        torch.use_deterministic_algorithms(True)  # fills what torch.empty gives with NaN
        yield
        torch.use_deterministic_algorithms(False)

    def assert_equals_the_reference(case: Case, *, scale: float = 1.0, seed: int = 0) -> None:
        inputs = {dtype: random_inputs(case, seed, dtype) for dtype in (torch.float32, torch.float64)}
        with torch.no_grad():
            for each in inputs.values():
                each.q.mul_(scale)
        actual = output_and_gradients(case, inputs[torch.float32], "triton")
        expected = output_and_gradients(case, inputs[torch.float64], "reference")
        assert all(x.isfinite().all() for x in actual)
        for a, e in zip(actual, expected, strict=True):
            # The floor is for gradients that are 0 in exact arithmetic: those of a softmax over one key.
            assert (a.double() - e).norm() <= FP32 * e.norm() + 1e-6

    @pytest.mark.parametrize(
        ("n_heads", "n_kv_heads", "n_tokens"), [(2, 2, 17), (3, 1, 18), (4, 1, 19), (16, 1, 13)]
    )
    def test_groups_of_any_size_equal_the_reference(n_heads, n_kv_heads, n_tokens):
        assert_equals_the_reference(
            Case(config=TINY, n_tokens=n_tokens, n_heads=n_heads, n_kv_heads=n_kv_heads)
        )

    def test_large_queries_equal_the_reference():
        assert_equals_the_reference(Case(config=TINY, n_tokens=17, n_heads=3, n_kv_heads=1), scale=8)

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
        window=st.integers(1, 35),
        lengths=st.one_of(st.integers(9, 30), st.lists(st.integers(0, 14), min_size=2, max_size=4)),
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

    def test_selection_equals_the_reference_and_ties_go_to_the_lower_block():
        case = Case(n_tokens=150, n_heads=3, n_kv_heads=1)
        inputs = random_inputs(case)
        q, k = inputs.q.detach().float(), inputs.k.compressed.detach().float()
        expected = reference_selection(inputs.q[:, -8:], inputs.k.compressed, SMALL, past_length=142)
        assert torch.equal(_select(q[:, -8:], k, 142).long(), expected)
        equal = torch.zeros_like(q)
        layout = block_layout(SMALL, 150, CPU)
        assert torch.equal(_select(equal, k, 0).long(), select_blocks(equal, k, layout))

    @pytest.mark.parametrize("lengths", [(), (13, 3, 0, 20)])
    def test_selection_some_queries_at_a_time_gives_the_same_blocks(monkeypatch, lengths):
        case = Case(config=TINY, n_tokens=40, n_heads=2, n_kv_heads=1, lengths=lengths)
        inputs = random_inputs(case, dtype=torch.float32)
        borders = packed_borders(TINY, 40, case.cu_seqlens()) if lengths else None
        at_once = _select_by(inputs.q.detach(), inputs.k.compressed.detach(), borders)
        monkeypatch.setattr(choose, "SCORES", 1)  # one tile of queries
        assert torch.equal(_select_by(inputs.q.detach(), inputs.k.compressed.detach(), borders), at_once)

    def test_queries_of_nan_select_as_many_blocks_as_others_and_none_that_they_do_not_see():
        case = Case(config=TINY, n_tokens=40, n_heads=2, n_kv_heads=1)
        inputs = random_inputs(case, dtype=torch.float32)
        blocks = _select_by(inputs.q.detach() * float("nan"), inputs.k.compressed.detach(), None)[0, 0]
        own = torch.arange(40) // TINY.select_block
        assert ((blocks >= 0).sum(-1) == (own + 1).clamp(max=TINY.select_count)).all()
        assert (blocks <= own[:, None]).all()

    def _select_by(q: torch.Tensor, k: torch.Tensor, borders: torch.Tensor | None) -> torch.Tensor:
        """By scores that no softmax divides."""
        choose = Selection(
            TINY.compress_stride, TINY.compress_block, TINY.select_block, TINY.select_count,
            TINY.initial_blocks, TINY.local_blocks,
        )  # fmt: skip
        return select(q, k, torch.zeros(1, q.shape[2], q.shape[1]), choose, 0, borders)

    def test_selection_of_few_blocks_by_bits_equals_the_reference_and_ties_go_to_the_lower_block():
        inputs = random_inputs(Case(n_tokens=75, n_heads=3, n_kv_heads=1))  # 19 blocks of 4
        q, k = inputs.q.detach().float(), inputs.k.compressed.detach().float()
        for past, queries in ((0, q), (60, q[:, 60:]), (0, torch.zeros_like(q))):
            blocks = _select(queries, k, past)
            bits = _select(queries, k, past, by=select_few)
            assert torch.equal(bits, torch.where(blocks < 0, 0, 1 << blocks.clamp(min=0)).sum(-1).int())

    @pytest.mark.parametrize(("n_tokens", "dims"), [(150, (16, 16)), (197, (24, 12))])
    def test_most_of_few_blocks_selected_equal_the_reference(n_tokens, dims):
        assert_equals_the_reference(
            Case(config=FEW, n_tokens=n_tokens, n_heads=2, n_kv_heads=1, qk_dim=dims[0], v_dim=dims[1])
        )

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

    @pytest.mark.parametrize(("heads", "dims", "n_new"), [((6, 2), (24, 12), 1), ((2, 2), (8, 8), 2)])
    def test_decoding_equals_what_the_torch_backend_gives_each_row(monkeypatch, heads, dims, n_new):
        # Several programs for every part of the work, though there are few tokens.
        for name, value in {"KEYS_EACH": 16, "KEYS": 16, "BLOCKS_EACH": 8, "SLOTS_EACH": 16}.items():
            monkeypatch.setattr(decode, name, value)
        config = TINY.model_copy(update={"window": 18})
        rows = Rows(torch.tensor([70, 0, 3, 31]), capacity=80)
        kernels, torchs = (
            decode_cache(config.model_copy(update={"backend": backend}), rows, heads[1], dims, n_new)
            for backend in ("triton", "torch")
        )
        generator = torch.Generator().manual_seed(7)
        q = torch.randn(4, n_new, heads[0], dims[0], generator=generator)
        gates = torch.rand(4, n_new, heads[0], 3, generator=generator)
        actual, expected = (decode_attention(q, gates, cache) for cache in (kernels, torchs))
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(actual, decode_attention(q, gates, kernels))

    def decode_cache(config, rows, kv_heads, dims, n_new) -> DecodeCache:
        """One that holds random numbers in the places of `rows` and the new tokens, and NaN in all others."""
        generator = torch.Generator().manual_seed(5)
        cache, whole = DecodeCache(config, rows, n_new), Rows(rows.lengths + n_new, rows.capacity)
        n_blocks = n_compress_slots(config, rows.capacity, packed=False)
        kept = []
        for dim in dims:
            draw = [
                torch.randn(4, n, kv_heads, dim, generator=generator)
                for n in (n_blocks, rows.capacity, rows.capacity)
            ]
            for b, length in enumerate(whole.lengths.tolist()):
                draw[0][b, n_compress_slots(config, length, packed=False) :] = float("nan")
                draw[1][b, length:] = draw[2][b, length:] = float("nan")
            ring = as_ring(draw[2], whole, cache.window_ring)
            for b, length in enumerate(whole.lengths.tolist()):
                ring[b, length:] = float("nan")
            kept.append(BranchKV(draw[0], draw[1], ring))
        cache.keys, cache.values = kept
        return cache

    def test_tiles_by_descriptors_equal_the_reference(monkeypatch):
        for module in (band, gather):
            monkeypatch.setattr(module, "describable", lambda *_: True)
        for name in ("band_forward_tile", "band_dkv_tile"):  # several tiles of few tokens
            monkeypatch.setattr(band, name, lambda *_: Tile(32, 32, 4, 2))
        config = AttentionConfig(
            compress_block=4,
            compress_stride=2,
            select_block=16,
            select_count=2,
            window=13,
            initial_blocks=0,
            local_blocks=1,
        )
        case = Case(config=config, n_tokens=50, n_heads=2, n_kv_heads=1, qk_dim=16, v_dim=128, batch=2)
        assert_equals_the_reference(case)

    @pytest.mark.parametrize("share", [8, 64, 1024])
    def test_lists_of_tokens_are_those_of_one_stable_sort(monkeypatch, share):
        monkeypatch.setattr(lists, "SHARE", share)  # 2, 16 and all tokens a program
        generator = torch.Generator().manual_seed(0)
        blocks = torch.full((2, 2, 37, 3), -1, dtype=torch.int32)
        for at in itertools.product(range(2), range(2), range(37)):
            chosen = torch.randperm(at[2] // 4 + 1, generator=generator)[:3].sort().values
            blocks[at][: len(chosen)] = chosen
        listed, starts = lists.lists_of_tokens(blocks, 10)
        by_sorting, expected_starts = lists._sorted(blocks, 10)
        n_entries = int((blocks >= 0).sum())
        assert torch.equal(starts, expected_starts) and starts[-1] == n_entries
        assert torch.equal(listed[:n_entries], by_sorting[:n_entries])
        monkeypatch.setattr(lists, "MOST_COUNTS", 1)
        assert torch.equal(lists.lists_of_tokens(blocks, 10)[0], by_sorting)

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

    def test_a_launch_is_compiled_for_no_branch_whose_keys_it_is_not_given(monkeypatch):
        # The interpreter never enters such a branch; a compiler fails on it.
        launched, launcher = [], band.forward_kernel

        class Recorder:
            def __getitem__(self, grid):
                def launch(*arguments, **constants):
                    launched.append((arguments, constants))
                    launcher[grid](*arguments, **constants)

                return launch

        monkeypatch.setattr(band, "forward_kernel", Recorder())
        output_and_gradients(OF_FEW_BLOCKS, random_inputs(OF_FEW_BLOCKS, dtype=torch.float32), "triton")
        assert len(launched) == 2
        for arguments, constants in launched:
            assert constants["HAS_S"] == (arguments[5] is not None)
            if not constants["GATED"]:  # else the others are there for their outputs
                assert constants["HAS_C"] == (arguments[1] is not None)
                assert constants["HAS_W"] == (arguments[9] is not None)

    @pytest.mark.parametrize("case", [Case(config=TINY, n_tokens=14, n_heads=2, n_kv_heads=1), OF_FEW_BLOCKS])
    def test_compiled_without_a_graph_break_they_give_the_same_bits(case):
        inputs = random_inputs(case, dtype=torch.float32)

        def attend(*leaves: torch.Tensor) -> torch.Tensor:
            q, *kv, gates = leaves
            return nsa_attention(
                q, BranchKV(*kv[:3]), BranchKV(*kv[3:]), gates, case.config, backend="triton"
            )

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

    def test_the_same_inputs_give_the_same_bits():
        case = Case(config=TINY, n_tokens=14, n_heads=2, n_kv_heads=1)
        inputs = random_inputs(case, dtype=torch.float32)
        first, second = (output_and_gradients(case, inputs, "triton") for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

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
        case = Case(
            config=TINY, n_tokens=n_tokens, n_heads=2, n_kv_heads=1, qk_dim=4, v_dim=2, lengths=lengths
        )
        assert_refused_or_right(case, change, "triton", torch.float32, 1e-5)

    # Shorter than l, of one token, empty, longer than all blocks selected; with and without a tail behind the last.
    @pytest.mark.parametrize("lengths", [(3, 19, 1, 0, 17), (2, 14), (9,)])
    def test_packed_sequences_equal_the_reference(lengths):
        case = Case(config=TINY, n_tokens=max(40, sum(lengths)), n_heads=2, n_kv_heads=1, lengths=lengths)
        assert_equals_the_reference(case)

    def test_packed_sequences_that_select_all_they_may_equal_the_reference():
        assert_equals_the_reference(
            Case(n_tokens=31, n_heads=3, n_kv_heads=1, qk_dim=12, lengths=(4, 13, 11))
        )

    def test_a_packed_sequence_of_nan_leaves_the_others_their_bits():
        case = Case(config=TINY, n_tokens=40, n_heads=2, n_kv_heads=1, lengths=(13, 11, 16))
        clean, poisoned = (random_inputs(case, dtype=torch.float32) for _ in range(2))
        borders = packed_borders(TINY, 40, case.cu_seqlens())
        with torch.no_grad():
            for each in (poisoned.k, poisoned.v):
                for x, row in zip(each, (1, 0, 0), strict=True):
                    x[:, borders[row, 1] : borders[row, 2]] = float("nan")
        expected, actual = (output_and_gradients(case, inputs, "triton") for inputs in (clean, poisoned))
        assert actual[0][:, 13:24].isnan().all()
        for a, e in zip(actual, expected, strict=True):
            tokens = a.shape[1] == 40  # else compressed keys or values
            start, end = borders[0 if tokens else 1, 1:3].tolist()
            assert torch.equal(a[:, :start], e[:, :start])
            assert torch.equal(a[:, end:], e[:, end:])

    def _select(
        q: torch.Tensor, k: torch.Tensor, past: int, config: AttentionConfig = SMALL, by=select
    ) -> torch.Tensor:
        lengths = Lengths(config.compress_stride, config.compress_block, config.select_block, 1, past)
        selection = Selection(
            config.compress_stride, config.compress_block, config.select_block, config.select_count,
            config.initial_blocks, config.local_blocks,
        )  # fmt: skip
        alone = (k, None, None)
        return by(q, k, bands_forward(q, alone, alone, lengths).lses[0], selection, past)
